function lastRate(points) {
  return points.length ? points.at(-1)[1] : null;
}

const TASK_COLUMNS = [
  { title: "task", kind: "name", key: (row) => row.task, cell: (row) => element("code", {}, visible(row.task)) },
  { title: "instruction (an example)", kind: "words", key: (row) => row.instruction, cell: (row) => visible(row.instruction) },
  { title: "validation", key: (row) => lastRate(row.validation) ?? -1, cell: (row) => rate(row.validation) },
  { title: "over time", key: (row) => gain(row.validation), cell: (row) => sparkline(row.validation) },
  { title: "training", key: (row) => lastRate(row.train) ?? -1, cell: (row) => rate(row.train) },
  { title: "over time", key: (row) => gain(row.train), cell: (row) => sparkline(row.train) },
  { title: "episodes", kind: "number", key: (row) => row.attempts, cell: (row) => row.attempts },
  { title: "answers", kind: "number", key: (row) => row.turns ?? -1, cell: (row) => number(row.turns, 2) },
  { title: "malformed", kind: "number", key: (row) => row.malformed ?? -1, cell: (row) => percent(row.malformed) },
  { title: "broken", kind: "number", key: (row) => row.broken, cell: (row) => row.broken },
];

// The same task in the run that this one is compared with, right of its own.
function comparedColumns(name) {
  const columns = [...TASK_COLUMNS];
  for (const series of ["train", "validation"]) {
    const title = `${series === "train" ? "training" : series} (${visible(name)})`;
    const key = (row) => lastRate(row.other[series]) ?? -1;
    columns.splice(series === "train" ? 6 : 4, 0, { title, key, cell: (row) => rate(row.other[series]) });
  }
  return columns;
}

function rate(points) {
  const last = lastRate(points);
  if (last === null) return "–";
  const width = `width:${Math.round(100 * last)}%`;
  return element("span", {}, element("span", { class: "bar" }, element("i", { style: width })), percent(last));
}

function gain(points) {
  return points.length ? points.at(-1)[1] - points[0][1] : -2;
}

// The sortable table of tasks; choosing a row calls `choose` with its task. `compared` names another run.
function drawTasks(tasks, compared, choose) {
  const columns = compared === null ? TASK_COLUMNS : comparedColumns(compared);
  const body = element("tbody");
  let sorted = 0, down = false;
  const heads = columns.map((column, position) =>
    element("th", { class: column.kind, tabindex: 0, onclick: () => sort(position), onkeydown: (event) => event.key === "Enter" && sort(position) }, column.title),
  );
  const compare = (one, other) => (typeof one === "string" ? one.localeCompare(other) : one - other);
  function sort(position) {
    down = position === sorted ? !down : columns[position].kind !== "words" && position > 0;
    sorted = position;
    draw();
  }
  function draw() {
    const key = columns[sorted].key;
    const rows = [...tasks].sort((a, b) => compare(key(a), key(b)) * (down ? -1 : 1));
    body.replaceChildren(
      ...rows.map((row) =>
        element("tr", { onclick: () => choose(row.task) }, columns.map((column) => element("td", { class: column.kind }, element("div", {}, column.cell(row))))),
      ),
    );
    heads.forEach((head, position) => {
      if (position === sorted) head.setAttribute("aria-sort", down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
  }
  draw();
  return element("table", {}, element("thead", {}, element("tr", {}, heads)), body);
}
