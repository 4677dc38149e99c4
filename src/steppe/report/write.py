"""A report as a file: an HTML page, Markdown or LaTeX, and its figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from steppe.core.errors import SteppeError, nearest
from steppe.report.reading import read

FORMATS, PICTURES = ("html", "md", "tex"), ("png", "svg", "pdf")


def write(runs: Sequence[Path], out: Path | None = None, kind: str | None = None, figures: Path | None = None,
          picture: str = "png") -> list[Path]:  # fmt: skip
    """What was written. Without a format, the ending of `out` decides; without either it is report.html."""
    suffix = out.suffix.removeprefix(".").lower() if out else ""
    kind = kind or {"htm": "html", "markdown": "md"}.get(suffix, suffix) or "html"
    for option, value, known in (("--format", kind, FORMATS), ("--figure-format", picture, PICTURES)):
        if value not in known:
            raise SteppeError(f"{option} {value}: there is no such format{nearest(value, known)}")
    comparison = read(runs)
    if kind == "html":
        from steppe.report.html import page

        text = page(comparison)
    else:
        from steppe.report import texts

        text = texts.markdown(comparison) if kind == "md" else texts.latex(comparison)
    path = out or Path(f"report.{kind}")
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".new")
    aside.write_text(text, "utf-8")
    aside.replace(path)
    if figures is None:
        return [path]
    from steppe.report.figures import all_figures

    return [path, *all_figures(comparison, figures, picture)]
