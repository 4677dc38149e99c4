"""What each part of a method contributes: all combinations of its parts, with and without the running mean."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from statistics import fmean
from typing import Any

from steppe.report.table import Table
from steppe.reproduce.intervals import Interval, estimate
from steppe.reproduce.league import list_factors, read_league

EMA = "EMA"
ENOUGH = 3  # blocks: an interval over two says nothing
Values = dict[frozenset[str], dict[int, float]]  # percent by block, of every combination


def collect_values(found: Sequence[dict[str, Any]], column: str) -> Values:
    """Return the accuracies of all combinations that were run in a column, the running mean as a further factor."""
    here = {f["arm"]: f for f in found if f["column"] == column}
    values: Values = {}
    for on, arm in list_factors().items():
        if arm in here:
            values |= {on: here[arm]["model"], on | {EMA}: here[arm]["mean"]}
    return {on: of for on, of in values.items() if of}


def find_effect(values: Values, factor: str, others: Sequence[frozenset[str]]) -> list[float]:
    """Return by block how many points a factor adds, the mean over these combinations of the others.

    A block counts if all of them were run in it, with the factor and without.
    """
    pairs = [(values.get(rest | {factor}, {}), values.get(rest, {})) for rest in others]
    blocks = set.intersection(*({*with_it} & {*without} for with_it, without in pairs))
    return [fmean(with_it[b] - without[b] for with_it, without in pairs) for b in sorted(blocks)]


def find_last_effects(found: Sequence[dict[str, Any]], column: str) -> dict[str, Interval]:
    """Return what every factor adds on top of all the others, where this was run."""
    values, factors = collect_values(found, column), list_names()
    each = {factor: estimate(find_effect(values, factor, [frozenset(factors) - {factor}])) for factor in factors}
    return {factor: effect for factor, effect in each.items() if effect is not None}


def find_needed(found: Sequence[dict[str, Any]]) -> dict[str, tuple[list[str], list[str]]]:
    """Return by column the factors that are shown to be needed on top of all others, and those that are not."""
    told = {}
    for column in read_league()["factorial"]["columns"]:
        adds = find_last_effects(found, column)
        shown = [f for f, e in adds.items() if e.count >= ENOUGH and e.excludes_zero and e.mean > 0]
        told[column] = shown, [f for f in adds if f not in shown]
    return told


def list_names() -> list[str]:
    """Return all factors, the running mean last."""
    return [*read_league()["factorial"]["factors"], EMA]


def make_table(found: Sequence[dict[str, Any]], column: dict[str, Any]) -> Table:
    """Return what every factor adds: alone, as a mean over all combinations of the others, and on top of them all."""
    values = collect_values(found, column["id"])
    factors = list_names()
    rows = []
    for factor in factors:
        others = [f for f in factors if f != factor]
        every = [frozenset(c) for n in range(len(factors)) for c in combinations(others, n)]
        effects = (find_effect(values, factor, case) for case in (every[:1], every, every[-1:]))
        rows.append([factor, *(str(estimate(effect) or "") for effect in effects)])
    head = ["part", "alone, points", "mean over all combinations of the others", "on top of all the others"]
    return Table(f"What each part adds: {column['title']}", head, [r for r in rows if any(r[1:])])
