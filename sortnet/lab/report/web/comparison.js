// Comparisons: each variant beside the baseline, with interval, cost and verdict.

function comparison(data) {
  if (!data.comparisons.length) return null;
  return section("comparison", "Does it help?", data.comparisons.map(compared));
}

function compared(found) {
  const tested = found.outcomes.filter((outcome) => outcome.verdict !== "baseline");
  return el("div", { class: "compared" },
    el("h3", {}, name(found.title)),
    el("p", { class: "quiet" }, name(found.about)),
    tested.map((outcome) => el("p", {}, el("strong", {}, name(outcome.label), ": "), name(outcome.text), ".")),
    differencesTable(found.outcomes),
    found.outcomes.every((outcome) => outcome.cost) ? costTable(found.outcomes) : null);
}

function differencesTable(outcomes) {
  const columns = [{ title: "variant" }, { title: "test error (%)", number: true },
    { title: "difference (points)", number: true },
    { title: "95 % interval", number: true },
    { title: "p", number: true, note: "of the paired t-test, corrected by Holm's method" },
    { title: "verdict" }];
  return table("Errors and differences", columns, el("tbody", {}, outcomes.map((outcome) => {
    const error = outcome.error.mean === null ? NONE : spread(outcome.error);
    const lost = outcome.diverged ? ` (${outcome.diverged} diverged)` : "";
    const { mean = null, low = null, high = null, adjusted_p: p = null } = outcome.difference ?? {};
    return row(columns, [name(outcome.label), error + lost, mean === null ? NONE : signed(mean),
      low === null ? NONE : `[${signed(low)}, ${signed(high)}]`,
      p === null ? NONE : short(Number(p.toPrecision(2))), outcome.verdict]);
  })));
}

function costTable(outcomes) {
  const base = outcomes[0].cost;
  const columns = [{ title: "variant" }, { title: "parameters", number: true },
    { title: "training step", number: true }, { title: "inference", number: true },
    { title: "saved for backward", number: true }];
  const ratio = ({ median, low, high }) => `× ${fixed(median)} [${fixed(low)}, ${fixed(high)}]`;
  const time = (seconds) => `${fixed(1000 * seconds, 1)} ms`;
  return table("Cost", columns, el("tbody", {}, outcomes.map(({ label, cost }, i) => row(columns, i === 0
    ? [name(label), count(cost.parameters), time(cost.step), time(cost.inference), `${fixed(cost.saved / 1e6, 1)} MB`]
    : [name(label), `+${count(cost.parameters - base.parameters)}`, ratio(cost.step_ratio),
      ratio(cost.inference_ratio), `× ${fixed(cost.saved / base.saved)}`]))));
}
