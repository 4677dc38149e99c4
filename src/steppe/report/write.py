"""Write a report as a file: an HTML page, Markdown or LaTeX, and its figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from steppe.core.errors import SteppeError, suggest_name
from steppe.core.write_aside import write_aside
from steppe.report.reading import read
from steppe.runs.folder import expecting_intact

FORMATS, PICTURES = ("html", "md", "tex"), ("png", "svg", "pdf")


def write(runs: Sequence[Path], out: Path | None = None, kind: str | None = None, figures: Path | None = None,
          picture: str = "png") -> list[Path]:  # fmt: skip
    """Write a report, and return the files written. Without a format, `out` decides by its suffix, or it is HTML."""
    suffix = out.suffix.removeprefix(".").lower() if out else ""
    kind = kind or {"htm": "html", "markdown": "md"}.get(suffix, suffix) or "html"
    for option, value, known in (("--format", kind, FORMATS), ("--figure-format", picture, PICTURES)):
        if value not in known:
            raise SteppeError(f"{option} {value}: there is no such format{suggest_name(value, known)}")
    with expecting_intact(", ".join(map(str, runs))):
        comparison = read(runs)
        if kind == "html":
            from steppe.report.html import render_page

            text = render_page(comparison)
        else:
            from steppe.report import texts

            text = texts.render_markdown(comparison) if kind == "md" else texts.render_latex(comparison)
    path = out or Path(f"report.{kind}")
    write_aside(path, lambda aside: aside.write_text(text, "utf-8"))
    if figures is None:
        return [path]
    from steppe.report.figures import write_figures

    return [path, *write_figures(comparison, figures, picture)]
