// Pointer, wheel and keys on a chart.

function listen(chart) {
  const where = (event) => event.clientX - chart.svg.getBoundingClientRect().left;
  const step = (x) => {
    const [from, to] = chart.range();
    return from + ((clamp(x, LEFT, chart.right) - LEFT) / (chart.right - LEFT)) * (to - from);
  };
  let start = null;
  const on = (type, act, options) => chart.svg.addEventListener(type, act, options);
  on("pointerdown", (event) => {
    if (event.button !== 0 || where(event) > chart.right) return;
    start = where(event);
    chart.svg.setPointerCapture(event.pointerId);
  });
  on("pointermove", (event) => {
    const x = where(event);
    chart.selected = start !== null && Math.abs(x - start) > 5 ? selection(chart, start, x) : null;
    chart.cursor = chart.nearest(step(x));
    chart.point();
  });
  on("pointerup", (event) => {
    const chosen = chart.selected && [step(start), step(where(event))].sort((a, b) => a - b);
    start = chart.selected = null;
    if (chosen) chart.look(...chosen);
    chart.cursor = chart.nearest(step(where(event)));
    chart.point();
  });
  const leave = () => {
    start = chart.selected = chart.cursor = null;
    chart.point();
  };
  on("pointercancel", leave);
  on("pointerleave", leave);
  on("blur", leave);
  on("dblclick", () => chart.reset());
  on("wheel", (event) => {
    // scrolling the page past a chart should not zoom it: the wheel zooms only with focus
    if (document.activeElement !== chart.svg && !event.ctrlKey) return;
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) chart.shift(event.deltaX / 1000);
    else chart.zoom(Math.exp(clamp(event.deltaY, -200, 200) / 400), step(where(event)));
  }, { passive: false });
  on("keydown", (event) => press(chart, event));
}

function selection(chart, a, b) {
  const [left, right] = [a, b].map((x) => clamp(x, LEFT, chart.right)).sort((m, n) => m - n);
  return svg("rect", {
    class: "selection", x: left, width: right - left, y: TOP, height: chart.bottom - TOP,
  });
}

function press(chart, event) {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  const [from, to] = chart.range();
  const move = (sign) => {
    if (event.shiftKey) return chart.shift(sign / 4);
    const now = chart.cursor ?? (sign > 0 ? from : to);
    const i = clamp(place(chart.steps, now) + sign, 0, chart.steps.length - 1);
    const far = chart.nearest(now + (sign * (to - from)) / 80);
    chart.cursor = clamp(sign > 0 ? Math.max(far, chart.steps[i]) : Math.min(far, chart.steps[i]), from, to);
    return chart.point(true);
  };
  const ends = (step) => {
    chart.cursor = chart.nearest(step);
    chart.point(true);
  };
  const act = {
    ArrowLeft: () => move(-1), ArrowRight: () => move(1),
    Home: () => ends(from), End: () => ends(to),
    "+": () => chart.zoom(0.6, chart.cursor), "=": () => chart.zoom(0.6, chart.cursor),
    "-": () => chart.zoom(1 / 0.6, chart.cursor), 0: () => chart.reset(), Escape: () => chart.reset(),
  }[event.key];
  if (!act || !chart.steps.length) return;
  event.preventDefault();
  act();
}
