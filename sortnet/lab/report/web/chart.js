// A chart of lines over steps. A line is {group, label, curve, faint, said(step) -> text | null}.

const TOP = 30;
const BOTTOM = 32;
const LEFT = 54;
const LABELS = 168; // the width of the names at the ends of lines

class Chart {
  constructor() {
    this.lines = [];
    this.view = null; // the steps that are shown, or all of them
    this.cursor = null;
    this.static = svg("g");
    this.moving = svg("g", { "aria-hidden": "true" });
    this.clip = svg("rect", { y: 0 });
    this.svg = svg("svg", {
      id: "chart", class: "chart", tabindex: "0", role: "application",
      "aria-roledescription": "line chart", "aria-describedby": "chart-keys",
    }, svg("defs", {}, svg("clipPath", { id: "inside" }, this.clip)), this.static, this.moving);
    this.tip = el("div", { class: "tip", hidden: true });
    this.spoken = el("p", { class: "hidden", "aria-live": "polite" });
    this.element = el("div", { class: "plot" }, this.svg, this.tip, this.spoken);
    listen(this);
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  // What is shown

  show(lines, { log, metric, unit, title }) {
    Object.assign(this, { lines, log, metric, unit });
    this.steps = distinct(lines.flatMap((line) => line.curve.x));
    this.whole = this.steps.length ? [this.steps[0], this.steps.at(-1)] : [0, 1];
    if (this.whole[0] === this.whole[1]) this.whole = [this.whole[0] - 1, this.whole[0] + 1];
    if (this.view && (this.view[0] >= this.whole[1] || this.view[1] <= this.whole[0])) this.view = null;
    this.svg.setAttribute("aria-label", title);
    this.draw();
  }

  range() {
    return this.view ?? this.whole;
  }

  heights() {
    const [from, to] = this.range();
    let low = Infinity;
    let high = -Infinity;
    for (const { curve } of this.lines)
      for (const i of drawn(curve, from, to, 400)) {
        if (curve.x[i] < from || curve.x[i] > to) continue;
        const ends = curve.low ? [curve.low[i], curve.high[i], curve.y[i]] : [curve.y[i]];
        for (const value of ends) {
          if (this.log && value <= 0) continue;
          low = Math.min(low, value);
          high = Math.max(high, value);
        }
      }
    if (low > high) return this.log ? [0.1, 1] : [0, 1];
    if (this.log) return low === high ? [low / 2, high * 2] : [low / 1.06, high * 1.06];
    if (low === high) return [low - Math.abs(low || 1) / 2, high + Math.abs(high || 1) / 2];
    const room = 0.04 * (high - low);
    return [low >= 0 && low < 0.35 * high ? 0 : low - room, high + room];
  }

  // Drawing

  draw() {
    const width = Math.round(this.element.clientWidth);
    if (width < 160 || !this.whole) return;
    const named = width >= 760 && this.lines.length > 0 && this.lines.length <= 10;
    this.width = width;
    this.height = Math.round(clamp(width * 0.44, 280, 440));
    this.right = width - (named ? LABELS : 10);
    this.bottom = this.height - BOTTOM;
    const [from, to] = this.range();
    const [low, high] = this.heights();
    const scale = this.log ? Math.log : (value) => value;
    this.x = (step) => LEFT + ((step - from) / (to - from)) * (this.right - LEFT);
    this.y = (value) => {
      if (this.log && value <= 0) return this.bottom + 4;
      const part = (scale(value) - scale(low)) / (scale(high) - scale(low));
      return this.bottom - part * (this.bottom - TOP);
    };
    this.svg.setAttribute("viewBox", `0 0 ${width} ${this.height}`);
    fill(this.clip, { x: LEFT, width: this.right - LEFT, height: this.height }, []);
    this.static.replaceChildren(
      this.axes(low, high),
      svg("g", { class: this.lines.length > 12 ? "many" : null, "clip-path": "url(#inside)" }, this.lines.map((line) => this.line(line))),
      named ? this.names() : "");
    this.point();
  }

  axes(low, high) {
    const [from, to] = this.range();
    const across = this.log ? logarithmic(low, high) : ticks(low, high, 5);
    const along = ticks(from, to, (this.right - LEFT) / 80).filter((step) => this.x(step) < this.right - 46);
    return svg("g", { class: "axes", "aria-hidden": "true" },
      across.map((value) => [
        svg("line", { class: "grid", x1: LEFT, x2: this.right, y1: this.y(value), y2: this.y(value) }),
        svg("text", { x: LEFT - 8, y: this.y(value) + 4, "text-anchor": "end" }, short(value)),
      ]),
      along.map((step) => svg("text", {
        x: this.x(step), y: this.bottom + 20, "text-anchor": "middle",
      }, count(step))),
      svg("text", { class: "what", x: 4, y: 14 }, capital(this.unit.replace(/,$/, ""))),
      svg("text", { x: this.right, y: this.bottom + 20, "text-anchor": "end" }, "step"),
      svg("line", { class: "base", x1: LEFT, x2: this.right, y1: this.bottom, y2: this.bottom }));
  }

  path(curve, values) {
    const [from, to] = this.range();
    const places = drawn(curve, from, to, this.right - LEFT);
    return places.map((i) => `${this.x(curve.x[i]).toFixed(1)} ${this.y(values[i]).toFixed(1)}`);
  }

  line({ group, curve, faint, id }) {
    const line = (points, extra) => points.length > 1
      ? svg("path", { d: `M${points.join("L")}`, fill: "none", ...extra })
      : svg("path", { d: `M${points[0] ?? "-9 -9"}h0.1`, fill: "none", ...extra });
    const parts = svg("g", { class: "line", "data-group": group, "data-line": id });
    if (curve.low) {
      const around = [...this.path(curve, curve.low), ...this.path(curve, curve.high).reverse()];
      if (around.length > 2)
        parts.append(svg("path", { class: `band tone${group % COLOURS}`, d: `M${around.join("L")}Z` }));
    }
    const ink = stroke(group);
    if (faint) parts.append(line(this.path(faint, faint.y), { class: `faint ${ink.class}` }));
    parts.append(line(this.path(curve, curve.y), { ...ink, class: `curve ${ink.class}` }));
    return parts;
  }

  // Names at the ends of lines: in the margin, moved apart, or at the end of a shorter line.
  names() {
    const [, to] = this.range();
    const edge = this.right;
    const ends = this.lines.map((line) => {
      const last = Math.min(line.curve.x.at(-1), to);
      const value = at(line.curve, last)?.value ?? line.curve.y[0];
      return { line, x: this.x(last), from: clamp(this.y(value), TOP, this.bottom) };
    }).sort((a, b) => a.from - b.from);
    const far = ends.filter((end) => end.x >= edge - 90);
    far.forEach((end, i) => {
      end.to = Math.max(end.from, i ? far[i - 1].to + 16 : TOP + 4);
    });
    let floor = this.bottom;
    for (const end of [...far].reverse()) {
      end.to = Math.min(end.to, floor);
      floor = end.to - 16;
    }
    const text = (line, x, y) => svg("text", { x, y },
      line.label.length > 21 ? `${line.label.slice(0, 20)}…` : line.label);
    return svg("g", { class: "names", "aria-hidden": "true" },
      ends.filter((end) => !far.includes(end)).map(({ line, x, from }) => text(line, x + 7, from + 4)),
      far.map(({ line, x, from, to: y }) => [
        svg("path", { class: `leader ink${line.group % COLOURS}`, fill: "none",
          d: `M${(x + 3).toFixed(1)} ${from.toFixed(1)}H${edge + 3}L${edge + 11} ${y.toFixed(1)}h4` }),
        text(line, edge + 19, y + 4),
      ]));
  }

  // The step that is pointed at

  point(speak = false) {
    const [from, to] = this.range();
    const step = this.cursor;
    if (step === null || step < from || step > to || !this.lines.length) {
      this.moving.replaceChildren(...(this.selected ? [this.selected] : []));
      this.tip.hidden = true;
      return;
    }
    const read = this.lines
      .map((line) => ({ line, found: at(line.curve, step), text: line.said(step) }))
      .filter(({ found, text }) => found && text !== null)
      .sort((a, b) => b.found.value - a.found.value);
    const x = this.x(step);
    this.moving.replaceChildren(
      svg("line", { class: "hair", x1: x, x2: x, y1: TOP, y2: this.bottom }),
      ...read.map(({ line, found }) => svg("circle", {
        class: `dot tone${line.group % COLOURS}`, cx: x, cy: this.y(found.value), r: 3.5,
      })),
      ...(this.selected ? [this.selected] : []));
    this.describe(step, read, x);
    if (speak) this.spoken.textContent = this.tip.innerText;
  }

  describe(step, read, x) {
    const most = 12;
    this.tip.replaceChildren(
      el("p", {}, `${capital(this.unit)} at step ${count(step)}`),
      el("ul", {}, read.slice(0, most).map(({ line, text }) =>
        el("li", {}, swatch(line.group), name(line.label), el("b", {}, text)))),
      read.length > most ? el("p", {}, `and ${read.length - most} more`) : "");
    this.tip.hidden = false;
    const wide = this.tip.offsetWidth;
    const left = x + 14 + wide < this.width ? x + 14 : x - 14 - wide;
    this.tip.style.left = `${clamp(left, 0, Math.max(0, this.width - wide))}px`;
    this.tip.style.top = `${TOP}px`;
  }

  nearest(step) {
    const i = place(this.steps, step);
    const [before, after] = [this.steps[i - 1], this.steps[i]];
    if (before === undefined) return after ?? null;
    return after === undefined || step - before < after - step ? before : after;
  }

  // Zooming

  look(from, to) {
    const [start, end] = this.whole;
    const span = clamp(to - from, Math.min(2, end - start), end - start);
    const left = clamp(from, start, end - span);
    this.view = span >= end - start ? null : [left, left + span];
    this.draw();
    this.changed?.();
  }

  zoom(factor, around = null) {
    const [from, to] = this.range();
    const inside = around !== null && around >= from && around <= to;
    const middle = inside ? around : (from + to) / 2;
    this.look(middle - (middle - from) * factor, middle + (to - middle) * factor);
  }

  shift(part) {
    const [from, to] = this.range();
    this.look(from + part * (to - from), to + part * (to - from));
  }

  reset() {
    this.look(...this.whole);
  }
}
