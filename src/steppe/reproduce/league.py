"""The league: arms that are tuned alike on held-out data, then judged on the same blocks (tables/league.toml).

This file reads the arms, and tunes them: which candidate to try next, and which is chosen, follows from the rows.
`league_runs` finds what to run, `league_outcome` says what the league shows, and `league_page` writes its page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from math import sqrt
from typing import Any

from steppe.reproduce.recipes import Cell, check_scale, make_config, merge_layers, read_table_file
from steppe.reproduce.rows import Row, find_score

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
                      *self._make_layers(candidate)]  # fmt: skip
            config = make_config(merge_layers(*layers), self.scale, f"league: {self.id}")
            row = f"{self.id}/{self.name(candidate)}"
            self._cells[candidate, place] = Cell(NAME, place, row, None, config, MEAN)
        return self._cells[candidate, place]

    def list_names(self, place: str, rows: Sequence[Row]) -> list[str]:
        """Return what its runs in a column, or in tuning, are called: those of the candidates so far."""
        known = dict.fromkeys(map(self.name, self.score_candidates(rows) or [self.middle(False)]))
        return [f"{place}/{self.id}/{name}" for name in known]

    def middle(self, other: bool) -> Candidate:
        """Return the candidate in the middle of the axis, with the usual momentum or as the fourth."""
        return Candidate(self.axis["values"][1], other)

    def name(self, candidate: Candidate) -> str:
        """Name a candidate by what distinguishes it from the arm's others."""
        if self.like:
            return f"like {self.like.id}"
        key = self.axis["key"].rpartition(".")[2]
        rest = self._list_other() if candidate.other else {}
        at = {key: candidate.at} | rest
        if key == "lr" and "lr" in rest:
            at["lr"] = self._find_rate(candidate)
        return ",".join(f"{k}={v:g}" for k, v in at.items())

    def _list_other(self) -> dict[str, Any]:
        return self.content.get("fourth") or {"momentum": 0.0, "lr": 0.1}

    def _find_rate(self, candidate: Candidate) -> float:
        return candidate.at * (10 if candidate.other and "fourth" not in self.content else 1)

    def _make_layers(self, candidate: Candidate) -> Iterator[dict[str, Any]]:
        content, (kind, _, rest) = self.content, self.axis["key"].partition(".")
        add = content.get("add", [])
        if kind == "add":
            part, _, setting = rest.partition(".")
            add = [_change_setting(text, setting, candidate.at) if text.startswith(part) else text for text in add]
        yield {"algorithm": content["algorithm"], "settings": content.get("settings", {}), "add": add}
        yield content.get("set", {})
        yield self._list_other() if candidate.other else {}
        if kind == "settings":
            yield {"settings": {rest: candidate.at}}
        elif kind != "add":
            yield {kind: self._find_rate(candidate) if kind == "lr" else candidate.at}

    def score(self, candidate: Candidate, rows: Sequence[Row]) -> float | None:
        """Return the score on held-out data; −1 where the training broke down, None where it was not run."""
        return find_score(rows, self.cell(candidate, None).hash, read_league()["tuning"]["seed"], MEAN)

    def score_candidates(self, rows: Sequence[Row]) -> dict[Candidate, float | None]:
        """Return the candidates so far, each with its score, or None if it was not run yet.

        A seventh and an eighth follow while the best is at the edge. Until they are run, the best of the others counts.
        """
        if self.like:
            return {}
        low, middle, high = self.axis["values"]
        scores = {c: self.score(c, rows) for c in (*map(Candidate, (low, middle, high)), Candidate(middle, True))}
        while len(scores) < MOST:
            known = {c: s for c, s in scores.items() if s is not None}
            if len(known) < len(scores) or (len(known) >= CANDIDATES and not self._may_improve(known)):
                break
            more = self._find_fifth(known) if len(known) < CANDIDATES - 1 else self._find_further(known)
            scores[more] = self.score(more, rows)
        return scores

    def list_scores(self, rows: Sequence[Row]) -> dict[Candidate, float]:
        """Return the scores of the candidates that were run."""
        return {c: s for c, s in self.score_candidates(rows).items() if s is not None}

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
            return Candidate(_choose_between(middle, max((low, high), key=lambda at: on_axis[at])), other)
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
        return Candidate(_choose_between(best.at, max((max(below), min(above)), key=lambda at: same[at])), best.other)

    def choose(self, rows: Sequence[Row]) -> Candidate | None:
        """Return the best candidate on held-out data; None while one of the six was not run, or if all failed."""
        if self.like:
            return self.like.choose(rows)
        scores = self.list_scores(rows)
        good = {c: s for c, s in scores.items() if s >= 0}
        return max(good, key=lambda c: good[c]) if len(scores) >= CANDIDATES and good else None

    def is_at_edge(self, chosen: Candidate, rows: Sequence[Row]) -> bool:
        """Return whether nothing was tried on one side of the chosen value with its momentum: the best may be there."""
        return _is_end(chosen, self.list_scores(rows))

    @property
    def columns(self) -> list[dict[str, Any]]:
        """Return the columns in which it runs, each with the number of its blocks there."""
        mine, blocks = self.content.get("columns"), self.content.get("blocks")
        chosen = [c for c in read_league()["column"] if not mine or c["id"] in mine]
        return [c | {"blocks": blocks} for c in chosen] if blocks else chosen


def _is_end(one: Candidate, several: Iterable[Candidate]) -> bool:
    """Return whether a candidate has the least or the greatest value of those with its momentum."""
    values = [c.at for c in several if c.other == one.other]
    return one.at in (min(values), max(values))


def _choose_between(a: float, b: float) -> float:
    """
    >>> _choose_between(0.1, 0.03)
    0.055
    """
    return float(f"{sqrt(a * b):.2g}")


def _change_setting(text: str, setting: str, at: float) -> str:
    """
    >>> _change_setting("server_ascent:rho=0.3,keep=0.9", "rho", 1.0)
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
               "blocks": plan["more_blocks"].get(name, plan["blocks"]), **rule}  # fmt: skip


def find_column(name: str) -> dict[str, Any]:
    return next(c for c in read_league()["column"] if c["id"] == name)


def choose_ours(rows: Sequence[Row], scale: str = "paper") -> Arm | None:
    """Return the arm of ours with the best score on held-out data; None while one of them is not tuned."""
    scores = {}
    for arm in (a for a in list_arms(scale) if a.ours):
        tried = arm.list_scores(rows)
        if len(tried) < CANDIDATES:
            return None
        scores[arm] = max(tried.values())
    return max(scores, key=lambda a: scores[a])


def find_strong(rows: Sequence[Row], scale: str = "paper") -> dict[Arm, float]:
    """Return the arms without a block that do better on held-out data than every arm that ours was compared with."""
    scores = {a: max(a.list_scores(rows).values(), default=-1.0) for a in list_arms(scale)}
    bar = max(score for a, score in scores.items() if a.id in read_league()["contrasts"])
    ran = {row["cell"].split("/")[1] for row in rows if row.get("table") == NAME and not row["config"]["validation"]}
    return {a: score for a, score in scores.items() if score > bar and a.id not in ran}
