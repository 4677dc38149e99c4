"""Published tables, read from the files in tables/: every cell with its number and its recipe.

A table has a shared setting, columns and rows; a cell's configuration is the setting, then the column's keys, then
the row's. A new algorithm drops the settings of the one before it. `tried` entries are alternative recipes for the same
published numbers, run only on request: of one row, or of several, whose names then precede the entry's; `only` limits
an entry to some columns, with keys for each.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cache, cached_property
from importlib.resources import files
from statistics import fmean
from typing import TYPE_CHECKING, Any

from steppe.config import Config, list_keys, resolve
from steppe.core.errors import SteppeError, quote, suggest_name
from steppe.registry import list_catalogue_settings

if TYPE_CHECKING:
    from steppe.reproduce.rows import Row

# Keys on which the trained model does not depend, apart from chance.
INDEPENDENT = list_keys("seed", "machine", "evaluation", "tracking")
USUAL = Config().model_dump()
# The same cells on the embedded digits: differences between columns and rows are kept if they make sense there.
TINY = {"data": "digits", "model": "mlp", "clients": 20, "per_round": 5, "rounds": 6, "epochs": 1, "max_steps": None,
        "batch": 20, "lr": 0.05, "augmentation": "none", "precision": "auto"}  # fmt: skip
SCALES = ("paper", "tiny")


@dataclass(frozen=True)
class Published:
    """A number as printed; `std` None where none is printed."""

    value: float
    std: float | None = None
    failed: bool = False
    at_least: bool = False  # printed as 500+

    def __str__(self) -> str:
        text = f"{self.value:g}+" if self.at_least else format_printed(self.value)
        return (
            text
            + (f" ± {format_printed(self.std)}" if self.std is not None else "")
            + (" (failed)" if self.failed else "")
        )


@dataclass(frozen=True)
class Cell:
    """One number of a table, and its recipe."""

    table: str
    column: str
    row: str
    published: Published | None  # None: the paper shows it only in a figure
    config: Config
    statistic: str
    of: str = ""  # a tried recipe: the row whose number it tries to explain
    why: str = ""

    @property
    def id(self) -> str:
        return f"{'tried/' if self.of else ''}{self.column}/{self.row}"

    @cached_property
    def hash(self) -> str:
        return hash_recipe(self.config)


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    source: str
    statistic: str
    runs: int  # behind a printed standard deviation; 0: there is none, or it is not over runs
    columns: dict[str, str]  # id: title
    rows: dict[str, str]
    groups: dict[str, str]  # row: the group inside which methods are ranked
    cells: tuple[Cell, ...]
    also: tuple[str, ...] = ()  # statistics, or "draw", that get a separate verdict in addition to the first
    band: float | None = None  # if it is not the usual one
    unit: str = "%"
    notes: tuple[str, ...] = field(default=())
    explains: tuple[str, ...] = ()  # alternative recipes that are probably the paper's if they are inside
    doubtful: dict[str, str] = field(default_factory=dict)  # cells whose printed number contradicts the print: why
    claim: str = ""  # the paper's claim about its method, and between which rows: the first above the second
    compared: tuple[tuple[str, str], ...] = ()
    beware: str = ""  # what a reader of the claim's verdict has to know
    instead: str = ""  # an alternative recipe with which the claim is also looked at
    draws: tuple[str, ...] = ()  # rows, including tried ones, that differ only in the draw of the partition
    order: tuple[tuple[str, ...], ...] = ()  # patterns of the cells that are run first, group by group

    @property
    def main(self) -> tuple[Cell, ...]:
        return tuple(c for c in self.cells if not c.of)


def list_tables() -> list[str]:
    """Return all tables, in order of their names."""
    found = (p.name.removesuffix(".toml") for p in (files(__package__) / "tables").iterdir())
    return sorted(n for n in found if n not in ("league", "survey") and not n.startswith("_"))


@cache
def load_table(name: str, scale: str = "paper") -> Table:
    if name not in list_tables():
        raise SteppeError(f"there is no table {quote(name)}{suggest_name(name, list_tables())}")
    check_scale(scale)
    content = read_table_file(name)
    rows = [dict(r) for r in content["row"]]
    by_id = {r["id"]: r for r in rows}
    tried = [{**by_id[of], "id": id_, "of": of, "why": t["why"], "over": t.get("set", {}), "only": t.get("only")}
             for t in content.get("tried", []) for of, id_ in _list_tried(t)]  # fmt: skip
    cells = tuple(c for row in (*rows, *tried) for c in _make_cells(name, content, row, scale))
    return Table(
        name, content["title"], content["source"], content["statistic"], content["runs"],
        {c["id"]: c["title"] for c in content["column"]}, {r["id"]: r["title"] for r in (*rows, *tried)},
        {r["id"]: r.get("group", "") for r in (*rows, *tried)}, cells, tuple(content.get("also", [])),
        content.get("band"), content.get("unit", "%"), tuple(content.get("notes", [])),
        tuple(content.get("explains", [])), content.get("doubtful", {}), *_read_claim(content.get("claim", {}), rows),
        tuple(content.get("draws", [])), tuple(tuple(one["cells"]) for one in content.get("order", [])),
    )  # fmt: skip


def _read_claim(claim: dict[str, Any], rows: list[dict[str, Any]]) -> tuple[str, tuple[tuple[str, str], ...], str, str]:
    """Return the listed pairs of rows, and each of the `own` methods with every other one of its group."""
    groups = {r["id"]: r.get("group", "") for r in rows}
    own = claim.get("own", [])
    pairs = [(a, b) for a, b in claim.get("pairs", [])]
    pairs += [(a, b) for a in own for b in groups if groups[a] == groups[b] and b not in own]
    return claim.get("text", ""), tuple(pairs), claim.get("beware", ""), claim.get("instead", "")


def _list_tried(entry: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the rows that a tried recipe is for, and its name for each."""
    of, id_ = entry["of"], entry["id"]
    return [(of, id_)] if isinstance(of, str) else [(row, f"{row}-{id_}") for row in of]


def check_scale(scale: str) -> None:
    if scale not in SCALES:
        raise SteppeError(f"--scale {scale}: there is no such scale{suggest_name(scale, SCALES)}")


def read_table_file(name: str) -> dict[str, Any]:
    return tomllib.loads((files(__package__) / "tables" / f"{name}.toml").read_text("utf-8"))


def _make_cells(name: str, content: dict[str, Any], row: dict[str, Any], scale: str) -> Iterable[Cell]:
    columns = content["column"]
    if len(row["published"]) != len(columns):
        raise SteppeError(f"{name}: row {row['id']} has {len(row['published'])} numbers for {len(columns)} columns")
    for column, text in zip(columns, row["published"], strict=True):
        only = row.get("only") or {column["id"]: {}}
        if text == "" or column["id"] not in only:
            continue  # the paper leaves it empty, or it is not tried here
        layers = (content.get("setting", {}), column.get("set", {}), row.get("set", {}), row.get("over", {}),
                  only[column["id"]])  # fmt: skip
        values = merge_layers(*layers)
        statistic = row.get("statistic") or column.get("statistic") or content["statistic"]
        config = make_config(values, scale, f"{name}: {row['id']}")
        yield Cell(name, column["id"], row["id"], parse_number(text), config, statistic,
                   row.get("of", ""), row.get("why", ""))  # fmt: skip


def merge_layers(*layers: dict[str, Any]) -> dict[str, Any]:
    """Merge layers: later keys win; settings are merged, unless a layer names an algorithm."""
    values: dict[str, Any] = {}
    for layer in layers:
        settings = {} if "algorithm" in layer else values.get("settings", {})
        values |= {**layer, "settings": {**settings, **layer.get("settings", {})}}
    return values


def make_config(values: dict[str, Any], scale: str, source: str) -> Config:
    """Return a cell's configuration; at the tiny scale with the digits' data, model and schedule."""
    everyone = values.get("per_round") == "all"
    if scale == "tiny":
        # Measures at the end of the run stay at its end, and classes of the digits are ten.
        ends = [f"{m.partition(':')[0]}:{TINY['rounds']}" for m in values.get("measure", [])]
        split = re.sub(r"pathological\((20|10)\)", "pathological(5)", values.get("partition", "iid"))
        values = {**values, **TINY, "partition": split, **({"measure": ends} if ends else {})}
    if everyone:
        values = {**values, "per_round": values["clients"]}
    config = resolve(values, source)
    if config.loss not in (None, "cross_entropy") or config.metrics not in ([], ["accuracy"]):
        raise SteppeError(f"{source}: published tables and the league compare accuracies, and so do their rows and "
                          "pages: leave out loss and metrics, or use steppe compare.")  # fmt: skip
    return config


def parse_number(text: str) -> Published | None:
    """Read a number as the paper prints it; None stands for a number that is only in a figure.

    >>> parse_number("64.13 ± 0.46"), parse_number("?")
    (Published(value=64.13, std=0.46, failed=False, at_least=False), None)
    >>> parse_number("10.00 failed").failed, parse_number("500+").at_least
    (True, True)
    """
    if text == "?":
        return None
    number, _, std = text.partition(" ± ")
    return Published(float(number.split()[0].rstrip("+")), float(std) if std else None, "failed" in text, "+" in text)


def format_printed(value: float) -> str:
    """Return a number with as many digits as a table shows."""
    return f"{value:.2f}" if abs(value) < 1000 else f"{value:.1f}"


def hash_recipe(config: Config) -> str:
    """Return eight digits that identify what is trained: all differences from the defaults, without machine and seed.

    They do not change when keys or settings are added to the library with a default that changes nothing.
    """
    own = list_catalogue_settings(config.algorithm)
    content = {k: v for k, v in config.model_dump(mode="json").items() if k not in INDEPENDENT and v != USUAL[k]}
    settings = {k: v for k, v in config.settings.items() if v != own.get(k)}
    content |= {"algorithm": config.algorithm, "settings": settings}
    return hashlib.sha256(json.dumps(_unify_numbers(content), sort_keys=True).encode()).hexdigest()[:8]


def _unify_numbers(value: Any) -> Any:
    """Treat 1 and 1.0 as the same setting."""
    if isinstance(value, dict):
        return {k: _unify_numbers(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_unify_numbers(v) for v in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def add_shortened(rows: Iterable[Row], cells: Iterable[Cell]) -> list[Row]:
    """Return the rows, preceded by rows for cells with fewer rounds that longer runs contain.

    If the rate does not depend on the number of rounds (no cosine), the first rounds of both are the same. Measures
    and fine-tuning belong to the end of the long run and are left out; its time counts only for that run.
    """
    rounds: dict[tuple[str, str], set[int]] = {}
    for cell in cells:
        rounds.setdefault((cell.config.data, cell.config.algorithm), set()).add(cell.config.rounds)
    rows = list(rows)
    return [*(_cut(row, n) for row in rows if "failed" not in row and "cosine" not in row["config"]["lr_schedule"]
              for n in sorted(rounds.get((row["config"]["data"], row["config"]["algorithm"]), ()))
              if n < row["config"]["rounds"]), *rows]  # fmt: skip


def _cut(row: Row, rounds: int) -> Row:
    curve, config = row["accuracy"][:rounds], {**row["config"], "rounds": rounds}
    kept: Row = {
        k: row[k]
        for k in ("table", "cell", "seed", "processes", "peak_gpu_mib", "hardware", "versions", "commit")
        if k in row
    }
    return {**kept, "recipe": hash_recipe(Config.model_validate(config)), "config": config, "accuracy": curve,
            "rounds": rounds, **summarize_curve(curve), "seconds": {"total": 0.0}}  # fmt: skip


def summarize_curve(curve: list[float]) -> dict[str, float]:
    """Return the statistics that tables compare, from a curve of accuracies."""
    return {"last": curve[-1], "best": max(curve), "mean_of_last_ten": fmean(curve[-10:]),
            "mean_of_last_fifty": fmean(curve[-50:])}  # fmt: skip


def select_cells(cells: Iterable[Cell], globs: list[str], tried: bool = False) -> list[Cell]:
    """Return the cells whose ID matches any of the patterns; tried recipes only on request."""
    cells = list(cells)
    check_globs(globs, [c.id for c in cells])
    asked = any(glob.startswith("tried/") for glob in globs)
    return [c for c in cells if (not c.of or tried or asked) and is_named(globs, c.id)]


def is_named(globs: Sequence[str], *ids: str) -> bool:
    """Return whether a pattern matches one of these names; without patterns, everything is meant."""
    return not globs or any(fnmatchcase(i, glob) for i in ids for glob in globs)


def check_globs(globs: list[str], ids: Iterable[str]) -> None:
    """Refuse a pattern without cells; name the nearest of hundreds of IDs, and the option that lists them all."""
    ids = list(ids)
    stars = {i.rpartition("/")[0] + "/*" for i in ids}
    for glob in globs:
        if not any(fnmatchcase(i, glob) for i in ids):
            close = get_close_matches(glob, sorted(stars) if glob.endswith("/*") else ids, n=1)
            near = f"; did you mean {close[0]!r}?" if close else "."
            raise SteppeError(f"--cells {glob}: no cell matches{near} --dry-run lists those that are not run yet")
