"""Check every committed row against its recipe, and every committed table against the rows."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from steppe.config import Config
from steppe.core.errors import SteppeError
from steppe.reproduce import league_runs, publish, recipes, rows, survey
from steppe.reproduce.recipes import INDEPENDENT, Cell, hash_recipe

WANTED = ("table", "cell", "recipe", "seed", "config", "hardware", "versions", "commit", "seconds")


def find_complaints(results: Path, tables: Path, *others: Path) -> list[str]:
    """Return sentences about rows (also in other folders) of no recipe, and about tables that differ from the rows."""
    known = rows.read_folders([*others, results])
    if told := [_name(row) + why for row in known if (why := _find_fault(row))]:
        return told
    cells = _list_cells(known)
    if told := [_name(row) + why for row in known for why in _check_row(row, cells)]:
        return told
    wanted = publish.render_everything(known, tables).items()
    return [f"{path} does not match the rows: run steppe reproduce tables" for path, text in wanted
            if not path.exists() or path.read_text("utf-8") != text]  # fmt: skip


def _name(row: rows.Row) -> str:
    return f"{row.get('cell')}, seed {row.get('seed')}: "


def _find_fault(row: rows.Row) -> str:
    missing = [k for k in WANTED if k not in row]
    return f"the row has no {', '.join(missing)}" if missing else rows.find_fault(row)


def _list_cells(known: list[rows.Row]) -> dict[str, list[Cell]]:
    """Return every recipe there is, by its hash."""
    found: dict[str, list[Cell]] = {}
    tables = [c for name in recipes.list_tables() for c in recipes.load_table(name).cells]
    surveyed = [c for e in survey.list_entrants() for c in (*e.tuning, *e.final)]
    for cell in [*tables, *surveyed, *league_runs.list_cells(known)]:
        found.setdefault(cell.hash, []).append(cell)
    return found


def _check_row(row: rows.Row, cells: dict[str, list[Cell]]) -> list[str]:
    if row["recipe"] not in cells:
        return [f"there is no recipe {row['recipe']}"]
    told = []
    mine = cells[row["recipe"]]
    # By its column: an alternative recipe may become a row's own, and its rows keep the name under which they were run.
    cell = row["cell"].removeprefix("tried/")
    if not any(row["table"] == c.table and cell.startswith(f"{c.column}/") for c in mine):
        told.append(f"recipe {row['recipe']} does not belong to this cell of {row['table']}")
    if hash_recipe(Config.model_validate({**row["config"], "data_folder": None})) != row["recipe"]:
        told.append("its configuration is not the recipe's")
    recipe = mine[0].config.model_dump(mode="json")
    changed = [k for k, v in row["config"].items() if k not in INDEPENDENT | {"settings"} and recipe.get(k) != v]
    told += [f"{k} was {row['config'][k]!r} and is {recipe.get(k)!r} in the recipe" for k in changed]
    if "failed" not in row and (len(row["accuracy"]) != row["config"]["rounds"] or not _agrees_with_curve(row)):
        told.append("its statistics are not those of its curve")
    return told


def _agrees_with_curve(row: rows.Row) -> bool:
    """Return whether all numbers that tables and the league's choice use come from the row's curves."""
    curve = row["accuracy"]
    wanted = recipes.summarize_curve(curve)
    if "validation" in row:
        wanted["validation_mean_of_last_ten"] = fmean(row["validation"][-10:])
    if "running_mean" in row:
        wanted["running_mean_of_last_ten"] = fmean(row["running_mean"][-10:])
    return all(abs(row.get(key, -1.0) - value) < 2e-5 for key, value in wanted.items())


def check_rows(results: Path, tables: Path, *others: Path) -> None:
    told = find_complaints(results, tables, *others)
    if told:
        raise SteppeError("\n".join(told))
