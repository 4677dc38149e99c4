"""Write a report as a file: an HTML page, Markdown or LaTeX, and its figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from steppe.core.atomic_write import write_atomically
from steppe.core.errors import SteppeError, suggest_name
from steppe.report.read_runs import read
from steppe.runs.folder import explain_damage

FORMATS, PICTURES = ("html", "md", "tex"), ("png", "svg", "pdf")


def write(runs: Sequence[Path], out: Path | None = None, kind: str | None = None, figures: Path | None = None,
          picture: str = "png") -> list[Path]:  # fmt: skip
    """Write a report, and return the files written. Without a format, `out` decides by its suffix, or it is HTML."""
    suffix = out.suffix.removeprefix(".").lower() if out else ""
    kind = kind or {"htm": "html", "markdown": "md"}.get(suffix, suffix) or "html"
    for option, value, known in (("--format", kind, FORMATS), ("--figure-format", picture, PICTURES)):
        if value not in known:
            raise SteppeError(f"{option} {value}: there is no such format{suggest_name(value, known)}")
    with explain_damage(", ".join(map(str, runs))):
        comparison = read(runs)
        if kind == "html":
            from steppe.report.html import render_page

            text = render_page(comparison)
        else:
            from steppe.report.markdown_latex import render_latex, render_markdown

            text = render_markdown(comparison) if kind == "md" else render_latex(comparison)
    path = out or Path(f"report.{kind}")
    write_atomically(path, lambda aside: aside.write_text(text, "utf-8"))
    if figures is None:
        return [path]
    from steppe.report.figures import write_figures

    return [path, *write_figures(comparison, figures, picture)]
