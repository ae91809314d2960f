// The page as a whole, and how it stays up to date when it is served.

const PAUSE = 3000; // milliseconds between two looks at what is new

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
  + "Curves of many points are thinned to the least and largest value of each stretch.");

// What a part shows decides whether it is made anew: what did not change keeps focus and scrolling.
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

class Page {
  constructor(data) {
    this.state = { answers: null };
    this.seen = new Map();
    this.places = new Map(PARTS.map(([part]) => [part, el("div", { class: "part" })]));
    this.curves = new Curves(data);
    this.places.get("curves").append(this.curves.element);
    this.nav = el("nav", { "aria-label": "Sections" });
    const [header, ...rest] = [...this.places.values()];
    document.body.prepend(el("main", {}, header, this.nav, rest));
    this.show(data);
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
        this.show(data);
        this.curves.update(data);
      } else if (answer.status !== 204) throw new Error(await answer.text());
      told("Kept up to date.");
    } catch (error) {
      told(`No news: ${error instanceof TypeError ? "the server has stopped" : error.message}.`);
    }
    setTimeout(() => this.follow(stamp), PAUSE);
  }
}

const data = JSON.parse(document.getElementById("data").textContent);
const shown = new Page(data);
if (data.live) setTimeout(() => shown.follow(data.stamp), PAUSE);
