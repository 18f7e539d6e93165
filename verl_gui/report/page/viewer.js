const KINDS = { success: "success", failure: "failure", malformed: "malformed answer", broken: "environment broke" };
const RINGS = { left_double: 2, left_triple: 3 };
const LETTERS = { right_single: "R", middle: "M", hover: "↖" };

// Looking through episodes: a list, the screen with the actions on it, and what the model said.
class Viewer {
  constructor(place, run) {
    this.episodes = run.episodes;
    this.pictures = run.pictures;
    this.shown = this.episodes;
    this.position = 0;
    this.turn = 0;
    this.entries = element("div", { class: "entries" });
    this.stage = element("div", { class: "card stage", tabindex: 0 });
    this.details = element("div", { class: "card details" });
    this.selects = this.makeSelects();
    place.append(element("div", { class: "card list" }, this.selects.task, this.selects.kind, this.entries), this.stage, this.details);
    document.addEventListener("keydown", (event) => this.press(event));
    window.addEventListener("hashchange", () => this.follow(location.hash));
    this.filter();
    this.follow(location.hash);
  }

  makeSelects() {
    const make = (label, all, options) =>
      element("select", { "aria-label": label, onchange: () => this.filter() }, element("option", { value: "" }, all), options.map(([value, text]) => element("option", { value }, text)));
    const tasks = [...new Set(this.episodes.map((episode) => episode.task))];
    const kinds = Object.entries(KINDS).filter(([kind]) => this.episodes.some((episode) => episode.kind === kind));
    return {
      task: make("task", "all tasks", tasks.map((task, position) => [position, visible(task)])),
      kind: make("ending", "all endings", kinds),
      tasks,
    };
  }

  choose(task) {
    this.selects.task.value = this.selects.tasks.indexOf(task);
    this.selects.kind.value = "";
    this.filter();
    this.stage.closest("section").scrollIntoView({ behavior: "smooth" });
  }

  filter() {
    const task = this.selects.task.value === "" ? null : this.selects.tasks[this.selects.task.value];
    const kind = this.selects.kind.value;
    this.shown = this.episodes.filter((episode) => (task === null || episode.task === task) && (!kind || episode.kind === kind));
    this.entries.replaceChildren(
      ...this.shown.map((episode, position) =>
        element("button", { class: `entry ${episode.kind}`, onclick: () => this.go(position, 0) },
          element("div", {}, element("span", { class: "dot" }), visible(episode.task)),
          element("div", { class: "soft small" }, `step ${episode.step}, ${episode.validate ? "validation" : "training"}, ${number(episode.score)}`)),
      ),
    );
    this.go(0, 0);
  }

  follow(hash) {
    const place = /^#episode=(\d+)(?:&turn=(\d+))?$/.exec(hash);
    const episode = place && this.episodes[Number(place[1])];
    if (!episode) return;
    if (!this.shown.includes(episode)) {
      this.selects.task.value = this.selects.kind.value = "";
      this.filter();
    }
    this.go(this.shown.indexOf(episode), Number(place[2] ?? 0));
    this.stage.closest("section").scrollIntoView();
  }

  press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    const inside = this.stage.parentElement.contains(document.activeElement);
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], k: [-1, 0], j: [1, 0] };
    if (inside) Object.assign(moves, { ArrowUp: [-1, 0], ArrowDown: [1, 0] });
    const move = moves[event.key];
    if (!move || this.shown.length === 0) return;
    event.preventDefault();
    if (move[0]) this.go(this.position + move[0], 0, true);
    else this.go(this.position, this.turn + move[1], true);
  }

  go(position, turn, note = false) {
    this.position = Math.max(0, Math.min(position, this.shown.length - 1));
    const episode = this.shown[this.position];
    if (!episode) {
      this.stage.replaceChildren("No episode ends like this.");
      this.details.replaceChildren();
      return;
    }
    this.turn = Math.max(0, Math.min(turn, episode.turns.length));
    if (note) history.replaceState(null, "", `#episode=${this.episodes.indexOf(episode)}&turn=${this.turn}`);
    [...this.entries.children].forEach((entry, other) => entry.setAttribute("aria-current", other === this.position));
    const entry = this.entries.children[this.position], box = this.entries;
    if (entry.offsetTop < box.scrollTop + box.offsetTop) box.scrollTop = entry.offsetTop - box.offsetTop;
    else if (entry.offsetTop + entry.offsetHeight > box.scrollTop + box.offsetTop + box.clientHeight) box.scrollTop = entry.offsetTop + entry.offsetHeight - box.offsetTop - box.clientHeight;
    this.drawStage(episode);
    this.drawDetails(episode);
  }

  drawStage(episode) {
    const turn = episode.turns[this.turn];
    const [width, height] = episode.screen.map((size) => Math.max(size, 1));
    const screen = element("div", { class: "screen", style: `aspect-ratio:${width}/${height};width:min(100%,${(62 * width) / height}vh)` });
    const source = this.pictures[turn ? turn.picture : episode.final];
    if (source) {
      const blocky = width < 480 ? "image-rendering:pixelated" : null;
      screen.append(element("img", { src: source, alt: "screenshot", style: blocky }));
    } else screen.append(element("div", { class: "absent" }, "no screenshot"));
    if (turn) screen.append(drawActions(turn.actions, width, height));
    const caption = element("div", { class: "caption" });
    if (!turn) caption.append(ending(episode));
    else if (turn.error) caption.append(element("span", { class: "error" }, "no action: the answer could not be parsed"));
    else caption.append(...turn.actions.map((action) => element("code", {}, describe(action))));
    const told = element("div", { class: "told" }, element("b", {}, visible(episode.instruction || episode.task)),
      element("span", { class: "soft small" }, "go through the answers with ", element("kbd", {}, "←"), " ", element("kbd", {}, "→"), ", the episodes with ", element("kbd", {}, "j"), " ", element("kbd", {}, "k")));
    this.stage.replaceChildren(told, screen, caption, this.strip(episode));
  }

  strip(episode) {
    const pictures = [...episode.turns.map((turn) => turn.picture), episode.final];
    const strip = element("div", { class: "strip" });
    pictures.forEach((name, turn) => {
      const source = this.pictures[name];
      const thumbnail = source ? element("img", { src: source, alt: "" }) : element("span", { class: "blank" });
      const label = turn < episode.turns.length ? String(turn + 1) : "end";
      strip.append(element("button", { "aria-current": String(turn === this.turn), onclick: () => this.go(this.position, turn, true) }, thumbnail, label));
    });
    return strip;
  }

  drawDetails(episode) {
    const turn = episode.turns[this.turn];
    const parts = [];
    if (turn) {
      if (turn.error) parts.push(element("h3", {}, "Error"), element("div", { class: "error" }, visible(turn.error)));
      if (turn.thought) parts.push(element("h3", {}, "Thought"), element("div", { class: "said" }, visible(turn.thought)));
      parts.push(element("h3", {}, `Answer ${this.turn + 1} of ${episode.turns.length}`), element("pre", {}, visible(turn.text) || "(empty)"));
      if (turn.actions.length) parts.push(element("h3", {}, "Action"), element("pre", {}, turn.actions.map((action) => visible(JSON.stringify(action, rounded))).join("\n")));
      const seconds = Object.entries(turn.seconds).map(([part, value]) => [`${part}, seconds`, number(value)]);
      const facts = [...seconds];
      if (turn.logprob !== null) facts.unshift(["mean log-prob", number(turn.logprob)]);
      if (facts.length) parts.push(element("h3", {}, "Measured"), factList(facts));
    } else if (episode.failure) {
      parts.push(element("h3", {}, "Environment failure"), element("div", { class: "error" }, visible(episode.failure)));
    }
    parts.push(element("h3", {}, "Episode"), factList([
      ["ending", `${KINDS[episode.kind]} (${visible(episode.outcome)})`],
      ["score", number(episode.score)],
      ["format penalty", number(episode.format)],
      ["reward", number(episode.reward)],
      ["task", visible(episode.task)],
      ["seed", episode.seed ?? "–"],
      ["step", `${episode.step}, ${episode.validate ? "validation" : "training"}`],
      ["group", visible(episode.group)],
      ...(episode.validate ? [] : [["trained on", trainedOn(episode)]]),
      ["screen", `${episode.screen.join(" × ")}, model saw ${episode.frame.join(" × ")}`],
    ]));
    this.details.replaceChildren(...parts);
  }
}

function trainedOn(episode) {
  if (episode.failure) return "no";
  if (episode.replaced_by === null) return "yes, a fresh rollout";
  return `no: a success of step ${episode.replaced_by} was replayed in its place`;
}

function factList(facts) {
  return element("dl", { class: "facts" }, facts.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, String(value))]));
}

function ending(episode) {
  return element("span", {}, element("span", { class: `dot ${episode.kind}` }), `${KINDS[episode.kind]}, reward ${number(episode.reward)}`);
}

function point(x, y) {
  return `(${number(x, 4)}, ${number(y, 4)})`;
}

// An action in a few words.
function describe(action) {
  const words = [visible(action.type)];
  if (isNumber(action.x)) words.push(point(action.x, action.y));
  if (isNumber(action.end_x)) words.push("→", point(action.end_x, action.end_y));
  if (action.direction) words.push(visible(action.direction));
  if (isNumber(action.amount)) words.push(`× ${action.amount}`);
  if (Array.isArray(action.keys)) words.push(action.keys.map(visible).join(" + "));
  if (isNumber(action.seconds)) words.push(`${number(action.seconds)} s`);
  if (typeof action.text === "string") words.push(`“${visible(action.text.replaceAll("\n", "⏎").replaceAll("\t", "⇥"))}”`);
  return words.join(" ");
}

function rounded(_, value) {
  return isNumber(value) ? Math.round(100 * value) / 100 : value;
}

function isNumber(value) {
  return typeof value === "number";
}

// Marks over the screenshot, in screen pixels; sizes go with the screen.
function drawActions(actions, width, height) {
  const unit = Math.max(Math.min(width, height) / 100, 0.5);
  const layer = vector("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": true });
  const placed = actions.filter((action) => isNumber(action.x) && isNumber(action.y));
  const outlined = (name, attributes) => [
    vector(name, { ...attributes, class: "halo", "stroke-width": 1.7 * unit }),
    vector(name, { ...attributes, class: "mark", "stroke-width": 0.8 * unit }),
  ];
  placed.forEach((action, position) => {
    const { x, y } = action;
    const shifts = { up: [0, -1], down: [0, 1], left: [-1, 0], right: [1, 0] }[action.direction];
    if (isNumber(action.end_x)) layer.append(...arrow(x, y, action.end_x, action.end_y));
    else if (shifts) layer.append(...arrow(x, y, x + 12 * unit * shifts[0], y + 12 * unit * shifts[1]));
    for (let ring = 0; ring < (RINGS[action.type] ?? 1); ring++) layer.append(...outlined("circle", { cx: x, cy: y, r: (3.2 + 1.8 * ring) * unit }));
    const cross = `M${x - 5 * unit} ${y}h${3.2 * unit}m${3.6 * unit} 0h${3.2 * unit}M${x} ${y - 5 * unit}v${3.2 * unit}m0 ${3.6 * unit}v${3.2 * unit}`;
    layer.append(...outlined("path", { d: cross }));
    const letter = (placed.length > 1 ? String(position + 1) : "") + (LETTERS[action.type] ?? "");
    if (letter) {
      const side = x > width - 12 * unit ? -1 : 1, up = y < 12 * unit ? -1 : 1;
      const at = { cx: x + side * 6 * unit, cy: y - up * 6 * unit };
      layer.append(vector("circle", { ...at, r: 3.4 * unit, class: "mark-head", "stroke-width": 0.5 * unit }),
        vector("text", { x: at.cx, y: at.cy, class: "mark-text", "font-size": 4.2 * unit }, letter));
    }
  });
  return layer;

  function arrow(x1, y1, x2, y2) {
    const angle = Math.atan2(y2 - y1, x2 - x1), size = 4.5 * unit;
    const corner = (turn) => `${x2 - size * Math.cos(angle + turn)},${y2 - size * Math.sin(angle + turn)}`;
    const neck = { x1, y1, x2: x2 - 0.7 * size * Math.cos(angle), y2: y2 - 0.7 * size * Math.sin(angle) };
    return [...outlined("line", neck),
      vector("polygon", { points: `${x2},${y2} ${corner(0.45)} ${corner(-0.45)}`, class: "mark-head", "stroke-width": 0.5 * unit })];
  }
}
