"""The README's table of algorithms, from the registry and the traced costs: `python -m steppe.report.readme`."""

from __future__ import annotations

from pathlib import Path

from steppe.core.write_aside import write_aside
from steppe.report.listing import list_catalogue, trace_costs

BEGIN, END = "<!-- algorithms: begin -->", "<!-- algorithms: end -->"


def make_algorithm_table() -> str:
    """Make a row per entry: its paper, its idea, and what it costs compared with FedAvg."""
    entries = list_catalogue()["algorithms"]
    rows, _ = trace_costs(None, "cnn", (3, 32, 32), 10, 50, [], [])
    lines = [
        "| name | paper | idea | down · up · kept | passes per step | FLOPs | variants |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        entry = entries[r["algorithm"]]
        paper, _, idea = entry["about"].partition(": ")
        passes = f"{r['gradients']} grad" + (f" + {r['forwards']} fwd" if r["forwards"] else "")
        variants = "; ".join(f"{k}: {', '.join(v)}" if k != "variant" else ", ".join(v)
                             for k, v in entry.get("choices", {}).items())  # fmt: skip
        vectors = " · ".join(f"{r[k]:.3g}" for k in ("down", "up", "kept"))
        cells = [f"`{r['algorithm']}`", paper, idea.rstrip("."), vectors, passes, f"{r['flops_x']:.2f}×", variants]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def renew_table(text: str) -> str:
    """Put a fresh table between the README's marks."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{make_algorithm_table()}\n{END}{after}"


if __name__ == "__main__":
    path = Path("README.md")
    text = renew_table(path.read_text())
    write_aside(path, lambda aside: aside.write_text(text))
