"""Commands that show runs: `plot` draws their curves, `report` writes a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steppe.cli import arguments, terminal
from steppe.cli.options import Debug, app
from steppe.core.errors import SteppeError

if TYPE_CHECKING:
    from steppe.core.metric import Metric


@app.command()
def plot(runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or of comparisons.")],
         names: Annotated[list[str], typer.Option("--metric", "-m", metavar="NAME", help="Number to draw, such as "
                          "loss, train_loss or another column of rounds.csv; may be repeated (default: the metrics "
                          "and the loss).")] = [],  # noqa: B006
         out: Annotated[Path, typer.Option("--out", "-o", help="Picture to write.")] = Path("curves.png"),
         debug: Debug = False) -> None:  # fmt: skip
    """Draw the curves of finished or unfinished runs in one picture."""
    from steppe.report.figures import draw_histories
    from steppe.runs.curves import find_curves
    from steppe.runs.folder import RunFolder

    arguments.check_picture(out)
    histories: dict[str, list[Any]] = {}
    whose: dict[str, Path] = {}
    metrics: dict[tuple[str, str], list[Metric]] = {}  # by what they were computed on, and the main one's name
    for one in RunFolder.find(runs):
        records, metric = one.history, one.metric
        if not any(metric.name in r for r in records) and not (names and records):
            raise SteppeError(f"{one} has no evaluated round yet, so there is nothing to draw.")
        home = one.path.parent if one.seed_of_several else one.path
        first = whose.setdefault(home.name, home)
        label = home.name if first == home else str(home)  # two runs of one name are not two seeds
        histories.setdefault(label, []).append(records)
        metrics.setdefault((one.stored["judged_on"], metric.name), one.metrics)
    if len(metrics) > 1 and not names:
        each = " and ".join(map(" ".join, metrics))
        raise SteppeError(f"The runs are evaluated by {each}: draw one picture for each, or choose what to draw with "
                          "--metric.")  # fmt: skip
    known = [m for several in metrics.values() for m in several]
    draw_histories(histories, out, find_curves(histories, names, known, next(iter(metrics))[0]))
    terminal.show(f"wrote {out}")


@app.command()
def report(runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or of comparisons.")],
           out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write (default: "
                                                                        "report.html).")] = None,
           kind: Annotated[str | None, typer.Option("--format", help="Format: html, md or tex (default: by the suffix "
                           "of --out).")] = None,
           figures: Annotated[Path | None, typer.Option("--figures", help="Also write the figures to this "
                              "folder.")] = None,
           picture: Annotated[str, typer.Option("--figure-format", help="Format of the figures: png, svg or "
                                                                        "pdf.")] = "png",
           debug: Debug = False) -> None:  # fmt: skip
    """Write one self-contained page about finished runs: the result, curves, costs, flatness, and every setting."""
    from steppe.report.write import write

    for path in write(runs, out, kind, figures, picture):
        terminal.show(f"wrote {path}")
