"""The command for many runs: a grid, or a search, over settings and seeds."""

from __future__ import annotations

import json
import logging
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steppe.cli import arguments, terminal
from steppe.cli.app import Add, ConfigFile, Debug, Json, Out, Rounds, Set, app
from steppe.core.errors import SteppeError
from steppe.engine.progress import Progress

log = logging.getLogger("steppe")
if TYPE_CHECKING:
    from steppe.jobs.search import Range
    from steppe.jobs.sweep import Point, Source


@app.command()
def sweep(algorithm: Annotated[str | None, typer.Argument(help="A name of the catalogue (steppe list).")] = None,
          config: ConfigFile = None,
          grid: Annotated[list[str], typer.Option("--grid", "-g", metavar="KEY=V,V,…", help="Values of a key or "
                          "setting; several make a grid.")] = [],  # noqa: B006
          seeds: Annotated[int, typer.Option("--seeds", min=1, help="Runs of each, with seeds seed, seed+1, …")] = 1,
          search: Annotated[int | None, typer.Option("--search", min=1, metavar="TRIALS", help="Instead of a whole "
                            "grid, so many points that Optuna suggests, by validation accuracy.")] = None,
          ranges: Annotated[list[str], typer.Option("--range", metavar="KEY=LOW..HIGH[:log]", help="What to search "
                            "in; --grid gives choices.")] = [],  # noqa: B006
          jobs: Annotated[int | None, typer.Option("--jobs", "-j", min=1, help="Runs at a time; default: one for each "
                          "GPU, or for each core.")] = None,
          sets: Set = [], add: Add = [], rounds: Rounds = None, out: Out = None,  # noqa: B006
          as_json: Json = False, debug: Debug = False) -> None:  # fmt: skip
    """Run every point of a grid, or of a search, over seeds: a queue that can be interrupted, and a table."""
    from steppe.engine.build import build_experiment
    from steppe.jobs.processes import places
    from steppe.jobs.search import Search
    from steppe.jobs.sweep import Grid, Point
    from steppe.jobs.sweep import sweep as run_all
    from steppe.report import sweep_table as shown
    from steppe.runs.folder import RunFolder
    from steppe.settings import parse_value

    choices = arguments.grid(grid)
    if algorithm:
        algorithm, own, parts = arguments.spelled_out(algorithm)
        sets, add = [*own, *sets], [*parts, *add]
    names = choices.get("algorithm") or [algorithm or _named_in(config)]
    spans = _spans(ranges, names, taken=list(choices))
    for text, key in zip([*grid, *ranges], [*choices, *spans], strict=True):
        _check_key(text, key, names, "--grid" if key in choices else "--range")
    if search is None and ranges:
        raise SteppeError(f"--range {ranges[0]} is for a search: say how many points, with --search 20.")
    if not choices and not spans:
        raise SteppeError("sweep needs something to vary: --grid rho=0.1,0.5, or --search 20 --range rho=0.01..1:log.")

    def point(values: dict[str, Any]) -> Point:
        """Of these values, those that its algorithm knows, on top of what all points share."""
        name = values.get("algorithm", names[0])
        mine = {k: v for k, v in values.items() if k == "algorithm" or arguments.shared_sets([f"{k}={v}"], names)[name]}
        given = [f"{k}={v}" for k, v in mine.items() if k != "algorithm"]
        shared = arguments.shared_sets(sets, names)[name]
        chosen = arguments.configuration(name, config, [*shared, *given], add, rounds)
        return Point({k: parse_value(str(v)) for k, v in mine.items()}, chosen)

    # Every point of the grid, or the corners of what is searched: mistakes are found before anything is written.
    ends: dict[str, list[Any]] = {**choices, **{k: [r.tidy(r.low), r.tidy(r.high)] for k, r in spans.items()}}
    points = [point(dict(zip(ends, values, strict=True))) for values in product(*ends.values())]
    first = points[0].config
    if search is not None and not all(p.config.validation for p in points):
        raise SteppeError("A search chooses by validation accuracy, never by the test set: hold out a share of the "
                          "training data, with --set validation=0.1.")  # fmt: skip
    where = out or Path("runs") / f"sweep-{_shared_hash(points[0])}"
    build_experiment(first)
    source = Grid(points, seeds, where) if search is None else Search(spans, choices, search, point, first.seed, where)
    total = seeds * (sum(p.config.rounds for p in source.points.values()) if search is None else search * first.rounds)
    try:
        with Progress(total) as progress, _terminable():
            watch = _Watch(progress, total, seeds * (search or len(source.points)), seeds)
            run_all(source, seeds, where, places(jobs, first.device), watch.tick, watch.judged)
    except KeyboardInterrupt:
        print(f"\ninterrupted; go on with the same command, in {where}", file=sys.stderr)
        raise typer.Exit(130) from None
    found = {"folder": str(where), **shown.summarize_points(list(source.points.values()))}
    RunFolder(where).write("sweep.json", found)
    if as_json:
        print(json.dumps(found))
    else:
        title = f"{', '.join(names)} on {first.data}, {first.partition}, {first.clients} clients, {first.rounds} rounds"
        _show(title, source, list(ends), seeds)
        terminal.show(f"runs and sweep.json are in {where}")
    failed = [
        f"{p.label}, seed {seed}: {why}" for p in source.points.values() for seed, why in sorted(p.failed.items())
    ]
    for text in failed:
        print(f"failed: {text}", file=sys.stderr)
    if failed:
        raise typer.Exit(3)


@contextmanager
def _terminable() -> Iterator[None]:
    """Whoever ends this process in good order ends its children too."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@dataclass
class _Watch:
    """Progress over all runs, in rounds, with the time left."""

    progress: Progress
    total: int  # rounds of all runs
    runs: int
    seeds: int
    finished: int = 0
    done: int = 0
    left: str = ""
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.progress.begin("sweep")

    def tick(self, done: int, before: int) -> None:
        if done > before:
            self.left = f"; {(time.monotonic() - self.began) / (done - before) * (self.total - done):.0f} s left"
        self.done = done
        self.progress.so_far(done, f"{self.finished}/{self.runs} runs")

    def judged(self, point: Point) -> None:
        from steppe.report.sweep_table import format_point

        self.finished += self.seeds
        log.info(f"{self.finished}/{self.runs} runs: {point.label}: {format_point(point)}{self.left}")
        self.progress.so_far(self.done, f"{self.finished}/{self.runs} runs")


def _show(title: str, source: Source, keys: list[str], seeds: int) -> None:
    from steppe.report import sweep_table as shown

    points = list(source.points.values())
    columns, rows = shown.make_cells(points, keys, seeds)
    terminal.print_table(title, columns, rows, ("test, last ten", "test loss"))
    terminal.show(shown.explain_table(points, seeds))


def _named_in(path: Path | None) -> str:
    from steppe.config import Config, read

    return str((read(path) if path else {}).get("algorithm", Config.model_fields["algorithm"].default))


def _spans(ranges: list[str], names: list[str], taken: list[str]) -> dict[str, Range]:
    """The ranges by key; whole numbers only for settings that are whole."""
    from dataclasses import replace
    from typing import get_args

    from steppe.config import Config
    from steppe.jobs.search import parse_range
    from steppe.registry import catalogue_settings

    spans: dict[str, Range] = {}
    for text in ranges:
        key, span = parse_range(text)
        if key in spans or key in taken:
            raise SteppeError(f"--range {text}: {key} is there twice")
        known = Config.model_fields.get(key)
        kinds = (known.annotation, *get_args(known.annotation)) if known else ()
        real = float in kinds or any(isinstance(catalogue_settings(n).get(key), float) for n in names)
        spans[key] = replace(span, whole=span.whole and not real)
    return spans


def _check_key(text: str, key: str, names: list[str], option: str) -> None:
    try:
        arguments.shared_sets([f"{key}=0"], names)
    except SteppeError as error:
        raise SteppeError(str(error).replace(f"--set {key}=0", f"{option} {text}", 1)) from None


def _shared_hash(point: Point) -> str:
    """A name for what all points share, so that a wider grid finds the runs of a narrower one."""
    plain = {k: v.default for k, v in type(point.config).model_fields.items() if k in point.settings or k == "rounds"}
    settings = {k: v for k, v in point.config.settings.items() if k not in point.settings}
    return point.config.model_copy(update={**plain, "settings": settings}).hash
