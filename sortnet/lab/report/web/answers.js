// The mistakes of a run: its confusion matrix, and the most confident mistakes.

const CELLS = 20; // the largest number of classes for which the matrix shows its numbers
const WORST = 12;

function answers(data, state) {
  const able = data.groups.flatMap((group) => group.runs.map((i) => data.runs[i])).filter((run) => run.confusion || run.mistakes.length);
  if (!able.length) return null;
  const body = el("div");
  const show = () => {
    const run = able.find((other) => other.id === state.answers) ?? able[0];
    const classes = data.classes[run.classes];
    body.replaceChildren(
      ...(run.confusion ? [matrix(run, classes)] : []),
      ...(run.mistakes.length ? [mistakes(run, classes)] : []));
  };
  const choice = el("select", { id: "answers-run", change: () => {
    state.answers = choice.value;
    show();
  } }, able.map((run) => el("option", { value: run.id }, `${run.title}, seed ${run.seed} (${run.id})`)));
  choice.value = able.some((run) => run.id === state.answers) ? state.answers : able[0].id;
  show();
  return section("answers", "Right and wrong",
    el("label", { class: "pick" }, "Run", choice), body);
}

function matrix(run, classes) {
  const pairs = run.confusion.flatMap((counts, i) => counts.map((n, j) => ({ n, i, j })))
    .filter(({ n, i, j }) => n > 0 && i !== j)
    .sort((a, b) => b.n - a.n);
  const columns = [{ title: "class" }, { title: "predicted" }, { title: "images", number: true }];
  return el("div", { class: "matrix" },
    el("div", { class: "whole" }, classes.length <= CELLS ? cells(run, classes) : picture(run, classes)),
    el("div", { class: "worst" }, el("h3", {}, "Most frequent mistakes"),
      pairs.length ? table("Most frequent mistakes", columns, el("tbody", {}, pairs.slice(0, WORST).map(({ n, i, j }) =>
        row(columns, [name(classes[i]), name(classes[j]), count(n)]))))
        : el("p", { class: "quiet" }, "None.")));
}

// The share of a row's images; the diagonal has another color than the mistakes.
function tone(cell, counts, i, j) {
  const all = counts.reduce((a, b) => a + b, 0) || 1;
  const part = counts[j] / all;
  return { right: i === j, strength: i === j ? 0.75 * part : Math.min(0.85, Math.sqrt(part) * 1.3) };
}

function cells(run, classes) {
  const long = classes.some((text) => text.length > 3);
  const columns = [{ title: el("small", {}, "class ↓ predicted →") },
    ...classes.map((text) => ({ title: el("span", { class: long ? "turned" : null }, name(text)), number: true }))];
  const body = run.confusion.map((counts, i) => {
    const line = row(columns, [name(classes[i]), ...counts.map((n) => (n ? count(n) : "·"))]);
    [...line.children].slice(1).forEach((cell, j) => {
      const { right, strength } = tone(cell, counts, i, j);
      cell.className = `number ${right ? "right" : "wrong"}${counts[j] ? "" : " nil"}`;
      cell.style.setProperty("--strength", `${Math.round(strength * 100)}%`);
    });
    return line;
  });
  return table("Confusion matrix: a row for each class, a column for each prediction",
    columns, el("tbody", {}, body), { class: "confusion" });
}

function picture(run, classes) {
  const n = classes.length;
  const size = Math.max(1, Math.floor(600 / n));
  const canvas = el("canvas", { width: n * size, height: n * size, role: "img",
    "aria-label": `Confusion matrix of ${n} classes; the most frequent mistakes are listed beside it` });
  const said = el("p", { class: "quiet said" }, "Rows: true class. Columns: predicted class.");
  const paint = () => {
    const style = getComputedStyle(document.documentElement);
    const [right, wrong] = ["--c0", "--c1"].map((key) => style.getPropertyValue(key));
    const context = canvas.getContext("2d");
    context.clearRect(0, 0, canvas.width, canvas.height);
    run.confusion.forEach((counts, i) => counts.forEach((value, j) => {
      if (!value) return;
      const shade = tone(null, counts, i, j);
      context.globalAlpha = Math.max(0.1, shade.strength);
      context.fillStyle = shade.right ? right : wrong;
      context.fillRect(j * size, i * size, size, size);
    }));
  };
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const j = clamp(Math.floor(((event.clientX - box.left) / box.width) * n), 0, n - 1);
    const i = clamp(Math.floor(((event.clientY - box.top) / box.height) * n), 0, n - 1);
    said.textContent = `${plural(run.confusion[i][j], "image")} of ${classes[i]} predicted as ${classes[j]}`;
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  queueMicrotask(paint);
  return el("figure", {}, canvas, said);
}

function mistakes(run, classes) {
  const less = run.mistakes.length < run.mistakes_kept;
  return el("div", { class: "mistakes" }, el("h3", {}, "Most confident mistakes"),
    less ? el("p", { class: "quiet" }, `${run.mistakes.length} of the ${run.mistakes_kept} stored with the run; more would make the page too large.`) : null,
    el("ul", {}, run.mistakes.map((mistake) => {
      const is = classes[mistake.label];
      const taken = classes[mistake.as];
      const image = el("img", { alt: `test image ${mistake.image}: ${is}, predicted as ${taken}`,
        src: `data:image/png;base64,${mistake.png}` });
      return el("li", {}, image, el("span", {}, name(taken), el("small", {}, ` ${fixed(100 * mistake.sure, 1)} %`)),
        el("small", {}, "true class: ", name(is)));
    })));
}
