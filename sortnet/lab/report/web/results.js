// Results beside the paper's, claims, differences of configuration, cost.

function standing(run) {
  const last = run.events.at(-1)?.event;
  if (run.ended === "diverged")
    return `diverged at step ${count(run.steps)}${run.where ? ` in ${run.where}` : ""}`;
  if (run.ended) return run.ended;
  if (last === "finish") return "no result";
  const part = run.total ? Math.floor((100 * run.steps) / run.total) : 0;
  return `${last === "stop" ? "stopped" : "running"}, ${part} %`;
}

const schedule = (scale) => (scale === 1 ? "full" : `× ${short(scale)}`);

const RESULTS = [
  { title: "configuration" },
  { title: "test error, %", number: true, note: "mean ± standard deviation over seeds" },
  { title: "" },
  { title: "against sum", number: true, note: "mean difference on the same seeds, with its 95 % interval and corrected p-value" },
  { title: "paper, %", number: true },
  { title: "against paper", number: true, note: "difference from the paper's number" },
  { title: "top-5, %", number: true },
  { title: "schedule", number: true, note: "length relative to the paper's" },
  { title: "steps", number: true },
  { title: "time", number: true },
];

// The columns that have values for these runs.
function useful(data) {
  const any = (test) => data.groups.some(test);
  const printed = any((group) => group.paper.length);
  const shown = [true, true, any((group) => group.error), any((group) => group.gain), printed, printed,
    any((group) => group.error5), true, true, true];
  return RESULTS.map((_, i) => i).filter((i) => shown[i]);
}

const dataSets = (data) => [...new Set(data.groups.map((group) => group.data))];

function results(data) {
  const used = useful(data);
  const sets = dataSets(data);
  const beside = data.groups.filter((group) => group.paper.length);
  const odd = beside.filter((group) => !group.paper[0].same_schedule);
  const scales = distinct(odd.map((group) => group.scale));
  const printed = beside.length > 0;
  const note = odd.length === 0 ? null
    : el("p", { class: "remark" }, `${odd.length === beside.length ? "All" : "Some"} of the paper’s numbers stand beside `
      + `runs with another schedule, of ${scales.map((s) => `${short(100 * s)} %`).join(", ")} of the paper’s length: `
      + "they are for orientation only.");
  return section("results", "Results",
    note,
    sets.map((set) => [
      sets.length > 1 ? el("h3", {}, name(set)) : null,
      table(`Results on ${set} by configuration and run`, used.map((i) => RESULTS[i]),
        data.groups.map((group, g) => (group.data === set ? configuration(data, group, g, used) : null)),
        { class: "results", sortable: true })]),
    el("p", { class: "quiet" }, "Errors on the test set, which is evaluated once, after training. "
      + "± is the standard deviation over seeds. Against the sum: the mean difference on the same seeds "
      + "and its 95 % interval, which is that of one comparison alone; p is that of a paired t-test, corrected by "
      + "Holm’s method for all comparisons on this page. Fewer than three seeds decide nothing; runs no better than chance are not compared."
      + (printed ? " In the strips: ● a seed, | the mean, ◇ the paper." : " In the strips: ● a seed, | the mean.")));
}

function configuration(data, group, g, used) {
  const gain = group.gain === null ? NONE : [signed(group.gain.mean), " ", el("small", { class: "under" }, certainty(group.gain))];
  const stacked = (texts) => (texts.length ? texts.map((text) => el("div", {}, text)) : NONE);
  const several = group.runs.length > 1;
  const only = data.runs[group.runs[0]];
  const ended = group.error?.runs ?? 0;
  const label = [swatch(g), name(group.label, { title: group.label }), several
    ? el("small", {}, ended === group.runs.length ? plural(ended, "seed") : `${ended} of ${plural(group.runs.length, "seed")} ended`)
    : el("small", {}, `seed ${only.seed}${only.ended === "finished" ? "" : `, ${standing(only)}`}`)];
  const line = (cells, attributes) => row(used.map((i) => RESULTS[i]), used.map((i) => cells[i]), attributes);
  const head = line([
    label, el("strong", {}, spread(group.error)), strip(data, group, g), gain,
    stacked(group.paper.map((p) => [p.value === null ? "no convergence" : fixed(p.value), el("small", {}, ` ${p.place}`)]).map((parts) => el("span", {}, parts))),
    stacked(group.error ? group.paper.filter((p) => p.value !== null).map((p) => signed(group.error.mean - p.value)) : []),
    fixed(group.error5?.mean), valued(group.scale, schedule(group.scale)), count(only.total),
    valued(group.seconds?.mean, duration(group.seconds?.mean)),
  ], { class: "group" });
  const each = several ? group.runs.map((i) => member(data.runs[i], line)) : [];
  return el("tbody", {}, head, each);
}

// How sure a difference is: its interval and p-value, or why there are none.
function certainty({ low, high, adjusted_p: p, pairs }) {
  if (p !== null) return `[${signed(low)}, ${signed(high)}], p ${p < 0.001 ? "< 0.001" : p.toPrecision(2)}`;
  return pairs < 3 ? plural(pairs, "seed") : `the same on all ${plural(pairs, "seed")}`;
}

function member(run, line) {
  const wrong = run.ended === "diverged" || standing(run) === "no result";
  return line([
    el("span", { title: run.id }, `seed ${run.seed}`),
    run.error === null ? el("em", { class: wrong ? "wrong-end" : null }, standing(run)) : fixed(run.error),
    "", "", "", "", fixed(run.error5), "", count(run.steps), duration(run.seconds),
  ], { class: "member", "data-run": run.id });
}

// Seeds, their mean and the paper's numbers on the scale that the runs of the same data share.
function strip(data, group, g) {
  if (!group.error) return "";
  const set = (other) => data.runs[other.runs[0]].settings.data;
  const alike = data.groups.filter((other) => other.error && set(other) === set(group));
  const values = alike.flatMap((other) => [
    ...other.runs.map((i) => data.runs[i].error), ...other.paper.map((p) => p.value)])
    .filter((value) => value !== null);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const x = (value) => 6 + (high > low ? (value - low) / (high - low) : 0.5) * 128;
  return svg("svg", { class: "strip", viewBox: "0 0 140 20", "aria-hidden": "true" },
    svg("line", { class: "grid", x1: 2, x2: 138, y1: 10, y2: 10 }),
    group.paper.filter((p) => p.value !== null).map((p) =>
      svg("path", { class: "paper", d: `M${x(p.value).toFixed(1)} 5l4 5l-4 5l-4 -5z` })),
    group.runs.map((i) => data.runs[i].error).filter((error) => error !== null).map((error) =>
      svg("circle", { class: `tone${g % COLOURS}`, cx: x(error), cy: 10, r: 3 })),
    svg("line", { class: `ink${g % COLOURS}`, x1: x(group.error.mean), x2: x(group.error.mean), y1: 3, y2: 17 }));
}

const SIGNS = { holds: "✓", "does not hold": "✗", "not decided": "?" };

function claims(data) {
  if (!data.claims.length) return null;
  const columns = [{ title: "claim" }, { title: "verdict" }, { title: "figures" }];
  const tally = Object.keys(SIGNS).map((verdict) =>
    [verdict, data.claims.filter((claim) => claim.verdict === verdict).length]);
  return section("claims", "Claims of the paper",
    el("p", { class: "remark" }, tally.filter(([, n]) => n).map(([verdict, n]) => `${n} ${verdict}`).join(", ") + "."),
    table("Claims of the paper and verdicts", columns, el("tbody", {}, data.claims.map((claim) =>
      row(columns, [
        [name(claim.text || claim.name), el("small", { class: "under" }, name([claim.name, claim.place].filter(Boolean).join(" · ")))],
        el("span", { class: `verdict v${Object.keys(SIGNS).indexOf(claim.verdict)}` },
          el("span", { "aria-hidden": "true" }, SIGNS[claim.verdict]), ` ${claim.verdict}`),
        name(claim.figures),
      ]))), { class: "claims", sortable: true }));
}

const WIDE = 6; // the largest number of settings with their own column

function frequent(texts) {
  const times = new Map();
  for (const text of texts) times.set(text, (times.get(text) ?? 0) + 1);
  return [...times].sort((a, b) => b[1] - a[1])[0]?.[0];
}

function differences(data) {
  const { names, values, same } = data.differences;
  if (!data.groups.length) return null;
  const label = (g) => [swatch(g), name(data.groups[g].label)];
  const columns = [{ title: "configuration" }, ...names.map((text) => ({ title: name(text, { class: "code" }) }))];
  const settings = [{ title: "setting" }, { title: "value" }];
  const brief = [{ title: "configuration" }, { title: "differs from the most frequent settings in" }];
  const usual = names.map((_, i) => frequent(values.map((cells) => cells[i])));
  const unusual = (cells) => names.flatMap((text, i) =>
    (cells[i] === usual[i] ? [] : [el("span", { class: "setting" }, name(text, { class: "code" }), " ", name(cells[i]))]));
  return section("settings", "Configurations",
    names.length === 0 ? el("p", { class: "quiet" }, "There is only one.")
      : names.length <= WIDE
        ? table("What differs between configurations", columns, el("tbody", {}, values.map((cells, g) =>
          row(columns, [label(g), ...cells.map((cell) => name(cell))]))), { sortable: true })
        : [table("What differs between configurations", brief, el("tbody", {}, values.map((cells, g) =>
          row(brief, [label(g), unusual(cells)]))), { class: "settings", sortable: true }),
        details("usual", "The most frequent settings", table("The most frequent settings", settings,
          el("tbody", {}, names.map((text, i) => row(settings, [name(text, { class: "code" }), name(usual[i])])))))],
    details("same", `${plural(same.length, "setting")} the same in all`,
      table("Settings that are the same in all", settings, el("tbody", {}, same.map(([key, value]) =>
        row(settings, [name(key, { class: "code" }), name(value)]))))));
}

function cost(data) {
  if (!data.cost.length) return null;
  return section("cost", "Cost",
    el("p", { class: "quiet" }, "Relative to the linear sum; medians, with 95 % intervals."),
    data.cost.map(({ title, heading, rows }, i) => {
      const columns = heading.map((text, k) => ({ title: text, number: k > 0 && text !== "" }));
      return details(`cost${i}`, title, table(title, columns,
        el("tbody", {}, rows.map((cells) => row(columns, cells))), { sortable: true }));
    }));
}
