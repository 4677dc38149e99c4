/* Axes: from numbers to places on the screen, with round ticks. */
const FONT = 12, SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";

function make(name, attributes, parent, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

const pen = document.createElement("canvas").getContext("2d");
function textWidth(text) {
  pen.font = `${FONT}px ${getComputedStyle(document.body).fontFamily}`;
  return pen.measureText(text).width;
}

const minus = (text) => String(text).replace(/-/g, "−");
const short = (value, digits = 4) => minus(Number(Number(value).toPrecision(digits)));
const power = (n) => `10${n < 0 ? "⁻" : ""}${[...String(Math.abs(n))].map((c) => SUPERSCRIPTS[c]).join("")}`;
const finite = (values) => values.filter((v) => v !== null && Number.isFinite(v));

/* The text of a point: "%{y:.4g} ± %{customdata:.3g}" with the point's own values. */
function fill(template, point) {
  return template.replace(/%\{(\w+)(?::\.(\d)g)?\}/g, (_, name, digits) =>
    typeof point[name] === "number" ? short(point[name], digits ? Number(digits) : 6) : point[name]);
}

function roundStep(span, most) {
  const rough = span / Math.max(most, 1), size = 10 ** Math.floor(Math.log10(rough));
  return size * [1, 2, 5, 10].find((factor) => factor * size >= rough * 0.999);
}

function tickText(value, step) {
  if (value === 0) return "0";
  if (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e9) return short(value, 3);
  const [scale, unit] = step >= 1e6 ? [1e6, "M"] : step >= 1e3 && Math.abs(value) >= 1e4 ? [1e3, "k"] : [1, ""];
  return minus(Number((value / scale).toFixed(8))) + unit;
}

/* An axis without its place yet: limits, and whether it is logarithmic or counts categories. */
function limits(given, values, padding) {
  if (given.range) return { low: given.range[0], high: given.range[1], log: given.type === "log" };
  const known = finite(values);
  let low = known.length ? Math.min(...known) : 0, high = known.length ? Math.max(...known) : 1;
  if (given.rangemode === "tozero") { low = Math.min(low, 0); high = Math.max(high, 0); }
  if (high === low) { low -= 0.5; high += 0.5; }
  const room = padding * (high - low);
  return { low: given.rangemode === "tozero" && low === 0 ? 0 : low - room, high: high + room, log: false };
}

function ticks(given, axis, most) {
  if (given.tickvals) return given.tickvals.map((at, i) => ({ at, text: given.ticktext[i] }));
  const least = Math.min(axis.low, axis.high), greatest = Math.max(axis.low, axis.high), found = [];
  if (axis.log) {
    const every = Math.ceil((greatest - least) / Math.max(most, 1));
    for (let n = Math.ceil(least); n <= greatest; n += every) found.push({ at: n, text: power(n) });
    return found;
  }
  const step = Math.max(roundStep(greatest - least, given.nticks || most), given.dtick || 0);
  for (let n = Math.ceil(least / step - 1e-9); n * step <= greatest + step * 1e-9; n++)
    found.push({ at: n * step, text: tickText(n * step, step) });
  return found;
}

/* The frame of a chart: an SVG with axes, and x() and y() that place numbers. `square` keeps units equal. */
function frame(place, chart, xLimits, yLimits, options = {}) {
  const width = place.clientWidth, height = chart.height || Math.min(width, 440);
  const { xaxis = {}, yaxis = {} } = chart.layout, small = height < 200 || width < 220;
  const titled = (axis) => (axis.title && axis.title.text) || "";
  const yTicks = ticks(yaxis, yLimits, Math.max(2, (height - 50) / 45));
  const widest = Math.max(10, ...yTicks.map((t) => textWidth(t.text)));
  const left = Math.min(widest, width * 0.4) + 8 + (titled(yaxis) ? 20 : 0), right = (options.right || 0) + 12;
  const bottom = 20 + (titled(xaxis) ? 20 : 0), top = 8;
  const area = { x: left, y: top, width: Math.max(20, width - left - right), height: Math.max(20, height - top - bottom) };
  if (options.square) {
    const unit = Math.min(area.width / (xLimits.high - xLimits.low), area.height / (yLimits.high - yLimits.low));
    const wide = unit * (xLimits.high - xLimits.low), tall = unit * (yLimits.high - yLimits.low);
    Object.assign(area, { x: area.x + (area.width - wide) / 2, y: area.y + (area.height - tall) / 2, width: wide, height: tall });
  }
  const along = (v, { low, high, log }, from, length) => from + length * (((log ? Math.log10(v) : v) - low) / (high - low));
  const x = (v) => along(v, xLimits, area.x, area.width);
  const y = (v) => along(v, yLimits, area.y + area.height, -area.height);
  const svg = make("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  const most = Math.max(2, area.width / (options.wideTicks || 70));
  const grid = make("g", { class: "grid" }, svg), texts = make("g", { class: "ticks" }, svg);
  const bottomEdge = area.y + area.height, tick = (axis, at) => (axis.log ? 10 ** at : at);
  for (const { at, text } of ticks(xaxis, xLimits, most)) {
    const there = x(tick(xLimits, at));
    if (!options.plain) make("path", { d: `M${there},${area.y}V${bottomEdge}` }, grid);
    make("text", { x: there, y: bottomEdge + 15, "text-anchor": "middle" }, texts, text);
  }
  for (const { at, text } of yTicks) {
    const there = y(tick(yLimits, at));
    if (!options.plain) make("path", { d: `M${area.x},${there}H${area.x + area.width}` }, grid);
    make("text", { x: area.x - 6, y: there + 4, "text-anchor": "end" }, texts, text);
  }
  if (titled(xaxis)) make("text", { x: area.x + area.width / 2, y: bottomEdge + 34, "text-anchor": "middle" }, texts, titled(xaxis));
  if (titled(yaxis)) {
    const middle = area.y + area.height / 2, edge = area.x - Math.min(widest, width * 0.4) - 14;
    make("text", { transform: `translate(${edge},${middle}) rotate(-90)`, "text-anchor": "middle" }, texts, titled(yaxis));
  }
  const id = `clip-${place.id}`;
  make("rect", area, make("clipPath", { id }, make("defs", {}, svg)));
  const inside = make("g", { "clip-path": `url(#${id})` }, svg);
  return { svg, inside, area, x, y, width, height };
}
