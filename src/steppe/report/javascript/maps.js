/* Maps: counts of samples, values by class and round, and contours of the loss. */
const parts = (colour) => [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/* From a share between 0 and 1 to [red, green, blue], between the colours of a scale. */
function colourAt(scale, share) {
  const place = Math.min(Math.max(share, 0), 1) * (scale.length - 1), i = Math.min(Math.floor(place), scale.length - 2);
  return scale[i].map((v, k) => Math.round(v + (place - i) * (scale[i + 1][k] - v)));
}

/* A picture of a grid, `colour(column, row)` from below; what it returns null for stays empty. */
function picture(columns, rows, colour) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [columns, rows];
  const brush = canvas.getContext("2d"), image = brush.createImageData(columns, rows);
  for (let row = 0; row < rows; row++)
    for (let column = 0; column < columns; column++) {
      const found = colour(column, rows - 1 - row);
      if (found) image.data.set([...found, 255], 4 * (row * columns + column));
    }
  brush.putImageData(image, 0, 0);
  return canvas.toDataURL();
}

function drawHeatmap(place, chart) {
  const trace = chart.traces[0], z = trace.z, rows = z.length, columns = z[0].length;
  const counts = Boolean(trace.meta && trace.meta.scale === "counts");
  const scale = counts ? [parts(variable("--none")), parts(variable("--full"))] : viridis;
  const known = finite(z.flat()), low = counts ? 0 : trace.zmin, high = counts ? Math.max(1, ...known) : trace.zmax;
  const names = trace.y || z.map((_, i) => i), every = Math.ceil(rows / Math.max(2, (chart.height - 50) / 15));
  const shown = names.map((name, i) => ({ name, i })).filter(({ i }) => i % every === 0);
  const yaxis = { ...chart.layout.yaxis, tickvals: shown.map((s) => s.i), ticktext: shown.map((s) => String(s.name)) };
  const xs = trace.x, step = xs.length > 1 ? (xs[xs.length - 1] - xs[0]) / (xs.length - 1) : 1;
  const f = frame(place, { ...chart, layout: { ...chart.layout, yaxis } },
    { low: xs[0] - step / 2, high: xs[xs.length - 1] + step / 2 }, { low: -0.5, high: rows - 0.5 },
    { plain: true, right: counts ? 54 : 0 });
  const { area } = f, cell = { width: area.width / columns, height: area.height / rows };
  const colour = (v) => (v === null ? null : colourAt(scale, (v - low) / (high - low || 1)));
  make("image", { ...area, preserveAspectRatio: "none", style: "image-rendering: pixelated",
    href: picture(columns, rows, (column, row) => colour(z[row][column])) }, f.inside);
  let gaps = "";
  if (cell.width > 5) for (let i = 1; i < columns; i++) gaps += `M${area.x + i * cell.width},${area.y}v${area.height}`;
  if (cell.height > 5) for (let i = 1; i < rows; i++) gaps += `M${area.x},${area.y + i * cell.height}h${area.width}`;
  make("path", { d: gaps, class: "gaps" }, f.inside);
  if (counts) drawCountScale(f, high);
  place.replaceChildren(f.svg);
  watchPointer(f.svg, (px, py, event) => {
    const column = Math.floor((px - area.x) / cell.width), row = rows - 1 - Math.floor((py - area.y) / cell.height);
    if (!(column in xs) || !(row in z) || z[row][column] === null) { hideTip(); return; }
    showTip(event, [[fill(trace.hover, { x: xs[column], y: names[row], z: z[row][column] })]]);
  });
}

function drawCountScale(f, high) {
  const { area } = f, x = area.x + area.width + 12, id = `counts-${f.inside.getAttribute("clip-path").slice(10, -1)}`;
  const gradient = make("linearGradient", { id, x1: 0, x2: 0, y1: 1, y2: 0 }, f.svg);
  make("stop", { offset: 0, "stop-color": "var(--none)" }, gradient);
  make("stop", { offset: 1, "stop-color": "var(--full)" }, gradient);
  make("rect", { x, y: area.y, width: 10, height: area.height, fill: `url(#${id})` }, f.svg);
  const texts = make("g", { class: "ticks" }, f.svg);
  make("text", { x: x + 14, y: area.y + 9 }, texts, short(high));
  make("text", { x: x + 14, y: area.y + area.height }, texts, "0");
  make("text", { transform: `translate(${x + 24},${area.y + area.height / 2}) rotate(-90)`, "text-anchor": "middle" }, texts, "samples");
}

/* Between the points of a grid, by the four around it; null next to a missing one. `u`, `v` count columns and rows. */
function between(z, u, v) {
  const i = Math.min(Math.floor(u), z[0].length - 2), j = Math.min(Math.floor(v), z.length - 2), a = u - i, b = v - j;
  const corners = [z[j][i], z[j][i + 1], z[j + 1][i], z[j + 1][i + 1]];
  if (corners.includes(null)) return null;
  return (1 - b) * ((1 - a) * corners[0] + a * corners[1]) + b * ((1 - a) * corners[2] + a * corners[3]);
}

/* Where a cell's edges cross a level: up to two lines, as pairs of places (0 to 1) in the cell. */
function crossings([a, b, c, d], level) { // a, b below from left; c, d above
  const at = (p, q) => (level - p) / (q - p), met = [];
  if (a < level !== b < level) met.push([at(a, b), 0]);
  if (b < level !== d < level) met.push([1, at(b, d)]);
  if (c < level !== d < level) met.push([at(c, d), 1]);
  if (a < level !== c < level) met.push([0, at(a, c)]);
  return met.length === 4 ? [[met[0], met[1]], [met[2], met[3]]] : met.length === 2 ? [met] : [];
}

function levelsOf(contours) {
  const found = [];
  for (let level = contours.start + contours.size; level < contours.end - contours.size / 2; level += contours.size) found.push(level);
  return found;
}

function drawContour(place, chart) {
  const [trace, dots] = chart.traces, { x: xs, y: ys, z } = trace, { xaxis, yaxis } = chart.layout;
  const f = frame(place, chart, limits(xaxis, xs, 0), limits(yaxis, ys, 0), { square: true, plain: true });
  const fine = 160, { area } = f;
  const share = (v) => (v - trace.zmin) / (trace.zmax - trace.zmin);
  make("image", { ...area, preserveAspectRatio: "none", href: picture(fine, fine, (column, row) => {
    const v = between(z, (column + 0.5) / fine * (xs.length - 1), (row + 0.5) / fine * (ys.length - 1));
    return v === null ? null : colourAt(viridis, share(v));
  }) }, f.inside);
  let d = "";
  const levels = levelsOf(trace.contours), wide = area.width / (xs.length - 1), tall = area.height / (ys.length - 1);
  for (let j = 0; j < ys.length - 1; j++)
    for (let i = 0; i < xs.length - 1; i++) {
      const corners = [z[j][i], z[j][i + 1], z[j + 1][i], z[j + 1][i + 1]];
      if (corners.includes(null)) continue;
      for (const level of levels)
        for (const [[u, v], [s, t]] of crossings(corners, level)) {
          const spot = (p, q) => `${(area.x + (i + p) * wide).toFixed(1)},${(area.y + area.height - (j + q) * tall).toFixed(1)}`;
          d += `M${spot(u, v)}L${spot(s, t)}`;
        }
    }
  make("path", { class: "contours", d }, f.inside);
  dots.x.forEach((v, i) => drawModel(f, f.x(v), f.y(dots.y[i]), dots, i));
  place.replaceChildren(f.svg);
  watchPointer(f.svg, (px, py, event) => {
    const u = (px - area.x) / area.width * (xs.length - 1), v = (area.y + area.height - py) / area.height * (ys.length - 1);
    const inside = u >= 0 && v >= 0 && u <= xs.length - 1 && v <= ys.length - 1, value = inside ? between(z, u, v) : null;
    if (value === null) hideTip();
    else showTip(event, [[fill(trace.hover, { z: trace.log ? 10 ** value : value })]]);
  });
}

/* A cross for a model, with its name next to it. */
function drawModel(f, x, y, dots, i) {
  const cross = `M${x - 5},${y}h10M${x},${y - 5}v10`;
  make("path", { d: cross, stroke: "#222", "stroke-width": 4 }, f.svg);
  make("path", { d: cross, stroke: "#fff", "stroke-width": 2, class: "model" }, f.svg);
  if (!dots.mode.includes("text")) return;
  const [up, side] = dots.textposition[i].split(" ");
  make("text", { x: x + ({ left: -8, right: 8 }[side] || 0), y: y + (up === "top" ? -8 : 18), fill: "#fff", "font-size": FONT,
    "text-anchor": { left: "end", right: "start" }[side] || "middle", class: "model-name" }, f.svg, dots.text[i]);
}
