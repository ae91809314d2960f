// Elements and numbers. Text from a run only ever becomes a text node or an attribute's value.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false)
      element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

const el = (tag, attributes = {}, ...children) =>
  fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

// Numbers

const NONE = "–";
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
const minus = (text) => text.replaceAll("-", "−");
const fixed = (value, digits = 2) =>
  value === null || value === undefined ? NONE : minus(value.toFixed(digits));
const signed = (value, digits = 2) => (value > 0 ? "+" : "") + fixed(value, digits);
const count = (value) => (value === null ? NONE : value.toLocaleString("en"));
const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const exact = (value) => minus(String(value)); // as it is stored: five significant digits

function short(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e7 || size < 1e-4)) return minus(value.toExponential(3));
  return minus(String(Number(value.toPrecision(4))));
}

// With as many decimals as four digits of the mean have.
function around(mean, deviation) {
  const digits = clamp(3 - Math.floor(Math.log10(Math.abs(mean) || 1)), 0, 8);
  return digits > 6 ? `${short(mean)} ± ${short(deviation)}` : `${fixed(mean, digits)} ± ${fixed(deviation, digits)}`;
}

function spread(summary, digits = 2) {
  if (!summary) return NONE;
  const mean = fixed(summary.mean, digits);
  return summary.deviation === null ? mean : `${mean} ± ${fixed(summary.deviation, digits)}`;
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds < 10) return `${fixed(seconds, 1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 120) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

const CLOCK = { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit" };
const moment = (seconds) => {
  const date = new Date(seconds * 1000);
  return Number.isNaN(date.getTime()) ? NONE : date.toLocaleString("en-GB", CLOCK);
};

// Repeated parts

const name = (text, attributes = {}) => el("bdi", attributes, text);
const swatch = (group) =>
  svg("svg", { class: "swatch", viewBox: "0 0 28 8", "aria-hidden": "true" },
    svg("line", { x1: 1, x2: 27, y1: 4, y2: 4, ...stroke(group) }));

const COLOURS = 7;
const DASHES = [null, "9 3", "3 3", "9 3 2 3", "14 4"];
const stroke = (group) => ({
  class: `ink${group % COLOURS}`,
  "stroke-dasharray": DASHES[group % DASHES.length],
});

// A table that scrolls by itself where it is too wide. Columns: {title, number, class, note}.
// If `sortable`, a click on a heading sorts the rows, or the bodies if there are several.
function table(caption, columns, bodies, { sortable = false, ...attributes } = {}) {
  const sort = (i) => () => {
    const last = SORTED.get(caption);
    SORTED.set(caption, { column: i, down: last?.column === i && !last.down });
    order(inner, SORTED.get(caption));
  };
  const heading = columns.map(({ title, number, note }, i) =>
    el("th", { scope: "col", class: number ? "number" : null, title: note },
      sortable && title ? el("button", { type: "button", class: "sort", click: sort(i) }, title) : title));
  const inner = el("table", attributes,
    el("caption", { class: "hidden" }, caption),
    el("thead", {}, el("tr", {}, heading)),
    bodies);
  if (sortable && SORTED.has(caption)) order(inner, SORTED.get(caption));
  const around = el("div", { class: "scroll", role: "group", "aria-label": caption }, inner);
  reach.observe(around);
  return around;
}

const SORTED = new Map(); // by caption, so that a table that is drawn again keeps its order

// A cell's value is that of its <data>, or its text; numbers come before texts, nothing comes last.
function order(inner, { column, down }) {
  const bodies = [...inner.tBodies];
  const items = bodies.length > 1 ? bodies : [...(bodies[0]?.rows ?? [])];
  const keyed = items.map((item) => {
    const cell = (item.rows ? item.rows[0] : item).cells[column];
    const text = cell.querySelector("data")?.value ?? cell.textContent;
    const number = Number.parseFloat(text.replace("−", "-").replaceAll(",", ""));
    return { item, number, text, rank: text === NONE ? 2 : Number.isNaN(number) ? 1 : 0 };
  });
  const compare = (a, b) => (a.rank ? a.text.localeCompare(b.text) : a.number - b.number) * (down ? -1 : 1);
  keyed.sort((a, b) => a.rank - b.rank || compare(a, b));
  for (const { item } of keyed) item.parentNode.append(item);
  [...inner.tHead.rows[0].cells].forEach((cell, i) =>
    i === column ? cell.setAttribute("aria-sort", down ? "descending" : "ascending") : cell.removeAttribute("aria-sort"));
}

// What is shown as one text and sorted by another.
const valued = (value, content) => (value === null || value === undefined ? content : el("data", { value }, content));

// What is too wide can be reached with the keyboard, to be scrolled.
const reach = new ResizeObserver((entries) => {
  for (const { target } of entries)
    if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
    else target.removeAttribute("tabindex");
});

const row = (columns, cells, attributes = {}) =>
  el("tr", attributes, cells.map((cell, i) => {
    const side = columns[i].number ? "number" : null;
    return i === 0 ? el("th", { scope: "row", class: side }, cell) : el("td", { class: side }, cell);
  }));

const details = (key, summary, ...children) =>
  el("details", { "data-key": key }, el("summary", {}, summary), children);
