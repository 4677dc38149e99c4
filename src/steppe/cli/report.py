"""Commands that show runs: `plot` draws their curves, `report` writes a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from steppe.cli import arguments, terminal
from steppe.cli.app import Debug, app
from steppe.core.errors import SteppeError


@app.command()
def plot(runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or of comparisons.")],
         out: Annotated[Path, typer.Option("--out", "-o", help="The picture (png, svg, pdf).")] = Path("curves.png"),
         debug: Debug = False) -> None:  # fmt: skip
    """Draw the curves of finished or unfinished runs in one picture."""
    from steppe.report.figures import draw_histories
    from steppe.runs.folder import RunFolder

    arguments.check_picture(out)
    histories: dict[str, list[Any]] = {}
    whose: dict[str, Path] = {}
    metrics = {}
    for one in RunFolder.find(runs):
        records, metric = one.history, one.metric
        if not any(metric.name in r for r in records):
            raise SteppeError(f"{one} has no evaluated round yet, so there is nothing to draw.")
        home = one.path.parent if one.seed_of_several else one.path
        first = whose.setdefault(home.name, home)
        label = home.name if first == home else str(home)  # two runs of one name are not two seeds
        histories.setdefault(label, []).append(records)
        metrics[metric.name] = metric
    if len(metrics) > 1:
        raise SteppeError(f"The runs are judged by {' and '.join(metrics)}: draw one picture for each.")
    draw_histories(histories, out, next(iter(metrics.values())))
    terminal.show(f"wrote {out}")


@app.command()
def report(runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or of comparisons.")],
           out: Annotated[Path | None, typer.Option("--out", "-o", help="The file (default: report.html).")] = None,
           kind: Annotated[str | None, typer.Option("--format", help="html, md or tex; by default the suffix of "
                           "--out.")] = None,
           figures: Annotated[Path | None, typer.Option("--figures", help="Also write the figures to this "
                              "folder.")] = None,
           picture: Annotated[str, typer.Option("--figure-format", help="png, svg or pdf.")] = "png",
           debug: Debug = False) -> None:  # fmt: skip
    """Write one self-contained page about finished runs: the answer, curves, costs, flatness, and every setting."""
    from steppe.report.write import write

    for path in write(runs, out, kind, figures, picture):
        terminal.show(f"wrote {path}")
