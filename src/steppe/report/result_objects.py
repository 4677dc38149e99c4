"""Results of many runs as objects: a table in a terminal or a notebook, a pandas frame, a plot, a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steppe.core.errors import make_missing_error
from steppe.core.metric import Metric
from steppe.jobs.points import Point, find_best, find_metric, find_others
from steppe.report import compare_table, sweep_table
from steppe.report.compare_table import Line, make_lines
from steppe.report.formats import format_bytes
from steppe.report.seeds import describe_points
from steppe.report.write import write
from steppe.runs.curves import Curve, Histories, draw_figure, find_curves, plot_curves
from steppe.runs.folder import RunFolder

if TYPE_CHECKING:
    import pandas


class ResultObject:
    """A result with a table. `records` are its rows as numbers, `cells` its columns and rows as text."""

    title = ""
    legend = ""

    @property
    def records(self) -> list[dict[str, Any]]:
        raise NotImplementedError

    def cells(self) -> tuple[list[str], list[list[str]]]:
        raise NotImplementedError

    def draw(self, figure: Any) -> Any:
        """Draw on an empty figure, and return its axes."""
        raise NotImplementedError

    def table(self) -> str:
        """Return the table as text."""
        columns, rows = self.cells()
        widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
        lines = ["  ".join(word.rjust(width) if i else word.ljust(width)
                           for i, (word, width) in enumerate(zip(row, widths, strict=True))).rstrip()
                 for row in (columns, *rows)]  # fmt: skip
        return "\n".join([self.title, *lines, *([self.legend] if self.legend else [])])

    def frame(self) -> pandas.DataFrame:
        """Return the rows as a pandas table."""
        if find_spec("pandas") is None:
            raise make_missing_error("frame() needs pandas, which is not installed", "pandas",
                          "; records has the same as dictionaries.")  # fmt: skip
        import pandas

        return pandas.DataFrame(self.records)

    def plot(self, path: str | Path | None = None) -> Any:
        """Plot the result, and return the axes; with a path, write a picture as well."""
        return draw_figure(self.draw, (11, 4.2), path)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.title}>"

    def _repr_html_(self) -> str:
        columns, rows = self.cells()
        head = "".join(f"<th>{escape(c)}</th>" for c in columns)
        body = "".join(f"<tr>{''.join(f'<td>{escape(word)}</td>' for word in row)}</tr>" for row in rows)
        return f"<p>{escape(self.title)}</p><table><tr>{head}</tr>{body}</table><p>{escape(self.legend)}</p>"


class ManyRuns(ResultObject):
    """Points with their runs: what comparisons and sweeps have in common."""

    def __init__(self, points: Sequence[Point], seeds: int, folder: Path, title: str, holder: Any = None) -> None:
        """Take the points; `holder` keeps a temporary folder alive as long as this object."""
        self.points, self.seeds, self.folder, self.title, self._holder = list(points), seeds, folder, title, holder
        self.failed = {p.label: dict(p.failed) for p in self.points if p.failed}

    @property
    def metric(self) -> Metric:
        return find_metric(self.points)

    @property
    def judged_on(self) -> str:
        """Return which samples the models were evaluated on: test or validation."""
        return self.points[0].config.judged_on

    @property
    def runs(self) -> dict[str, list[RunFolder]]:
        """Return the folders of the finished runs, one per seed."""
        return {p.label: [p.run(seed) for seed in sorted(p.results)] for p in self.points}

    def write_summary(self) -> dict[str, Any]:
        """Write a summary for scripts into the folder, as the command line does, and return it."""
        raise NotImplementedError

    def report(self, path: str | Path = "report.html") -> Path:
        """Write a page about all runs, as `steppe report` does; the suffix is .html, .md or .tex."""
        return write([self.folder], Path(path))[0]

    def plot(self, path: str | Path | None = None, metrics: Sequence[str] = ()) -> Any:
        """Plot metrics and loss over the rounds, or what `metrics` names; see `Result.plot`."""
        return plot_curves(*self._find_curves(metrics), path)

    def _find_curves(self, names: Sequence[str] = ()) -> tuple[Histories, list[Curve]]:
        histories = {p.label: p.histories for p in self.points if p.results}
        return histories, find_curves(histories, names, [self.metric, *find_others(self.points)], self.judged_on)


class ComparedRuns(ManyRuns):
    """What `steppe.compare` returns: one line per algorithm, tested against the first."""

    @property
    def lines(self) -> list[Line]:
        return make_lines(self.points)

    def write_summary(self, flatness: dict[str, Any] | None = None) -> dict[str, Any]:
        """Write comparison.json and, of runs that ended, curves.png; return the former."""
        from steppe.report.figures import draw_histories

        lines = [asdict(line) for line in self.lines]
        found = {"variation": describe_points(self.points), "lines": lines, "failed": self.failed}
        found |= {"flatness": flatness} if flatness else {}
        RunFolder(self.folder).write("comparison.json", found)
        histories, shown = self._find_curves()
        if histories:
            draw_histories(histories, self.folder / "curves.png", shown, self.title)
        return found

    @property
    def records(self) -> list[dict[str, Any]]:
        each = [asdict(line) for line in self.lines]
        return [_flatten({k: v for k, v in one.items() if v is not None or k != "against_first"}) for one in each]

    def cells(self) -> tuple[list[str], list[list[str]]]:
        return compare_table.make_cells(self.lines, self.metric, find_others(self.points))

    @property
    def legend(self) -> str:  # type: ignore[override]
        variation = describe_points(self.points) if self.seeds > 1 else ""
        lost = "; ".join(f"{label} {len(why)} of {self.seeds}" for label, why in self.failed.items())
        told = compare_table.explain_columns(self.cells()[0], self.metric, self.judged_on, variation)
        return f"{told}\nruns that failed, and are left out: {lost}" if lost else told


class SweptRuns(ManyRuns):
    """What `steppe.sweep` returns: one line per point."""

    def write_summary(self) -> dict[str, Any]:
        """Write sweep.json, and return it."""
        found = {"folder": str(self.folder), **sweep_table.summarize_points(self.points)}
        RunFolder(self.folder).write("sweep.json", found)
        return found

    @property
    def keys(self) -> list[str]:
        return list(dict.fromkeys(key for p in self.points for key in p.settings))

    @property
    def best(self) -> Point | None:
        """Return the point with the best mean: by validation data if there are any."""
        return find_best(self.points)

    @property
    def records(self) -> list[dict[str, Any]]:
        every = sweep_table.summarize_points(self.points)["points"]
        return [one.pop("settings") | _flatten({**one, "seeds": len(one["seeds"]), "failed": len(one["failed"])})
                for one in every]  # fmt: skip

    def cells(self) -> tuple[list[str], list[list[str]]]:
        return sweep_table.make_cells(self.points, self.keys, self.seeds)

    @property
    def legend(self) -> str:  # type: ignore[override]
        return sweep_table.explain_table(self.points, self.seeds)


class Costs(ResultObject):
    """What `steppe.cost` returns: one row per algorithm."""

    legend = ("down, up and kept: multiples of the model; traffic: down and up; gradients: per step, a forward and a "
              "backward pass; ×FedAvg: FLOPs per step")  # fmt: skip

    def __init__(self, rows: Sequence[dict[str, Any]], title: str) -> None:
        self.rows, self.title = list(rows), title

    @property
    def records(self) -> list[dict[str, Any]]:
        return self.rows

    def cells(self) -> tuple[list[str], list[list[str]]]:
        columns = ["algorithm", "down", "up", "kept", "traffic", "gradients", "forwards", "GFLOP", "×FedAvg"]
        return columns, [[r["algorithm"], f"{r['down']:.2f}", f"{r['up']:.2f}", f"{r['kept']:.2f}",
                          format_bytes(r["bytes_down"] + r["bytes_up"]), str(r["gradients"]), str(r["forwards"]),
                          f"{r['flops'] / 1e9:.3g}", f"{r['flops_x']:.2f}"] for r in self.rows]  # fmt: skip

    def draw(self, figure: Any) -> Any:
        axes = figure.subplots(1, 2)
        for axis, key, name in zip(axes, ("bytes_x", "flops_x"), ("traffic", "FLOPs per step"), strict=True):
            axis.barh([r["algorithm"] for r in self.rows], [r[key] for r in self.rows])
            axis.set_xlabel(f"{name}, multiples of FedAvg's")
            axis.invert_yaxis()
        return axes


class Trace(ResultObject):
    """What `steppe.trace` returns: `rounds`, with the global model and all states after every round."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.algorithm, self.rounds = content["algorithm"], content["rounds"]
        self.title = f"{self.algorithm} on quadratics, {len(self.rounds)} rounds"

    @property
    def records(self) -> list[dict[str, Any]]:
        return [{"round": t + 1, **{f"x[{i}]": v for i, v in enumerate(r["x"])}} for t, r in enumerate(self.rounds)]

    def cells(self) -> tuple[list[str], list[list[str]]]:
        rows = [[f"{v:.12g}" for v in r.values()] for r in self.records]
        return (list(self.records[0]) if self.records else ["round"]), rows

    def draw(self, figure: Any) -> Any:
        axis = figure.subplots()
        axis.plot([r["x"] for r in self.rounds])
        axis.set_xlabel("round")
        axis.set_ylabel("x")
        return axis


def _flatten(record: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Write a mean and its spread as two columns, metrics by their names, and a test as its numbers; no lists.

    >>> _flatten({"algorithm": "fedavg", "metrics": {"accuracy": (0.5, 0.1)}, "against_first": {"p": 0.2}})
    {'algorithm': 'fedavg', 'accuracy': 0.5, 'accuracy_std': 0.1, 'against_first_p': 0.2}
    """
    flat: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, tuple):
            flat |= {f"{prefix}{key}": value[0], f"{prefix}{key}_std": value[1]}
        elif isinstance(value, dict):
            flat |= _flatten(value, "" if key == "metrics" else f"{key}_")
        elif not isinstance(value, list):
            flat[f"{prefix}{key}"] = value
    return flat
