"""Recommend a method from the committed rows: the best that a federation can afford, in the nearest setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Any

from steppe.data.partition import parse
from steppe.reproduce.intervals import Interval, compare_blocks
from steppe.reproduce.method_results import Evidence, Setting

EVEN, ALIKE = "iid", 100.0  # clients that are alike: as if the parameter of lda, dirichlet or sharding were so large
OTHER_RULE = 3.0  # between partitions of two kinds
RARE = 0.02  # of the clients per round: the smallest share that the league plans
# What a reader of an answer has to know about its table.
CAVEATS = {
    "fedsol-table1": "FedSoL's setting in that table was chosen when results were known, and FedAvg has the paper's "
                     "local momentum, 0.9: in the league it is far better with 0.",
    "man-accuracy": "The settings in that table are its paper's: its methods were not tuned alike.",
    "survey": "FedAvg has a local momentum of 0.9 in the survey: in the league it is far better with 0.",
}  # fmt: skip
CHANCE = 2.0  # points by which single runs may differ by chance (docs/survey.md)


@dataclass(frozen=True)
class Wish:
    """A federation: its known properties, and what a method may cost, as multiples of FedAvg."""

    clients: int | None = None
    per_round: int | None = None
    partition: str | None = None
    data: str | None = None
    stateless: bool = False
    max_bytes: float | None = None
    max_flops: float | None = None

    def allows(self, e: Evidence) -> bool:
        """Return whether a method keeps within the limits; costs are compared to the second decimal."""
        return ((not self.stateless or e.stateless)
                and (self.max_bytes is None or round(e.bytes_x, 2) <= self.max_bytes)
                and (self.max_flops is None or round(e.flops_x, 2) <= self.max_flops))  # fmt: skip

    def measure_distance(self, s: Setting) -> float:
        """Return how far a setting is from this federation: 0 if nothing that is known differs."""
        away = 0.0
        if self.clients:
            away += abs(log(s.clients / self.clients))
        if self.clients and self.per_round:
            away += abs(log(s.per_round / s.clients * self.clients / self.per_round))
        elif self.per_round:
            away += abs(log(s.per_round / self.per_round))
        if self.partition:
            away += _compare_partitions(self.partition, s.partition)
        return away + (1.0 if self.data and self.data != s.data else 0.0)


def _compare_partitions(wanted: str, there: str) -> float:
    (rule, numbers), (other, others) = parse(wanted), parse(there)
    if EVEN in rule.__name__ and EVEN not in other.__name__:
        return abs(log(others[0] / ALIKE)) if others else OTHER_RULE
    if rule is not other:
        return OTHER_RULE
    return sum(abs(log(a / b)) for a, b in zip(numbers, others, strict=False))


def advise(wish: Wish, evidence: Sequence[Evidence], uncompared: Sequence[Evidence] = ()) -> dict[str, Any]:
    """Answer from the nearest setting in which at least two methods were compared; of several, the one with most runs.

    The advice is the most accurate method within the limits. `level` has the methods that the rows do not distinguish
    from it, `dominated` those that cost at least as much as another method there and are less accurate.

    uncompared  methods that the league has only tuned so far, with their accuracy on held-out data
    """
    places: dict[Setting, list[Evidence]] = {}
    for e in evidence:
        places.setdefault(e.setting, []).append(e)
    compared = {s: found for s, found in places.items() if sum(map(wish.allows, found)) > 1}
    if not compared:
        return {"advice": None, "gaps": ["No two methods within these limits were compared anywhere."]}

    def rank(setting: Setting) -> tuple[float, int, int]:
        counts = sorted((e.accuracy.count for e in compared[setting] if wish.allows(e)), reverse=True)
        return (round(wish.measure_distance(setting), 6), -counts[1], -len(counts))  # runs of at least two methods

    nearest = min(compared, key=rank)
    found = sorted(compared[nearest], key=lambda e: -e.accuracy.mean)
    able = [e for e in found if wish.allows(e)]
    best = able[0]
    return {
        "setting": str(nearest), "source": nearest.source, "advice": describe_evidence(best),
        "level": [describe_evidence(e) for e in able[1:] if is_level(best, e)],
        "others": [describe_evidence(e) for e in able[1:] if not is_level(best, e)],
        "beyond_limits": [describe_evidence(e) for e in found
                          if not wish.allows(e) and e.accuracy.mean > best.accuracy.mean],
        "dominated": [e.title for e in found if is_dominated(e, found)],
        "gaps": find_gaps(wish, nearest, best) + [
            f"Not compared yet, though it may be as good: {e.title} ({e.accuracy.mean:.2f} % of held-out data, 1 run)."
            for e in uncompared if nearest.source == "league" and wish.allows(e)],
    }  # fmt: skip


def is_level(best: Evidence, other: Evidence) -> bool:
    """Return whether the rows do not distinguish two methods: an interval with 0, or one or two close runs."""
    pair = compare_blocks(dict(best.by_seed), dict(other.by_seed))
    if pair is None or pair.count < 3:  # an interval over two pairs says nothing
        return best.accuracy.mean - other.accuracy.mean < CHANCE
    return not pair.excludes_zero


def is_dominated(e: Evidence, found: Sequence[Evidence]) -> bool:
    """Return whether another method is more accurate, beyond chance, and costs no more in any respect."""
    return any(o.accuracy.mean > e.accuracy.mean and not is_level(o, e) and o.bytes_x <= e.bytes_x + 0.005
               and o.flops_x <= e.flops_x + 0.005 and o.kept <= e.kept + 1e-3 for o in found)  # fmt: skip


def find_gaps(wish: Wish, nearest: Setting, best: Evidence) -> list[str]:
    """Return sentences on how the evidence differs from this federation, and on how little there is."""
    gaps = []
    if wish.clients and wish.clients != nearest.clients:
        gaps.append(f"No run has {wish.clients:,} clients: the nearest has {nearest.clients:,}.")
    if wish.per_round and wish.clients:
        share, there = wish.per_round / wish.clients, nearest.per_round / nearest.clients
        if abs(log(share / there)) > 1e-6:
            gaps.append(f"No run within these limits has a participation of {100 * share:g} %: the nearest has "
                        f"{100 * there:g} %.")  # fmt: skip
        if not best.stateless and share < there:
            rare = ", if it is used again at all: see also what --stateless answers" if share < RARE else ""
            gaps.append(
                f"{best.title} keeps a state on clients, which is older where they take part more rarely{rare}."
            )
    if wish.partition and wish.partition != nearest.partition:
        gaps.append(f"No run within these limits has the partition {wish.partition}: the nearest is "
                    f"{nearest.partition}.")  # fmt: skip
    if wish.data and wish.data != nearest.data:
        gaps.append(f"No run is about {wish.data}: the nearest is about {nearest.data}.")
    if best.accuracy.count == 1:
        gaps.append("One seed and one draw of the partition: differences of a point or two may be chance.")
    return gaps + ([CAVEATS[nearest.source]] if nearest.source in CAVEATS else [])


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def _describe_gain(name: str, gain: Interval | None) -> dict[str, float | None]:
    return {name: _round(gain.mean if gain else None), f"{name}_half_width": _round(gain.half if gain else None)}


def describe_evidence(e: Evidence) -> dict[str, Any]:
    return {
        "method": e.title, "run": f"steppe run {e.command}", "accuracy": round(e.accuracy.mean, 2),
        "half_width": _round(e.accuracy.half), "seeds": e.accuracy.count,
        **_describe_gain("over_fedavg", e.gain), **_describe_gain("over_fedavg_ema", e.gain_over_mean),
        "bytes": round(e.bytes_x, 2), "flops": round(e.flops_x, 2), "kept": round(e.kept, 2),
    }  # fmt: skip
