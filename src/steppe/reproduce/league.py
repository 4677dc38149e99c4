"""The league: arms that are tuned alike on held-out data, then judged on the same blocks (tables/league.toml).

What to run next follows from the rows that are there, so a command may be stopped and started again.
`league_page` shows the outcome.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from itertools import combinations
from math import sqrt
from typing import Any

from steppe.reproduce.costs import compare_costs, trace_costs
from steppe.reproduce.missing_runs import CellJob
from steppe.reproduce.recipes import Cell, check_globs, check_scale, make_config, merge_layers, read_table_file
from steppe.reproduce.rows import Row, find_statistic, has_statistic

NAME = "league"
CANDIDATES = 6  # of each arm
MOST = 8  # of an arm whose best candidate is still at the edge
MEAN, MODEL = "running_mean_of_last_ten", "mean_of_last_ten"  # of the running mean, and of the global model itself


@dataclass(frozen=True)
class Candidate:
    """A value on an arm's axis; `other`: with what the fourth candidate has instead of the usual momentum."""

    at: float
    other: bool = False


class Arm:
    """A method of the league: its candidates and its runs. One that is `like` another has what was chosen for that."""

    def __init__(self, content: dict[str, Any], scale: str, like: Arm | None = None) -> None:
        self.content, self.scale, self.like = content, scale, like
        self.id, self.title = content["id"], content["title"]
        self.ours, self.tier = content.get("ours", False), content.get("tier", 1)
        self.axis: dict[str, Any] = like.axis if like else content["axis"]
        self._cells: dict[tuple[Candidate, str], Cell] = {}

    def cell(self, candidate: Candidate, column: dict[str, Any] | None) -> Cell:
        """Return the recipe of a candidate: in a column, or (None) for tuning."""
        league = read_league()
        place = "tuning" if column is None else column["id"]
        if (candidate, place) not in self._cells:
            tuning = league["tuning"]
            where = find_column(tuning["column"]) if column is None else column
            shared = {"rounds": league["rounds"], "running_mean": league["keep"]}
            layers = [league["setting"], where["set"], shared, *([tuning["set"]] if column is None else []),
                      *self._layers(candidate)]  # fmt: skip
            config = make_config(merge_layers(*layers), self.scale, f"league: {self.id}")
            row = f"{self.id}/{self.name(candidate)}"
            self._cells[candidate, place] = Cell(NAME, place, row, None, config, MEAN)
        return self._cells[candidate, place]

    def middle(self, other: bool) -> Candidate:
        """Return the candidate in the middle of the axis, with the usual momentum or as the fourth."""
        return Candidate(self.axis["values"][1], other)

    def name(self, candidate: Candidate) -> str:
        """Name a candidate by what distinguishes it from the arm's others."""
        if self.like:
            return f"like {self.like.id}"
        key = self.axis["key"].rpartition(".")[2]
        rest = self._other() if candidate.other else {}
        at = {key: candidate.at} | rest
        if key == "lr" and "lr" in rest:
            at["lr"] = self._rate(candidate)
        return ",".join(f"{k}={v:g}" for k, v in at.items())

    def _other(self) -> dict[str, Any]:
        return self.content.get("fourth") or {"momentum": 0.0, "lr": 0.1}

    def _rate(self, candidate: Candidate) -> float:
        return candidate.at * (10 if candidate.other and "fourth" not in self.content else 1)

    def _layers(self, candidate: Candidate) -> Iterator[dict[str, Any]]:
        content, (kind, _, rest) = self.content, self.axis["key"].partition(".")
        add = content.get("add", [])
        if kind == "add":
            part, _, setting = rest.partition(".")
            add = [_changed(text, setting, candidate.at) if text.startswith(part) else text for text in add]
        yield {"algorithm": content["algorithm"], "settings": content.get("settings", {}), "add": add}
        yield content.get("set", {})
        yield self._other() if candidate.other else {}
        if kind == "settings":
            yield {"settings": {rest: candidate.at}}
        elif kind != "add":
            yield {kind: self._rate(candidate) if kind == "lr" else candidate.at}

    def score(self, candidate: Candidate, rows: Sequence[Row]) -> float | None:
        """Return the score on held-out data; −1 where the training broke down, None where it was not run."""
        seed, recipe = read_league()["tuning"]["seed"], self.cell(candidate, None).hash
        found = [
            -1.0 if "failed" in r else find_statistic(r, MEAN)
            for r in rows
            if r["recipe"] == recipe and r["seed"] == seed
        ]
        return next((f for f in reversed(found) if f is not None), None)

    def tried(self, rows: Sequence[Row]) -> tuple[dict[Candidate, float | None], bool]:
        """Return the candidates with their scores so far, and whether six were run.

        A seventh and an eighth follow while the best is at the edge. Until they are run, the best of the others counts.
        """
        if self.like:
            return {}, True
        low, middle, high = self.axis["values"]
        scores = {c: self.score(c, rows) for c in (*map(Candidate, (low, middle, high)), Candidate(middle, True))}
        while len(scores) < MOST:
            known = {c: s for c, s in scores.items() if s is not None}
            if len(known) < len(scores) or (len(known) >= CANDIDATES and not self._may_improve(known)):
                break
            more = self._find_fifth(known) if len(known) < CANDIDATES - 1 else self._find_further(known)
            scores[more] = self.score(more, rows)
        return scores, sum(s is not None for s in scores.values()) >= CANDIDATES

    def _may_improve(self, scores: dict[Candidate, float]) -> bool:
        """Return whether the best candidate is at the edge of those that were run."""
        best = max(scores, key=lambda c: scores[c])
        return scores[best] >= 0 and _is_end(best, scores)

    def _find_fifth(self, scores: dict[Candidate, float]) -> Candidate:
        """Extend the axis if its best is at an end; otherwise go between the best and its better neighbour."""
        low, middle, high = self.axis["values"]
        on_axis = {at: scores[Candidate(at)] for at in (low, middle, high)}
        best = max(on_axis, key=lambda at: on_axis[at])
        other = max(scores, key=lambda c: scores[c]).other
        if best == middle:
            return Candidate(_between(middle, max((low, high), key=lambda at: on_axis[at])), other)
        return Candidate(self.axis["beyond"][0 if best == low else 1], other)

    def _find_further(self, scores: dict[Candidate, float]) -> Candidate:
        """Go to the side of the best on which nothing was tried with its momentum; if there is none, as the fifth."""
        best = max(scores, key=lambda c: scores[c])
        same = {c.at: s for c, s in scores.items() if c.other == best.other}
        below, above = [at for at in same if at < best.at], [at for at in same if at > best.at]
        ladder = sorted([*self.axis["values"], *self.axis["beyond"]])
        down, up = [v for v in ladder if v < best.at], [v for v in ladder if v > best.at]
        if not above:
            return Candidate(up[0] if up else float(f"{best.at * ladder[-1] / ladder[-2]:.2g}"), best.other)
        if not below:
            return Candidate(down[-1] if down else float(f"{best.at * ladder[0] / ladder[1]:.2g}"), best.other)
        return Candidate(_between(best.at, max((max(below), min(above)), key=lambda at: same[at])), best.other)

    def choose(self, rows: Sequence[Row]) -> Candidate | None:
        """Return the best candidate on held-out data; None while one of the six was not run, or if all failed."""
        if self.like:
            return self.like.choose(rows)
        scores, complete = self.tried(rows)
        known = {c: s for c, s in scores.items() if s is not None and s >= 0}
        return max(known, key=lambda c: known[c]) if complete and known else None

    def is_at_edge(self, chosen: Candidate, rows: Sequence[Row]) -> bool:
        """Return whether nothing was tried on one side of the chosen value with its momentum: the best may be there."""
        return _is_end(chosen, [c for c, s in self.tried(rows)[0].items() if s is not None])

    @property
    def columns(self) -> list[dict[str, Any]]:
        """The columns in which it runs, each with the number of its blocks there."""
        mine, blocks = self.content.get("columns"), self.content.get("blocks")
        chosen = [c for c in read_league()["column"] if not mine or c["id"] in mine]
        return [c | {"blocks": blocks} for c in chosen] if blocks else chosen


def _is_end(one: Candidate, several: Iterable[Candidate]) -> bool:
    """Return whether a candidate has the least or the greatest value of those with its momentum."""
    values = [c.at for c in several if c.other == one.other]
    return one.at in (min(values), max(values))


def _between(a: float, b: float) -> float:
    """
    >>> _between(0.1, 0.03)
    0.055
    """
    return float(f"{sqrt(a * b):.2g}")


def _changed(text: str, setting: str, at: float) -> str:
    """
    >>> _changed("server_ascent:rho=0.3,keep=0.9", "rho", 1.0)
    'server_ascent:rho=1,keep=0.9'
    """
    name, _, settings = text.partition(":")
    own = {k: v for k, _, v in (s.partition("=") for s in settings.split(",") if s)} | {setting: f"{at:g}"}
    return f"{name}:" + ",".join(f"{k}={v}" for k, v in own.items())


@cache
def read_league() -> dict[str, Any]:
    return read_table_file(NAME)


@cache
def list_arms(scale: str = "paper") -> tuple[Arm, ...]:
    """Return all arms: those of the file, and those of its factorial."""
    check_scale(scale)
    found: dict[str, Arm] = {}
    league = read_league()
    for content in (*league["arm"], *_make_factorial()):
        found[content["id"]] = Arm(content, scale, found.get(content.get("like", "")))
    return tuple(found.values())


def list_factors() -> dict[frozenset[str], str]:
    """Return the arm of every combination of the factors."""
    names = list(read_league()["factorial"]["factors"])
    every = [frozenset(c) for n in range(len(names) + 1) for c in combinations(names, n)]
    return {on: "-".join(["factor", *([n.lower() for n in names if n in on] or ["none"])]) if len(on) < len(names) else
            read_league()["factorial"]["of"] for on in every}  # fmt: skip


def _make_factorial() -> Iterator[dict[str, Any]]:
    """Yield an arm per combination, other than the one with everything: it lacks what its other factors stand for."""
    plan = read_league()["factorial"]
    whole = next(a for a in read_league()["arm"] if a["id"] == plan["of"])
    for on, name in list_factors().items():
        if name == plan["of"]:
            continue
        lost = {part for factor, part in plan["factors"].items() if factor not in on}
        add = [text for text in whole["add"] if text.partition(":")[0] not in lost]
        rule = (
            {"algorithm": "fedavg"} if whole["algorithm"] in lost else {k: whole[k] for k in ("algorithm", "settings")}
        )
        title = " + ".join(f for f in plan["factors"] if f in on) or "rate and momentum alone"
        title = f"{whole['title'].partition(' ')[0]}'s {title}"
        yield {"id": name, "title": title, "tier": 2, "like": plan["of"], "add": add, "columns": plan["columns"],
               "blocks": plan["blocks"], **rule}  # fmt: skip


def find_column(name: str) -> dict[str, Any]:
    return next(c for c in read_league()["column"] if c["id"] == name)


def find_order(arm: Arm, column: dict[str, Any]) -> int:
    """Return the place of an arm's runs in a column: that of the first `order` that names both, otherwise by tier."""
    order = read_league()["order"]
    named = (i for i, one in enumerate(order)
             if column["id"] in one["columns"] and any(fnmatchcase(arm.id, g) for g in one["arms"]))  # fmt: skip
    return next(named, len(order) + arm.tier - 1)


def choose_ours(rows: Sequence[Row], scale: str = "paper") -> Arm | None:
    """Return the arm of ours with the best score on held-out data; None while one of them is not tuned."""
    scores = {}
    for arm in (a for a in list_arms(scale) if a.ours):
        tried, complete = arm.tried(rows)
        if not complete:
            return None
        scores[arm] = max(s for s in tried.values() if s is not None)
    return max(scores, key=lambda a: scores[a])


def find_strong(rows: Sequence[Row], scale: str = "paper") -> dict[Arm, float]:
    """Return the arms without a block that do better on held-out data than every arm that ours was compared with."""
    scores = {a: max((s for s in a.tried(rows)[0].values() if s is not None), default=-1.0) for a in list_arms(scale)}
    bar = max(score for a, score in scores.items() if a.id in read_league()["contrasts"])
    ran = {row["cell"].split("/")[1] for row in rows if row.get("table") == NAME and not row["config"]["validation"]}
    return {a: score for a, score in scores.items() if score > bar and a.id not in ran}


def find_missing_runs(rows: Sequence[Row], scale: str, globs: list[str], machine: dict[str, object]) -> list[CellJob]:
    """Find the runs that are missing and already known: more follow from their results.

    They are in the order of the league's file: first the arms and columns of its first `order`, and so on. In each,
    tuning comes first, and then block by block. Arms that may get another candidate wait for it.
    """
    league, arms = read_league(), list_arms(scale)
    check_globs(globs, [f"{c['id']}/{a.id}" for a in arms for c in a.columns])
    ours = choose_ours(rows, scale)
    there: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        there.setdefault((row["recipe"], row["seed"]), []).append(row)
    jobs: dict[tuple[str, int], CellJob] = {}

    def want(cell: Cell, seed: int, stage: tuple[int, ...], measure: Sequence[str] = ()) -> None:
        key = cell.hash, seed
        if key not in jobs and not any(has_statistic(r, cell.statistic) for r in there.get(key, [])):
            config = cell.config.model_copy(update={"seed": seed, "measure": list(measure), **machine})
            jobs[key] = CellJob(config, f"{NAME} {cell.id}, seed {seed}", None, stage, (cell,))

    for arm in arms:
        columns = [(i, c) for i, c in enumerate(arm.columns)
                   if not globs or any(fnmatchcase(f"{c['id']}/{arm.id}", g) for g in globs)]  # fmt: skip
        if not columns:
            continue
        scores = arm.tried(rows)[0]
        for candidate in scores:
            want(arm.cell(candidate, None), league["tuning"]["seed"], (min(find_order(arm, c) for _, c in columns), 0))
        chosen = arm.choose(rows)
        if chosen is None or None in scores.values() or (arm.ours and ours is None):
            continue
        beaten = arm.ours and arm is not ours
        for place, column in columns:
            order = len(league["order"]) + 1 if beaten else find_order(arm, column)
            for block in range(1, column["blocks"] + 1):
                measured = block <= league["measure"]["blocks"]
                names = league["measure"]["names"] if measured and scale == "paper" else []
                want(arm.cell(chosen, column), block, (order, 1, place, block), names)
    return sorted(jobs.values(), key=lambda j: j.stage)


def list_cells(rows: Sequence[Row]) -> list[Cell]:
    """Return every recipe that a row of the league may have: of all candidates that the rows lead to."""
    found = []
    for arm in list_arms():
        chosen = arm.choose(rows)
        candidates = arm.tried(rows)[0] or ([chosen] if chosen else [])
        found += [arm.cell(c, column) for c in candidates for column in (None, *arm.columns)]
    return found


def find_standings(rows: Sequence[Row], scale: str = "paper") -> list[dict[str, Any]]:
    """List every arm in every column with its results by block, in percent; costs are traced and always known."""
    found = []
    by_recipe: dict[str, list[Row]] = {}
    for row in rows:
        by_recipe.setdefault(row["recipe"], []).append(row)
    for arm in list_arms(scale):
        chosen = arm.choose(rows)
        for column in arm.columns:
            cell = arm.cell(chosen or Candidate(arm.axis["values"][1]), column)
            mine = {r["seed"]: r for r in by_recipe.get(cell.hash, []) if 1 <= r["seed"] <= column["blocks"]}
            mine = mine if chosen else {}

            def by_block(statistic: str, factor: float = 1.0, mine: dict[int, Row] = mine) -> dict[int, float]:
                return {
                    b: factor * v for b, r in sorted(mine.items()) if (v := find_statistic(r, statistic)) is not None
                }

            found.append({
                "column": column["id"], "blocks": column["blocks"], "arm": arm.id, "title": arm.title,
                "ours": arm.ours, "tier": arm.tier,
                "chosen": arm.name(chosen) if chosen else None, "recipe": cell.hash,
                "failed": sorted(b for b, r in mine.items() if "failed" in r),
                "mean": by_block(MEAN, 100), "model": by_block(MODEL, 100),
                "lambda1": by_block("measures.lambda1.lambda1"), "trace": by_block("measures.trace.value"),
                **compare_costs(cell.config), "kept": trace_costs(cell.config).kept,
                "seconds": {b: r["seconds"]["total"] / max(r.get("processes", 1), 1) for b, r in sorted(mine.items())},
            })  # fmt: skip
    return found
