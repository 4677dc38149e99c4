/* Surfaces of the loss, drawn from the back to the front. All of a page are seen from one side. */
const view = { azimuth: 0.785, elevation: 0.5 }; // radians

/* A finer grid: a surface of few points looks like folded paper. */
function refine(z, times) {
  const rows = (z.length - 1) * times + 1, columns = (z[0].length - 1) * times + 1;
  return Array.from({ length: rows }, (_, j) => Array.from({ length: columns }, (_, i) => between(z, i / times, j / times)));
}

function drawSurface(place, chart) {
  const trace = chart.traces[0], width = place.clientWidth, height = Math.min(width, 440), ratio = devicePixelRatio || 1;
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [width * ratio, height * ratio];
  canvas.style.cssText = `width: ${width}px; height: ${height}px`;
  const times = Math.max(1, Math.round(32 / trace.x.length)), z = refine(trace.z, times);
  const paint = () => paintSurface(canvas, ratio, width, height, trace, z);
  place.replaceChildren(canvas);
  place.paint = paint;
  paint();
  turnByPointer(canvas);
  watchPointer(canvas, (px, py, event) => {
    const near = canvas.spots.reduce((a, b) => (Math.hypot(b.x - px, b.y - py) < Math.hypot(a.x - px, a.y - py) ? b : a));
    if (event.buttons || Math.hypot(near.x - px, near.y - py) > 12) hideTip();
    else showTip(event, [[fill(trace.hover, { z: trace.log ? 10 ** near.z : near.z })]]);
  });
}

/* Places in the cube (−1 to 1, height −0.75 to 0.75) on the canvas, and how near they are. */
function projection(width, height) {
  const [sa, ca, se, ce] = [Math.sin(view.azimuth), Math.cos(view.azimuth), Math.sin(view.elevation), Math.cos(view.elevation)];
  const size = Math.min(width * 0.31, height * 0.31), distance = 6;
  return (x, y, h) => {
    const across = y * ca - x * sa, towards = x * ca + y * sa;
    const near = towards * ce + h * se, up = h * ce - towards * se, scale = size * distance / (distance - near);
    return { x: width / 2 + across * scale, y: height * 0.46 - up * scale, near };
  };
}

function paintSurface(canvas, ratio, width, height, trace, z) {
  const brush = canvas.getContext("2d"), spot = projection(width, height);
  brush.setTransform(ratio, 0, 0, ratio, 0, 0);
  brush.clearRect(0, 0, width, height);
  const rows = z.length, columns = z[0].length, share = (v) => (v - trace.cmin) / (trace.cmax - trace.cmin);
  const across = (i) => 2 * i / (columns - 1) - 1, along = (j) => 2 * j / (rows - 1) - 1, up = (v) => 1.5 * share(v) - 0.75;
  drawFloor(brush, spot, trace);
  const spots = z.map((row, j) => row.map((v, i) => (v === null ? null : { ...spot(across(i), along(j), up(v)), z: v })));
  canvas.spots = spots.flat().filter(Boolean);
  const cells = [];
  for (let j = 0; j < rows - 1; j++)
    for (let i = 0; i < columns - 1; i++) {
      const corners = [spots[j][i], spots[j][i + 1], spots[j + 1][i], spots[j + 1][i + 1]];
      if (!corners.includes(null)) cells.push({ i, j, corners, near: corners.reduce((sum, c) => sum + c.near, 0) });
    }
  const levels = levelsOf(trace.contours.z);
  for (const { i, j, corners } of cells.sort((a, b) => a.near - b.near)) {
    const [a, b, c, d] = corners.map((k) => k.z), slope = share(b + d - a - c) * (columns - 1) / 4;
    const light = 1 - 0.25 * Math.min(1, Math.max(-0.4, slope / 1.5));
    const shade = colourAt(viridis, share((a + b + c + d) / 4)).map((v) => Math.min(255, Math.round(v * light)));
    brush.fillStyle = brush.strokeStyle = `rgb(${shade})`;
    brush.lineWidth = 0.7; // closes the hairlines between cells
    brush.beginPath();
    [0, 1, 3, 2].forEach((k, n) => brush[n ? "lineTo" : "moveTo"](corners[k].x, corners[k].y));
    brush.closePath();
    brush.fill();
    brush.stroke();
    brush.strokeStyle = "rgba(255,255,255,0.4)";
    brush.lineWidth = 1;
    for (const level of levels)
      for (const line of crossings([a, b, c, d], level)) {
        brush.beginPath();
        line.forEach(([u, v], n) => {
          const to = spot(across(i + u), along(j + v), up(level));
          brush[n ? "lineTo" : "moveTo"](to.x, to.y);
        });
        brush.stroke();
      }
  }
  canvas.dataset.view = JSON.stringify(view);
}

/* The floor with its edges' ticks: those of the two edges in front. */
function drawFloor(brush, spot, trace) {
  brush.strokeStyle = variable("--rule");
  brush.fillStyle = variable("--muted");
  brush.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  brush.textAlign = "center";
  brush.lineWidth = 1;
  const line = (from, to) => {
    const [a, b] = [spot(...from), spot(...to)];
    brush.beginPath();
    brush.moveTo(a.x, a.y);
    brush.lineTo(b.x, b.y);
    brush.stroke();
  };
  const floor = -0.75, front = { x: Math.cos(view.azimuth) >= 0 ? 1 : -1, y: Math.sin(view.azimuth) >= 0 ? 1 : -1 };
  for (const [values, place] of [[trace.x, (v, out) => [v, front.y * out, floor]], [trace.y, (v, out) => [front.x * out, v, floor]]]) {
    const low = values[0], high = values[values.length - 1];
    [-1, 0, 1].forEach((at) => line(place(at, -1), place(at, 1)));
    for (const { at, text } of ticks({}, { low, high }, 3)) {
      const label = spot(...place(2 * (at - low) / (high - low) - 1, 1.16));
      brush.fillText(text, label.x, label.y + 4);
    }
  }
  for (const [x, y] of [[-front.x, -front.y], [front.x, -front.y], [-front.x, front.y]]) line([x, y, floor], [x, y, 0.75]);
}

function turnByPointer(canvas) {
  let from = null;
  canvas.addEventListener("pointerdown", (event) => { from = event; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointerup", () => { from = null; });
  canvas.addEventListener("pointercancel", () => { from = null; });
  canvas.addEventListener("pointermove", (event) => {
    if (!from) return;
    view.azimuth -= (event.clientX - from.clientX) * 0.008;
    view.elevation = Math.min(1.5, Math.max(0.05, view.elevation + (event.clientY - from.clientY) * 0.008));
    from = event;
    requestAnimationFrame(() => document.querySelectorAll(".plot").forEach((place) => place.paint && place.paint()));
  });
}
