/* One small box for the values under the pointer. */
const tip = document.createElement("div");
tip.className = "tip";
tip.hidden = true;
document.body.append(tip);

function showTip(event, lines, title) {
  tip.replaceChildren();
  const add = (text, place) => {
    const row = document.createElement("div");
    if (place !== undefined) row.style.setProperty("--mark", `var(--c${place % 8})`);
    row.className = place === undefined ? "" : "marked";
    row.textContent = text;
    tip.append(row);
  };
  if (title) add(title);
  lines.forEach(([text, place]) => add(text, place));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect(), gap = 14;
  const over = event.clientX + gap + width > document.documentElement.clientWidth;
  tip.style.left = `${Math.max(4, over ? event.clientX - gap - width : event.clientX + gap)}px`;
  tip.style.top = `${Math.max(4, Math.min(event.clientY - height / 2, innerHeight - height - 4))}px`;
}

const hideTip = () => { tip.hidden = true; };

/* Calls `look(x, y, event)` with places inside the drawing, for mouse, pen and finger. */
function watchPointer(drawing, look, leave = () => {}) {
  const see = (event) => {
    const box = drawing.getBoundingClientRect();
    look(event.clientX - box.left, event.clientY - box.top, event);
  };
  drawing.addEventListener("pointermove", see);
  drawing.addEventListener("pointerdown", see);
  drawing.addEventListener("pointerleave", () => { hideTip(); leave(); });
}
