/* Unpacks plotly.js and draws the figures, in the colours of the page: light, dark, and light again for paper. */
(async () => {
  "use strict";
  try {
    const packed = Uint8Array.from(atob(document.getElementById("library").textContent), (c) => c.charCodeAt(0));
    const library = document.createElement("script");
    library.textContent = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
    document.head.append(library);
  } catch (error) {
    document.getElementById("no-figures").hidden = false;
    throw error;
  }
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const root = document.documentElement;
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const places = charts.map((_, i) => document.getElementById(`plot-${i}`));
  const solid = (i) => Boolean(charts[i].layout.scene);
  const surfaces = charts.map((_, i) => i).filter(solid);
  const drawn = new Set();
  let camera = null; // one for all surfaces

  const isObject = (v) => v && typeof v === "object" && !Array.isArray(v);
  const merged = (a, b) => {
    const out = { ...a };
    for (const key in b) out[key] = isObject(a[key]) && isObject(b[key]) ? merged(a[key], b[key]) : b[key];
    return out;
  };
  const faded = (hex, share) =>
    `rgba(${[1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)).join(",")},${share})`;

  function painted(trace) {
    const meta = trace.meta || {};
    if (meta.scale === "counts")
      return { ...trace, colorscale: [[0, colour("--none")], [1, colour("--full")]],
        colorbar: merged(trace.colorbar, { tickcolor: colour("--muted") }) };
    if (meta.series === undefined) return trace;
    const own = colour(`--c${meta.series % 8}`);
    if (meta.role === "band") return { ...trace, fillcolor: faded(own, 0.18) };
    if (meta.role === "bar") return { ...trace, marker: { color: own } };
    if (meta.role === "dots")
      return { ...trace, marker: { ...trace.marker, color: own }, error_x: { ...trace.error_x, color: own } };
    if (meta.role === "faint") return { ...trace, line: { ...trace.line, color: faded(own, 0.5) } };
    return { ...trace, line: { ...trace.line, color: own } };
  }

  function layout(chart, width) {
    const text = colour("--text"), muted = colour("--muted"), grid = colour("--grid");
    const axis = { gridcolor: grid, zerolinecolor: grid, linecolor: colour("--rule"), color: muted, zeroline: false,
      fixedrange: true };
    const wall = { gridcolor: colour("--rule"), zerolinecolor: colour("--rule"), color: muted, showbackground: false,
      showspikes: false, nticks: 5 };
    const base = {
      width, height: chart.height || Math.min(width, 440), showlegend: false, dragmode: false,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 44, r: 10, t: 8, b: 40 },
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: text },
      hoverlabel: { bgcolor: colour("--raised"), bordercolor: colour("--rule"), font: { color: text, size: 12 } },
    };
    base[chart.layout.scene ? "scene" : "xaxis"] = chart.layout.scene
      ? { xaxis: wall, yaxis: wall, zaxis: wall, bgcolor: "rgba(0,0,0,0)" } : axis;
    if (!chart.layout.scene) base.yaxis = axis;
    const made = merged(base, chart.layout);
    if (made.scene && camera) made.scene.camera = camera;
    return made;
  }

  function draw(i) {
    const options = { displaylogo: false, displayModeBar: false, scrollZoom: false };
    const first = !drawn.has(i);
    drawn.add(i);
    const done = Plotly.react(places[i], charts[i].traces.map(painted), layout(charts[i], places[i].clientWidth), options);
    if (first && solid(i)) {
      const seen = (told) => Boolean(told["scene.camera"]) && turn(i, told["scene.camera"]);
      places[i].on("plotly_relayouting", seen);
      places[i].on("plotly_relayout", (told) => { // the camera glides on for a moment after the last event
        if (seen(told)) setTimeout(() => turn(i, places[i]._fullLayout.scene._scene.getCamera()), 300);
      });
    }
    return done;
  }

  let turning = false, again = null;
  function turn(from, seen) { // the other surfaces follow the one that is turned
    if (JSON.stringify(seen) === JSON.stringify(camera)) return false; // our own doing
    camera = JSON.parse(JSON.stringify(seen));
    if (turning) { again = from; return true; }
    turning = true;
    const others = surfaces.filter((i) => i !== from && drawn.has(i));
    Promise.all(others.map((i) => Plotly.relayout(places[i], { "scene.camera": camera }))).then(() => {
      turning = false;
      if (again !== null) { const next = again, now = camera; again = null; camera = null; turn(next, now); }
    });
    return true;
  }

  const all = () => Promise.all([...drawn].map(draw));
  const lazy = surfaces.length > 8; // browsers keep some sixteen drawing contexts, phones fewer
  const now = charts.map((_, i) => i).filter((i) => !(lazy && solid(i)));
  root.dataset.charts = "drawing";
  Promise.all(now.map(draw)).then(() => { root.dataset.charts = "drawn"; });
  if (lazy) {
    surfaces.forEach((i) => { places[i].style.minHeight = `${Math.min(places[i].clientWidth, 440)}px`; }); // no jumps
    const watch = new IntersectionObserver((seen) => seen.forEach((one) => {
      const i = Number(one.target.id.slice(5));
      if (one.isIntersecting) draw(i);
      else if (drawn.delete(i)) Plotly.purge(places[i]);
    }), { rootMargin: "100px" });
    surfaces.forEach((i) => watch.observe(places[i]));
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
  let later = 0, width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return; // a phone's address bar comes and goes
    width = innerWidth;
    clearTimeout(later);
    later = setTimeout(all, 100);
  });
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    closed.forEach((d) => { d.open = true; });
    root.classList.add("paper");
    all();
  });
  addEventListener("afterprint", () => {
    closed.forEach((d) => { d.open = false; });
    root.classList.remove("paper");
    all();
  });
})();
