/* Draws the figures in the colours of the page: light, dark, and light again for paper. */
const charts = JSON.parse(document.getElementById("charts").textContent);
const viridis = JSON.parse(document.getElementById("scale").textContent).map(parts);
const root = document.documentElement;
const KINDS = { scatter: drawLines, bar: drawLines, heatmap: drawHeatmap, contour: drawContour, surface: drawSurface };

function drawAll() {
  hideTip();
  charts.forEach((chart, i) => KINDS[chart.traces[0].type](document.getElementById(`plot-${i}`), chart));
  root.dataset.charts = "drawn";
}

drawAll();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
let later = 0, lastWidth = innerWidth, closed = [];
addEventListener("resize", () => {
  if (innerWidth === lastWidth) return; // a phone's address bar comes and goes
  lastWidth = innerWidth;
  clearTimeout(later);
  later = setTimeout(drawAll, 100);
});
addEventListener("scroll", hideTip, { passive: true });
addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details:not([open])")];
  closed.forEach((d) => { d.open = true; });
  root.classList.add("paper");
  drawAll();
});
addEventListener("afterprint", () => {
  closed.forEach((d) => { d.open = false; });
  root.classList.remove("paper");
  drawAll();
});
