// The whole page, and its updates when it is served.

const PAUSE = 3000; // milliseconds between two requests for new data

function section(id, title, ...children) {
  return el("section", { id, "aria-labelledby": `${id}-title` },
    el("h2", { id: `${id}-title` }, title), children);
}

function masthead(data) {
  const ended = data.runs.filter((run) => run.ended === "finished").length;
  const diverged = data.runs.filter((run) => run.ended === "diverged").length;
  const left = data.runs.length - ended - diverged;
  const states = [[ended, "finished"], [diverged, "diverged"], [left, "not ended"]]
    .filter(([n]) => n).map(([n, text]) => (n === data.runs.length ? `all ${text}` : `${n} ${text}`));
  const what = `${plural(data.runs.length, "run")} of ${plural(data.groups.length, "configuration")}`;
  return el("header", {}, el("h1", {}, name(data.title)),
    el("p", { class: "lead" }, [what, ...states].join(", "), "."),
    data.live ? el("p", { id: "live", class: "quiet", role: "status" }, "Kept up to date.") : null);
}

function faults(data) {
  if (!data.faults.length) return null;
  const columns = [{ title: "file" }, { title: "reason" }];
  return el("section", { id: "faults", class: "faults", "aria-labelledby": "faults-title" },
    el("h2", { id: "faults-title" }, `${plural(data.faults.length, "file")} could not be read`),
    table("Files that could not be read", columns, el("tbody", {}, data.faults.map(({ where, reason }) =>
      row(columns, [name(where, { class: "code" }), name(reason)])))));
}

const footer = (data) => el("footer", { class: "quiet" },
  `Made by sortnet ${data.version}, ${moment(Date.parse(data.made) / 1000)}. `
  + "Long curves are reduced to the minimum and maximum of each interval.");

// A part is drawn again only if its content has changed: otherwise it keeps focus and scrolling.
const PARTS = [
  ["header", masthead, (d) => [d.title, d.runs.map((run) => run.ended)]],
  ["faults", faults, (d) => d.faults],
  ["comparison", comparison, (d) => d.comparisons],
  ["curves", null, null],
  ["results", results, (d) => [d.groups, d.runs.map((r) => [r.error, r.error5, r.steps, r.ended, r.events.at(-1)])]],
  ["claims", claims, (d) => d.claims],
  ["settings", differences, (d) => [d.differences, d.groups.map((group) => group.label)]],
  ["timeline", timeline, (d) => d.runs.map((run) => [run.id, run.events, run.ended, run.alive])],
  ["answers", answers, (d) => d.runs.map((run) => [run.id, run.confusion, run.mistakes.length])],
  ["cost", cost, (d) => d.cost],
  ["footer", footer, (d) => d.made],
];

// The same contents with only the runs of one dataset.
function within(data, set) {
  if (set === null) return data;
  const chosen = data.groups.map((group, g) => ({ group, g })).filter(({ group }) => group.data === set);
  const kept = chosen.flatMap(({ group }) => group.runs);
  return {
    ...data,
    runs: kept.map((i) => data.runs[i]),
    groups: chosen.map(({ group }) => ({ ...group, runs: group.runs.map((i) => kept.indexOf(i)) })),
    differences: { ...data.differences, values: chosen.map(({ g }) => data.differences.values[g]) },
  };
}

class Page {
  constructor(data) {
    this.state = { answers: null };
    this.only = null;
    this.filter = el("div", { class: "filter" });
    this.seen = new Map();
    this.places = new Map(PARTS.map(([part]) => [part, el("div", { class: "part" })]));
    this.curves = new Curves(data);
    this.places.get("curves").append(this.curves.element);
    this.nav = el("nav", { "aria-label": "Sections" });
    const [header, ...rest] = [...this.places.values()];
    document.body.prepend(el("main", {}, header, this.nav, this.filter, rest));
    this.update(data);
  }

  // The dataset to which the page is limited; null shows all.
  choose(data) {
    const sets = dataSets(data);
    if (!sets.includes(this.only)) this.only = null;
    if (sets.length < 2) return this.filter.replaceChildren();
    const choice = (set, text) => {
      const input = el("input", { type: "radio", name: "data", value: set ?? "", change: () => {
        this.only = set;
        this.update(this.all);
      } });
      input.checked = set === this.only;
      return el("label", {}, input, el("span", {}, name(text)));
    };
    return this.filter.replaceChildren(el("fieldset", { class: "segments" },
      el("legend", { class: "hidden" }, "Dataset"), choice(null, "all datasets"), sets.map((set) => choice(set, set))));
  }

  update(data) {
    const sets = JSON.stringify(dataSets(data));
    if (sets !== this.sets) this.choose(data);
    [this.all, this.sets] = [data, sets];
    const chosen = within(data, this.only);
    this.show(chosen);
    this.curves.update(chosen);
  }

  show(data) {
    for (const [part, make, inputs] of PARTS) {
      if (!make) continue;
      const key = JSON.stringify(inputs(data));
      if (this.seen.get(part) === key) continue;
      this.seen.set(part, key);
      this.replace(this.places.get(part), make(data, this.state));
    }
    const sections = [...document.querySelectorAll("main section[id]:not(#faults)")];
    this.nav.replaceChildren(el("ul", {}, sections.map((part) =>
      el("li", {}, el("a", { href: `#${part.id}` }, part.querySelector("h2").textContent)))));
  }

  replace(place, made) {
    const open = [...place.querySelectorAll("details[open]")].map((part) => part.dataset.key);
    place.replaceChildren(...(made ? [made] : []));
    for (const part of place.querySelectorAll("details")) part.open = open.includes(part.dataset.key);
  }

  async follow(stamp) {
    const told = (text) => {
      const live = document.getElementById("live");
      if (live.textContent !== text) live.textContent = text;
    };
    try {
      const answer = await fetch(`data.json?since=${encodeURIComponent(stamp)}`);
      if (answer.status === 200) {
        const data = await answer.json();
        stamp = data.stamp;
        this.update(data);
      } else if (answer.status !== 204) throw new Error(await answer.text());
      told("Kept up to date.");
    } catch (error) {
      told(`Not updated: ${error instanceof TypeError ? "the server has stopped" : error.message}.`);
    }
    setTimeout(() => this.follow(stamp), PAUSE);
  }
}

const data = JSON.parse(document.getElementById("data").textContent);
const shown = new Page(data);
if (data.live) setTimeout(() => shown.follow(data.stamp), PAUSE);
