// The section of curves: what is drawn, of which runs, and how.

const ROWS = 13; // of the table of values
const COLUMNS = 12;
const LISTED = 8; // configurations named as having no curve
const KEYS = "Drag over a range to zoom in, double-click to see all. With the chart in focus: "
  + "wheel or + and − zoom, arrow keys show values, Shift and arrow keys move, Esc shows all.";

class Curves {
  constructor(data) {
    this.data = data;
    const drawable = data.metrics.filter((metric) => data.runs.some((run) => run.curves[metric]));
    const seeds = data.groups.some((group) => group.runs.length > 1);
    this.state = { metric: drawable[0] ?? data.metrics[0], smoothing: 0, log: false, mean: seeds };
    this.off = new Set();
    this.chart = new Chart();
    this.chart.changed = () => this.tabulate();
    this.legend = el("div", { class: "legend" });
    this.values = el("div");
    this.empty = el("p", { class: "quiet" });
    this.table = details("values", "The curves as a table", this.values);
    this.table.addEventListener("toggle", () => this.tabulate());
    this.element = el("section", { id: "curves", "aria-labelledby": "curves-title" },
      el("h2", { id: "curves-title" }, "Curves"),
      this.metrics(), this.controls(), this.chart.element, this.empty,
      el("p", { id: "chart-keys", class: "quiet keys" }, KEYS),
      this.legend, this.table);
    this.update(data);
  }

  // Controls

  metrics() {
    this.choices = this.data.metrics.map((metric) => {
      const input = el("input", {
        type: "radio", name: "metric", value: metric, change: () => this.set({ metric }),
      });
      input.checked = metric === this.state.metric;
      return el("label", {}, input, el("span", {}, metric));
    });
    return el("fieldset", { class: "segments" }, el("legend", { class: "hidden" }, "Metric"),
      this.choices);
  }

  controls() {
    const tick = (key, text) => {
      const input = el("input", { type: "checkbox", id: `set-${key}`,
        change: () => this.set({ [key]: input.checked }) });
      input.checked = this.state[key];
      return el("label", { class: "tick" }, input, text);
    };
    const shown = el("output", { for: "smoothing" }, "off");
    const slider = el("input", { type: "range", id: "smoothing", min: 0, max: 100, value: 0,
      input: () => {
        const smoothing = Number(slider.value);
        shown.textContent = smoothing ? `${smoothing} %` : "off";
        this.set({ smoothing });
      } });
    const button = (text, label, act) =>
      el("button", { type: "button", "aria-label": label, title: label, click: act }, text);
    return el("div", { class: "controls" },
      el("label", { class: "slide" }, "Smoothing", slider, shown),
      tick("log", "Log scale"), tick("mean", "Mean and spread of seeds"),
      el("span", { class: "zoom" },
        button("+", "Zoom in", () => this.chart.zoom(0.6)),
        button("−", "Zoom out", () => this.chart.zoom(1 / 0.6)),
        button("All steps", "Show all steps", () => this.chart.reset())));
  }

  set(change) {
    Object.assign(this.state, change);
    this.redraw();
  }

  // Which runs

  update(data) {
    this.data = data;
    this.decoded = data.runs.map((run) => Object.fromEntries(
      Object.entries(run.curves).map(([metric, packed]) => [metric, unpack(packed)])));
    const runs = JSON.stringify(data.groups.map((group) =>
      [group.label, group.runs.map((i) => [data.runs[i].id, data.runs[i].seed])]));
    if (runs !== this.known) this.list();
    this.known = runs;
    this.redraw();
  }

  list() {
    const { groups, runs } = this.data;
    this.boxes = [];
    const all = (on) => {
      this.off = new Set(on ? [] : runs.map((run) => run.id));
      this.redraw();
    };
    const one = (i, label, text) => {
      const id = runs[i].id;
      const input = el("input", { type: "checkbox", "data-run": id, "aria-label": label,
        change: () => this.toggle([id], input.checked) });
      this.boxes.push({ input, ids: [id] });
      return el("label", { class: "seed", title: id }, input, el("span", {}, text));
    };
    this.legend.replaceChildren(
      el("div", { class: "head" }, el("h3", {}, plural(runs.length, "run")),
        el("button", { type: "button", click: () => all(true) }, "All"),
        el("button", { type: "button", click: () => all(false) }, "None")),
      ...dataSets(this.data).flatMap((set, _, sets) => [
        sets.length > 1 ? el("h4", {}, name(set)) : "",
        el("ul", {}, groups.map((group, g) => (group.data === set ? this.item(group, g, one) : null)))]));
  }

  item(group, g, one) {
    const { runs } = this.data;
    const ids = group.runs.map((i) => runs[i].id);
    const input = el("input", { type: "checkbox", "data-group": g,
      change: () => this.toggle(ids, input.checked) });
    this.boxes.push({ input, ids });
    const seeds = group.runs.map((i) =>
      one(i, `${group.label}, seed ${runs[i].seed}`, String(runs[i].seed)));
    return el("li", { pointerenter: () => this.emphasise(g), pointerleave: () => this.emphasise(null) },
      el("label", { class: "tick" }, input, swatch(g), name(group.label)),
      ids.length > 1 ? el("span", { class: "seeds" }, el("small", {}, "seeds"), seeds) : null);
  }

  toggle(ids, on) {
    for (const id of ids) on ? this.off.delete(id) : this.off.add(id);
    this.redraw();
  }

  emphasise(group) {
    for (const line of this.chart.svg.querySelectorAll(".line"))
      line.classList.toggle("aside", group !== null && line.dataset.group !== String(group));
  }

  // What is drawn

  lines() {
    const { groups, runs } = this.data;
    const { metric, mean } = this.state;
    return groups.flatMap((group, g) => {
      const own = group.runs.filter((i) => this.decoded[i][metric] && !this.off.has(runs[i].id));
      const curves = own.map((i) => this.decoded[i][metric]);
      if (mean && own.length > 1) return [this.mean(g, group.label, curves)];
      const several = group.runs.length > 1;
      return own.map((i, k) => this.single(g, i, curves[k],
        several ? `${group.label}, seed ${runs[i].seed}` : group.label));
    });
  }

  reach() {
    const longest = Math.max(1, ...this.data.runs.map((run) => run.steps));
    return 0.1 * longest * (this.state.smoothing / 100) ** 2;
  }

  single(group, i, raw, label) {
    const smoothed = this.state.smoothing > 0;
    const curve = smoothed ? smooth(raw, this.reach()) : raw;
    const said = (step, brief = false) => {
      const found = at(raw, step);
      if (!found) return null;
      const value = found.exact ? exact(found.value) : `≈ ${short(found.value)}`;
      return smoothed && !brief ? `${value} (smooth ${short(at(curve, step).value)})` : value;
    };
    return { group, id: this.data.runs[i].id, label, curve, said, faint: smoothed ? raw : null };
  }

  mean(group, label, curves) {
    const smoothed = this.state.smoothing > 0;
    const used = smoothed ? curves.map((curve) => smooth(curve, this.reach())) : curves;
    const curve = average(used);
    const said = (step) => {
      const values = used.map((own) => at(own, step)).filter(Boolean);
      if (!values.length) return null;
      const { y: [centre], high: [high] } = average(values.map(({ value }) => ({ x: [0], y: [value] })));
      return values.length < 2 ? short(centre) : around(centre, high - centre);
    };
    return { group, id: `mean ${group}`, label, curve, said, faint: null };
  }

  redraw() {
    const { metric, log, mean } = this.state;
    const lines = this.lines();
    for (const { input, ids } of this.boxes) {
      const on = ids.filter((id) => !this.off.has(id)).length;
      input.checked = on === ids.length;
      input.indeterminate = on > 0 && on < ids.length;
    }
    const what = plural(lines.length, mean ? "curve" : "run");
    const unit = metric.endsWith("error") ? `${metric}, %,` : metric;
    this.chart.show(lines, { log, metric, unit, title: `${metric} over steps, ${what}` });
    const drawable = this.data.runs.some((run) => run.curves[metric]);
    this.empty.textContent = drawable && !lines.length ? "No run is selected." : this.lacking(metric);
    this.tabulate();
  }

  // Which runs cannot be drawn, and why.
  lacking(metric) {
    const { groups, runs } = this.data;
    const without = groups.filter((group) => !group.runs.some((i) => runs[i].curves[metric]));
    if (!without.length) return "";
    const reason = metric.startsWith("validation") ? ": trained without a validation split, or too short" : "";
    if (without.length === groups.length) return `No run has a ${metric}${reason}.`;
    const names = without.slice(0, LISTED).map((group) => group.label);
    const more = without.length - names.length;
    return `No ${metric}${reason}: ${names.join("; ")}${more ? `; and ${more} more` : ""}.`;
  }

  // The same as numbers

  tabulate() {
    if (!this.table.open) return this.values.replaceChildren();
    const { chart } = this;
    const [from, to] = chart.range();
    const lines = chart.lines.slice(0, COLUMNS);
    const inside = chart.steps.filter((step) => step >= from && step <= to);
    const steps = distinct(inside, ROWS);
    const columns = [{ title: "step", number: true },
      ...lines.map((line) => ({ title: name(line.label), number: true }))];
    const left = chart.lines.length - lines.length;
    return this.values.replaceChildren(
      table(`${this.state.metric} at steps ${count(from)} to ${count(to)}`, columns,
        el("tbody", {}, steps.map((step) =>
          row(columns, [count(step), ...lines.map((line) => line.said(step, true) ?? NONE)])))),
      left > 0 ? el("p", { class: "quiet" }, `${plural(left, "more line is", "more lines are")} drawn; deselect runs to see them here.`) : "");
  }
}
