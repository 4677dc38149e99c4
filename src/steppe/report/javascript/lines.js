/* Lines, bands, dots with bars of uncertainty, and columns. */
const DASHES = { solid: "", dash: "6 4", dot: "1.5 3", dashdot: "6 3 1.5 3" };
const seriesColour = (trace) => `var(--c${trace.meta.series % 8})`;

/* Gaps are where a value is missing. */
function linePath(trace, f) {
  let d = "", down = false;
  trace.x.forEach((v, i) => {
    const at = trace.y[i];
    if (v === null || at === null) { down = false; return; }
    d += `${down ? "L" : "M"}${f.x(v).toFixed(1)},${f.y(at).toFixed(1)}`;
    down = true;
  });
  return d;
}

const DRAW = {
  line: (trace, f, group) => make("path", { class: "line", d: linePath(trace, f), stroke: seriesColour(trace),
    "stroke-width": trace.line.width, "stroke-dasharray": DASHES[trace.line.dash] }, group),
  faint: (trace, f, group) => DRAW.line(trace, f, group).setAttribute("opacity", 0.5),
  band: (trace, f, group) => {
    const points = trace.x.map((v, i) => [v, trace.y[i]]).filter(([v, at]) => v !== null && at !== null);
    make("path", { class: "band", fill: seriesColour(trace), "fill-opacity": 0.18,
      d: points.length ? `M${points.map(([v, at]) => `${f.x(v).toFixed(1)},${f.y(at).toFixed(1)}`).join("L")}Z` : "" }, group);
  },
  dots: (trace, f, group) => trace.x.forEach((v, i) => {
    if (v === null) return;
    const y = f.y(trace.y[i]), error = trace.error_x.array[i] || 0, colour = seriesColour(trace);
    if (error) {
      const ends = [f.x(v - error), f.x(v + error)];
      make("path", { class: "error", stroke: colour, d: `M${ends[0]},${y}H${ends[1]}${ends.map((e) => `M${e},${y - 3}v6`).join("")}` }, group);
    }
    make("circle", { class: "dot", cx: f.x(v), cy: y, r: 3.5, fill: colour }, group);
  }),
  bar: (trace, f, group) => trace.x.forEach((v, i) => {
    const edge = f.x(v - 0.4);
    make("rect", { class: "column", x: edge, width: Math.max(0.5, f.x(v + 0.4) - edge), y: f.y(trace.y[i]),
      height: Math.max(0, f.y(0) - f.y(trace.y[i])), fill: seriesColour(trace) }, group);
  }),
};

function drawLines(place, chart) {
  const { xaxis = {}, yaxis = {} } = chart.layout, bars = chart.traces.some((t) => t.meta.role === "bar");
  const dots = chart.traces.some((t) => t.meta.role === "dots");
  const xs = chart.traces.flatMap((t) => t.meta.role !== "dots" ? t.x
    : t.x.flatMap((v, i) => [v - (t.error_x.array[i] || 0), v + (t.error_x.array[i] || 0)]));
  const ys = chart.traces.flatMap((t) => t.y);
  const f = frame(place, chart, limits(xaxis, bars ? [...xs, -0.6, Math.max(...xs) + 0.6] : xs, dots ? 0.05 : 0),
    limits(bars ? { ...yaxis, rangemode: "tozero" } : yaxis, ys, 0.05));
  const order = ["band", "bar", "faint", "line", "dots"];
  [...chart.traces].sort((a, b) => order.indexOf(a.meta.role) - order.indexOf(b.meta.role))
    .forEach((trace) => DRAW[trace.meta.role](trace, f, f.inside));
  place.replaceChildren(f.svg);
  hoverLines(f, chart);
}

const pointOf = (trace, i) => ({ x: trace.x[i], y: trace.y[i], text: (trace.text || [])[i], customdata: (trace.customdata || [])[i] });

/* The nearest point of every line at one x, or the nearest point of all. */
function hoverLines(f, chart) {
  const told = chart.traces.filter((t) => t.hover), unified = chart.layout.hovermode === "x unified";
  const rule = make("path", { class: "rule" }, f.inside), marks = make("g", {}, f.inside);
  const clear = () => { marks.replaceChildren(); rule.setAttribute("d", ""); };
  watchPointer(f.svg, (px, py, event) => {
    const near = told.flatMap((trace) => {
      const points = trace.x.map((v, i) => v === null || trace.y[i] === null ? null
        : { trace, i, px: f.x(v), py: f.y(trace.y[i]) }).filter(Boolean);
      const far = (p) => unified || trace.meta.role === "bar" ? Math.abs(p.px - px) : Math.hypot(p.px - px, p.py - py);
      return points.length ? [points.reduce((a, b) => (far(b) < far(a) ? b : a))].map((p) => ({ ...p, far: far(p) })) : [];
    });
    clear();
    if (!near.length) return;
    const closest = near.reduce((a, b) => (b.far < a.far ? b : a));
    const shown = unified ? near.filter((p) => Math.abs(p.px - closest.px) < 0.5) : [closest];
    shown.forEach((p) => p.trace.meta.role === "bar"
      || make("circle", { cx: p.px, cy: p.py, r: 3.5, fill: seriesColour(p.trace), class: "mark" }, marks));
    if (unified) rule.setAttribute("d", `M${closest.px},${f.area.y}v${f.area.height}`);
    const title = unified ? `${((chart.layout.xaxis.title || {}).text || "").trim()} ${short(closest.trace.x[closest.i])}`.trim() : "";
    showTip(event, shown.map((p) => [fill(p.trace.hover, pointOf(p.trace, p.i)), p.trace.meta.series]), title);
  }, clear);
}
