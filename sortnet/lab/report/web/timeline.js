// When runs started, stopped and resumed.

const MARKS = {
  __proto__: null, // an event may have any name
  start: "start", resume: "start", stop: "stop", finish: "finish",
  nonfinite: "failure", rollback: "failure", damaged: "failure",
};
const SAID = {
  __proto__: null,
  start: "started", resume: "resumed", stop: "was stopped", finish: "finished",
  nonfinite: "loss or gradient not finite", rollback: "rolled back to a checkpoint",
  damaged: "a checkpoint was damaged",
};
const QUIET = 16; // the largest number of runs that are shown even without interruptions

// The intervals in which a run was training: {from, to, open}, open if its end is unknown.
function stretches(run) {
  const found = [];
  let from = null;
  for (const { time, event } of run.events) {
    const mark = MARKS[event];
    if (mark === "start") {
      if (from !== null) found.push({ from, to: time, open: true });
      from = time;
    } else if ((mark === "stop" || mark === "finish") && from !== null) {
      found.push({ from, to: time, open: false });
      from = null;
    }
  }
  const last = run.events.at(-1);
  if (from !== null) {
    const to = run.ended === "diverged" ? last.time : Math.max(run.alive ?? 0, last.time);
    found.push({ from, to, open: !run.ended });
  }
  return found;
}

function timeline(data) {
  const eventful = (run) => run.events.some(({ event }) => !["start", "finish"].includes(event));
  const ordered = data.groups.flatMap((group) => group.runs);
  const timed = ordered.map((i) => ({ run: data.runs[i], i })).filter(({ run }) => run.events.length);
  if (!timed.length) return null;
  const shown = timed.length <= QUIET ? timed : timed.filter(({ run }) => eventful(run)).slice(0, 60);
  const hidden = timed.length - shown.length;
  const columns = [{ title: "time" }, { title: "run" }, { title: "event" }, { title: "step", number: true }, { title: "details" }];
  const events = timed.flatMap(({ run }) => run.events.map((event) => ({ run, ...event })))
    .sort((a, b) => a.time - b.time);
  const said = ({ event }) => SAID[event] ?? event;
  const more = (entry) => Object.entries(entry.details).map(([key, value]) => `${key} ${value}`).join(", ");
  return section("timeline", "Timeline",
    shown.length ? bars(data, shown) : null,
    hidden ? el("p", { class: "quiet" }, `${plural(hidden, "run")} without an interruption are not drawn.`) : null,
    el("p", { class: "quiet key" }, [["stop", "stopped"], ["start", "started or resumed"], ["failure", "failure"], ["finish", "finished"]]
      .map(([mark, text]) => el("span", {}, svg("svg", { viewBox: "0 0 14 14", "aria-hidden": "true" }, sign(mark, 7, 7)), text))),
    details("events", plural(events.length, "event"), table("Events", columns,
      el("tbody", {}, events.slice(-500).map((entry) => row(columns, [
        moment(entry.time), name(entry.run.id), name(said(entry)),
        entry.step === null ? NONE : count(entry.step), name(more(entry)),
      ]))))));
}

function sign(mark, x, y) {
  if (mark === "stop") return svg("rect", { class: "mark stop", x: x - 3.5, y: y - 3.5, width: 7, height: 7 });
  if (mark === "failure") return svg("path", { class: "mark failure", d: `M${x} ${y - 5}l5 9h-10z` });
  if (mark === "finish") return svg("circle", { class: "mark finish", cx: x, cy: y, r: 4 });
  return svg("path", { class: "mark start", d: `M${x - 3} ${y - 4.5}l7 4.5l-7 4.5z` });
}

function bars(data, shown) {
  const groups = new Map(data.groups.flatMap((group, g) => group.runs.map((i) => [i, g])));
  const all = shown.map(({ run, i }) => ({ run, g: groups.get(i), parts: stretches(run) }));
  const times = all.flatMap(({ run, parts }) =>
    [...run.events.map((event) => event.time), ...parts.map((part) => part.to)]);
  const low = times.reduce((a, b) => Math.min(a, b));
  const span = Math.max(1, times.reduce((a, b) => Math.max(a, b)) - low);
  const x = (time) => 12 + ((time - low) / span) * 976;
  return el("div", { class: "bars" },
    el("ol", {}, all.map(({ run, g, parts }) => {
      const drawing = svg("svg", { viewBox: "0 0 1000 20", preserveAspectRatio: "none", "aria-hidden": "true" },
        parts.map(({ from, to, open }) => svg("rect", {
          class: `tone${g % COLOURS}${open ? " open" : ""}`, x: x(from), y: 7,
          width: Math.max(3, x(to) - x(from)), height: 6, rx: 2,
        })));
      const marks = run.events.filter(({ event }) => MARKS[event]).map(({ event, time, step }) => {
        const mark = el("span", { class: "at", title: `${SAID[event]} at step ${count(step)}, ${moment(time)}` },
          svg("svg", { viewBox: "0 0 14 14", "aria-hidden": "true" }, sign(MARKS[event], 7, 7)));
        mark.style.left = `${x(time) / 10}%`;
        return mark;
      });
      const times = run.events.filter(({ event }) => event === "resume").length;
      const told = `${standing(run)}${times ? `, resumed ${times === 1 ? "once" : `${times} times`}` : ""}`;
      return el("li", {}, el("span", { class: "who" }, name(run.id), el("small", {}, told)),
        el("span", { class: "bar" }, drawing, marks));
    })),
    el("p", { class: "ends quiet" }, el("span", {}, moment(low)), el("span", {}, duration(span)), el("span", {}, moment(low + span))));
}
