const WIDTH = 440, HEIGHT = 210, LEFT = 44, RIGHT = 10, TOP = 10, BOTTOM = 24;

function colour(position) {
  return `var(--c${position % 10})`;
}

// Round values that divide a range into about `count` parts.
function ticks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const size = power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough);
  const values = [];
  for (let value = Math.ceil(low / size - 1e-9) * size; value <= high + size * 1e-9; value += size) {
    values.push(Math.abs(value) < size * 1e-9 ? 0 : value);
  }
  return values;
}

function withoutGaps(line) {
  return line.points.filter(([, value]) => value !== null);
}

// A card with title, legend and curves; moving over it shows the values at a step.
function drawChart(chart) {
  const lines = chart.lines.map((line, position) => ({ ...line, points: withoutGaps(line), colour: colour(position) }));
  const steps = [...new Set(lines.flatMap((line) => line.points.map(([step]) => step)))].sort((a, b) => a - b);
  const legend = element("div", { class: "legend" });
  const values = lines.map((line) => {
    const value = element("b");
    legend.append(element("span", {}, element("i", { style: `background:${line.colour}` }), visible(line.label), value));
    return value;
  });
  const at = element("span");
  legend.append(at);
  const picture = vector("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": chart.title });
  const card = element("div", { class: "card chart" }, element("h3", {}, chart.title), legend, picture);
  if (chart.note) card.append(element("div", { class: "soft small" }, chart.note));
  if (steps.length === 0) return card;

  const stacked = chart.kind === "stack";
  if (stacked) stackUp(lines, steps);
  const tops = lines.flatMap((line) => line.points.map(([step, value]) => (stacked ? line.upper.get(step) : value)));
  let [low, high] = chart.range ?? [Math.min(...tops), Math.max(...tops)];
  low = Math.min(low, ...tops);
  high = Math.max(high, ...tops);
  if (stacked || (low > 0 && low < 0.6 * high)) low = 0;
  if (high === low) [low, high] = low === 0 ? [0, 1] : [low - Math.abs(low) / 2, high + Math.abs(high) / 2];
  const first = steps[0], last = steps.at(-1);
  const margin = stacked ? (WIDTH - LEFT - RIGHT) / (2 * (last - first + 1)) : 0;
  const room = WIDTH - LEFT - RIGHT - 2 * margin;
  const x = (step) => LEFT + margin + (last === first ? 0.5 : (step - first) / (last - first)) * room;
  const y = (value) => HEIGHT - BOTTOM - ((value - low) / (high - low)) * (HEIGHT - TOP - BOTTOM);

  for (const value of ticks(low, high, 4)) {
    picture.append(
      vector("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }),
      vector("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, number(value)),
    );
  }
  for (const step of last === first ? [first] : ticks(first, last, 6).filter(Number.isInteger)) {
    picture.append(vector("text", { x: x(step), y: HEIGHT - 7, "text-anchor": "middle" }, String(step)));
  }
  for (const line of lines) {
    picture.append(...(stacked ? bars(line, steps, x, y) : curve(line, x, y)));
  }
  const cursor = vector("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  picture.append(cursor);
  const show = (step) => {
    lines.forEach((line, position) => {
      const point = step === null ? line.points.at(-1) : line.points.find(([other]) => other === step);
      values[position].textContent = point ? number(point[1]) : "–";
    });
    at.textContent = step === null ? "" : `step ${step}`;
    cursor.setAttribute("visibility", step === null ? "hidden" : "visible");
    if (step !== null) for (const end of ["x1", "x2"]) cursor.setAttribute(end, x(step));
  };
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const here = ((event.clientX - box.left) / box.width) * WIDTH;
    show(steps.reduce((best, step) => (Math.abs(x(step) - here) < Math.abs(x(best) - here) ? step : best)));
  });
  picture.addEventListener("pointerleave", () => show(null));
  show(null);
  return card;
}

function stackUp(lines, steps) {
  const sum = new Map(steps.map((step) => [step, 0]));
  for (const line of lines) {
    const own = new Map(line.points);
    line.lower = new Map(sum);
    for (const step of steps) sum.set(step, sum.get(step) + (own.get(step) ?? 0));
    line.upper = new Map(sum);
  }
}

// One bar for each step; a part that only some steps have shows at those steps alone.
function bars(line, steps, x, y) {
  const room = (WIDTH - LEFT - RIGHT) / Math.max(steps.at(-1) - steps[0] + 1, 1);
  const width = Math.min(Math.max(0.8 * room, 1), 40);
  return line.points.map(([step]) => {
    const top = y(line.upper.get(step)), height = y(line.lower.get(step)) - top;
    return vector("rect", { x: x(step) - width / 2, width, y: top, height, fill: line.colour, "fill-opacity": 0.85 });
  });
}

function curve(line, x, y) {
  const points = line.points.map(([step, value]) => [x(step), y(value)]);
  const attributes = { fill: "none", stroke: line.colour, "stroke-width": 2, "stroke-linejoin": "round" };
  const parts = [vector("polyline", { ...attributes, points: points.map((point) => point.join(",")).join(" ") })];
  if (points.length <= 40) {
    parts.push(...points.map(([cx, cy]) => vector("circle", { cx, cy, r: 2.4, fill: line.colour })));
  }
  return parts;
}

// A rate between 0 and 1 over time, without axes.
function sparkline(points) {
  const picture = vector("svg", { class: "spark", viewBox: "0 0 110 24", "aria-hidden": true });
  if (points.length === 0) return picture;
  const first = points[0][0], last = points.at(-1)[0];
  const place = ([step, rate]) => [3 + (last === first ? 0.5 : (step - first) / (last - first)) * 104, 21 - 18 * rate];
  const places = points.map(place);
  const [cx, cy] = places.at(-1);
  picture.append(
    vector("line", { x1: 3, x2: 107, y1: 21, y2: 21, stroke: "var(--line)" }),
    vector("polyline", { points: places.map((p) => p.join(",")).join(" "), fill: "none", stroke: "var(--c0)", "stroke-width": 1.6 }),
    vector("circle", { cx, cy, r: 2.4, fill: "var(--c0)" }),
  );
  return picture;
}
