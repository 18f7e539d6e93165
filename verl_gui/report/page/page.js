const run = JSON.parse(document.getElementById("data").textContent);

function open(id) {
  const section = document.getElementById(id);
  section.hidden = false;
  return section.lastElementChild;
}

function fromTo(pair) {
  return pair[0] === pair[1] ? percent(pair[1]) : `${percent(pair[0])} → ${percent(pair[1])}`;
}

function drawTiles() {
  const { summary, run: facts } = run;
  const tiles = [];
  if (summary.validation) tiles.push(["validation success", fromTo(summary.validation)]);
  if (summary.train) tiles.push(["training success", fromTo(summary.train)]);
  if (summary.steps) tiles.push(["training steps", summary.steps]);
  if (summary.seconds_per_step !== null) tiles.push(["per step (median)", duration(summary.seconds_per_step)]);
  if (facts.ended && facts.started) tiles.push(["start to end", duration(facts.ended - facts.started)]);
  if (summary.difference !== null) tiles.push(["rollout/actor difference", number(summary.difference, 2)]);
  if (summary.recorded) tiles.push(["episodes recorded", summary.recorded]);
  if (facts.exit_status) tiles.push(["exit status", facts.exit_status]);
  return element("div", { class: "tiles" }, tiles.map(([name, value]) => element("div", { class: "tile" }, element("b", {}, String(value)), element("span", {}, name))));
}

function drawMetrics(place) {
  const { steps, columns } = run.metrics;
  const names = Object.keys(columns);
  const chosen = element("div");
  const input = element("input", { list: "names", "aria-label": "metric", placeholder: `one of ${names.length} metrics, for example ${visible(names[0])}`, oninput: show });
  function show() {
    if (!Object.hasOwn(columns, input.value)) return;
    const points = steps.map((step, row) => [step, columns[input.value][row]]);
    chosen.replaceChildren(drawChart({ title: visible(input.value), kind: "line", range: null, note: "", lines: [{ label: "", points }] }));
  }
  place.append(element("div", { class: "card" }, input, element("datalist", { id: "names" }, names.map((value) => element("option", { value }))), chosen));
}

function drawSetup(place) {
  const { command, versions, started } = run.run;
  if (versions) place.append(element("div", { class: "card" }, factList(Object.entries(versions))));
  if (command) place.append(element("details", { class: "card" }, element("summary", {}, "Command"), element("pre", {}, command.map(visible).join("\n  "))));
  if (run.config) place.append(element("details", { class: "card" }, element("summary", {}, "Configuration"), element("pre", {}, visible(run.config))));
  if (started) place.append(element("div", { class: "soft small" }, `started ${new Date(1000 * started).toLocaleString()}`));
}

let viewer = null;
if (run.charts.length) open("curves").append(...run.charts.map(drawChart));
if (run.tasks.length) open("tasks").append(drawTasks(run.tasks, run.compared, (task) => viewer && viewer.choose(task)));
if (run.episodes.length) viewer = new Viewer(open("episodes"), run);
if (run.metrics.steps.length) drawMetrics(open("metrics"));
if (run.run.command || run.config) drawSetup(open("setup"));
const sections = [...document.querySelectorAll("main section")].filter((section) => !section.hidden);
const links = sections.map((section) => element("a", { href: `#${section.id}` }, section.firstElementChild.textContent));
document.getElementById("header").append(
  element("div", { class: "head" }, element("h1", {}, visible(run.name)), element("span", { class: "soft" }, run.generator), element("nav", {}, links)),
  drawTiles(),
);
if (sections.length === 0) document.querySelector("main").append(element("p", { class: "card" }, "This run has written neither metrics nor episodes yet."));
if (run.recorded > run.episodes.length) {
  document.querySelector("#episodes h2").append(element("span", { class: "soft small" }, `  ${run.episodes.length} of ${run.recorded} recorded`));
}
