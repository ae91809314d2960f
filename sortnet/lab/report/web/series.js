// Curves as numbers: {x, y} with rising x.

function unpack([gaps, values]) {
  let step = 0;
  return { x: gaps.map((gap) => (step += gap)), y: values };
}

// The first place whose step is not below `step`.
function place(x, step) {
  let low = 0;
  let high = x.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (x[middle] < step) low = middle + 1;
    else high = middle;
  }
  return low;
}

// The value at a step: of a point, or between two of them.
function at({ x, y }, step) {
  const i = place(x, step);
  if (i < x.length && x[i] === step) return { value: y[i], exact: true };
  if (i === 0 || i === x.length) return null;
  const part = (step - x[i - 1]) / (x[i] - x[i - 1]);
  return { value: y[i - 1] + part * (y[i] - y[i - 1]), exact: y[i] === y[i - 1] };
}

// A moving average whose weights fall by e in `reach` steps.
function smooth({ x, y }, reach) {
  let sum = 0;
  let weight = 0;
  const averaged = y.map((value, i) => {
    const keep = i ? Math.exp((x[i - 1] - x[i]) / reach) : 0;
    sum = keep * sum + (1 - keep) * value;
    weight = keep * weight + (1 - keep);
    return sum / weight;
  });
  return { x, y: averaged };
}

// Mean and standard deviation of several curves, at the steps of all of them.
function average(curves) {
  const start = Math.max(...curves.map((curve) => curve.x[0])); // before it the mean is of few
  const x = distinct(curves.flatMap((curve) => curve.x), 1500).filter((step) => step >= start);
  const mean = { x: [], y: [], low: [], high: [], n: [] };
  for (const step of x) {
    const values = curves.map((curve) => at(curve, step)).filter(Boolean).map((v) => v.value);
    if (!values.length) continue;
    const centre = values.reduce((a, b) => a + b, 0) / values.length;
    const square = values.reduce((a, b) => a + (b - centre) ** 2, 0);
    const deviation = values.length > 1 ? Math.sqrt(square / (values.length - 1)) : 0;
    mean.x.push(step);
    mean.y.push(centre);
    mean.low.push(centre - deviation);
    mean.high.push(centre + deviation);
    mean.n.push(values.length);
  }
  return mean;
}

function distinct(values, most = Infinity) {
  const sorted = [...new Set(values)].sort((a, b) => a - b);
  if (sorted.length <= most) return sorted;
  const every = (sorted.length - 1) / (most - 1);
  return Array.from({ length: most }, (_, i) => sorted[Math.round(i * every)]);
}

// The places of a curve to draw between two steps: the first, least, largest and last of each of
// `width` columns, and the neighbours outside.
function drawn({ x, y }, from, to, width) {
  const first = Math.max(0, place(x, from) - 1);
  const end = Math.min(x.length, place(x, to) + 1);
  if (end - first <= 2 * width) return Array.from({ length: end - first }, (_, i) => first + i);
  const kept = [];
  let i = first;
  while (i < end) {
    const column = Math.floor((width * (x[i] - from)) / (to - from));
    const places = [i, i, i, i];
    for (; i < end && Math.floor((width * (x[i] - from)) / (to - from)) === column; i++) {
      if (y[i] < y[places[1]]) places[1] = i;
      if (y[i] > y[places[2]]) places[2] = i;
      places[3] = i;
    }
    kept.push(...distinct(places));
  }
  return kept;
}

// Round numbers that divide a range.
function ticks(low, high, about) {
  const rough = (high - low) / Math.max(1, about);
  const power = 10 ** Math.floor(Math.log10(rough));
  const unit = [1, 2, 5, 10].find((n) => n * power >= rough) * power;
  const found = [];
  for (let i = Math.ceil(low / unit - 1e-9); i * unit <= high + unit * 1e-9; i++)
    found.push(Number((i * unit).toPrecision(12)));
  return found;
}

function logarithmic(low, high) {
  const found = [];
  const decades = Math.log10(high / low);
  const parts = decades > 4 ? [1] : decades > 1.5 ? [1, 3] : [1, 2, 3, 5, 7];
  for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power++)
    for (const part of parts) {
      const value = Number((part * 10 ** power).toPrecision(6));
      if (value >= low && value <= high) found.push(value);
    }
  return decades < 0.3 || found.length < 2 ? ticks(low, high, 5) : found;
}
