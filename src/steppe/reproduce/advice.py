"""Recommend a method from the committed rows: the best that a federation can afford, in the nearest setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

from steppe.data.partition import parse
from steppe.reproduce.factorial import ENOUGH
from steppe.reproduce.intervals import CHANCE, Interval, compare_blocks
from steppe.reproduce.method_results import Evidence, Setting

EVEN, ALIKE = "iid", 100.0  # clients that are alike: as if the parameter of lda, dirichlet or sharding were so large
OTHER_RULE = 3.0  # between partitions of two kinds
SIMILAR_RULE = 0.5  # between two rules of one kind, whose parameters mean much the same
KINDS = ({"sharding", "sharding_fedntd", "pathological"},
         {"lda", "lda_fedntd", "dirichlet", "dirichlet_once", "dirichlet_replace", "longtail"})  # fmt: skip
RARE = 0.02  # of the clients per round: the smallest share that the league plans
# What a reader of an answer has to know about its table.
CAVEATS = {
    "league": "A ± in the league covers other draws of partition, schedule and seed on the same data with the same "
              "network. It covers neither other data or networks, nor the choice of the settings.",
    "fedsol-table1": "FedSoL's setting in that table was chosen after its results were seen, and FedAvg has the "
                     "paper's local momentum, 0.9: in the league FedAvg is far better with 0. Seeds share one draw of "
                     "the partition there, so a ± over them is too small.",
    "man-accuracy": "The settings in that table are its paper's: its methods were not tuned alike.",
    "survey": "FedAvg has a local momentum of 0.9 in the survey: in the league FedAvg is far better with 0.",
}  # fmt: skip


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
    if rule is other and not numbers:
        return 0.0
    if rule is other or any({rule.__name__, other.__name__} <= kind for kind in KINDS):
        # By their first parameter: the others are minima and shares.
        return abs(log(numbers[0] / others[0])) + SIMILAR_RULE * (rule is not other)
    return OTHER_RULE


def advise(
    wish: Wish, evidence: Sequence[Evidence], uncompared: Sequence[Evidence] = (), tuned: Sequence[Evidence] = ()
) -> dict[str, Any]:
    """Answer from the nearest setting in which at least two methods were compared; of several, the one with most runs.

    The advice is the most accurate method within the limits. `level` has the methods that it is not shown to be better
    than, `dominated` those that cost at least as much as another method there and are less accurate.

    uncompared  methods that the league has only tuned so far, with their accuracy on held-out data
    tuned       all methods that the league has tuned
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
    found = rank_methods(compared[nearest])
    able = rank_methods([e for e in found if wish.allows(e)])
    best = able[0]
    strong = [e for e in uncompared if nearest.source == "league" and wish.allows(e)]
    there = {e.title for e in (*found, *strong)}
    absent = [e.title for e in tuned if nearest.source == "league" and wish.allows(e) and e.title not in there]
    return {
        "setting": str(nearest), "source": nearest.source, "compared": len(able), "advice": describe_evidence(best),
        "level": [describe_evidence(e) | _describe_gain("below", _compare(best, e)) for e in able[1:]
                  if is_level(best, e)],
        "others": [describe_evidence(e) for e in able[1:] if not is_level(best, e)],
        "beyond_limits": [describe_evidence(e) for e in found
                          if not wish.allows(e) and is_better(e, best)],
        "dominated": [e.title for e in found if is_dominated(e, found)],
        "gaps": find_gaps(wish, nearest, best) + find_defeats(wish, best, places) + [
            f"Not compared yet, but possibly as good: {e.title} ({e.accuracy.mean:.2f} % of held-out data, 1 run)."
            for e in strong] + ([f"Tuned, but not run there: {', '.join(absent)}."] if absent else []),
    }  # fmt: skip


def rank_methods(found: Sequence[Evidence]) -> list[Evidence]:
    """Return methods of a setting, the best first.

    Blocks differ by more than methods do, so a method that lacks some is ranked by its differences from the one that
    has the most. If several methods have three blocks, those with fewer come last.
    """
    full = max(found, key=lambda e: e.accuracy.count)
    usual = min(sorted(e.accuracy.count for e in found)[-2:][0], ENOUGH)

    return sorted(found, key=lambda e: (e.accuracy.count < usual, -_compare(e, full).mean))


def is_better(one: Evidence, other: Evidence) -> bool:
    """Return whether the rows show that one method is more accurate: an interval above 0, or one or two far runs."""
    pair = _compare(one, other)
    if pair.count < ENOUGH:  # an interval over two pairs says nothing
        return pair.mean >= CHANCE
    return pair.excludes_zero and pair.mean > 0


def is_level(best: Evidence, other: Evidence) -> bool:
    """Return whether the rows do not show that the best is better."""
    return not is_better(best, other)


def _compare(one: Evidence, other: Evidence) -> Interval:
    """Return the mean difference over the runs that both have; if there are none, that of the means, over 0 runs."""
    pair = compare_blocks(dict(one.by_seed), dict(other.by_seed))
    return pair or Interval(one.accuracy.mean - other.accuracy.mean, None, 0)


def is_dominated(e: Evidence, found: Sequence[Evidence]) -> bool:
    """Return whether another method is more accurate, beyond chance, and costs no more in any respect."""
    return any(is_better(o, e) and o.bytes_x <= e.bytes_x + 0.005 and o.flops_x <= e.flops_x + 0.005
               and o.kept <= e.kept + 1e-3 for o in found)  # fmt: skip


def find_defeats(wish: Wish, best: Evidence, places: Mapping[Setting, Sequence[Evidence]]) -> list[str]:
    """Say where else, in the same source, a method within the limits is more accurate than the answer."""
    told = []
    for setting, found in places.items():
        here = next((e for e in found if e.title == best.title), None)
        if here is None or setting == best.setting or setting.source != best.setting.source:
            continue
        if better := [e for e in rank_methods(found) if wish.allows(e) and is_better(e, here)]:
            told.append(f"{setting.data}, {setting.partition}: {better[0].title} by {_compare(better[0], here)}")
    return [f"Elsewhere {best.title} is behind (points, with the number of runs in brackets): {'; '.join(told)}."] * (
        bool(told)
    )


def find_gaps(wish: Wish, nearest: Setting, best: Evidence) -> list[str]:
    """Return sentences on how the evidence differs from this federation, and on how little there is."""
    gaps = []
    if wish.clients and wish.clients != nearest.clients:
        gaps.append(f"No comparison within these limits has {wish.clients:,} clients: the nearest has "
                    f"{nearest.clients:,}.")  # fmt: skip
    if wish.per_round and wish.clients:
        share, there = wish.per_round / wish.clients, nearest.per_round / nearest.clients
        if abs(log(share / there)) > 1e-6:
            gaps.append(f"No comparison within these limits has a participation of {100 * share:g} %: the nearest has "
                        f"{100 * there:g} %.")  # fmt: skip
        if not best.stateless and share < there:
            rare = " or is never used again: try --stateless, too" if share < RARE else ""
            gaps.append(f"{best.title} keeps a state on clients, which ages if they take part more rarely{rare}.")
    elif wish.per_round and wish.per_round != nearest.per_round:
        gaps.append(f"No comparison within these limits has {wish.per_round:,} clients per round: the nearest has "
                    f"{nearest.per_round:,} of {nearest.clients:,}.")  # fmt: skip
    if wish.partition and wish.partition != nearest.partition:
        like = _compare_partitions(wish.partition, nearest.partition) < OTHER_RULE
        gaps.append(f"No comparison within these limits has the partition {wish.partition}"
                    + (f": the nearest is {nearest.partition}." if like else
                       f", or one that can be compared with it: this one has {nearest.partition}."))  # fmt: skip
    if wish.data and wish.data != nearest.data:
        gaps.append(f"No comparison within these limits uses {wish.data}: the nearest uses {nearest.data}, and "
                    "all use images.")  # fmt: skip
    if best.remark:
        gaps.append(best.remark)
    if best.accuracy.count == 1:
        gaps.append(f"One seed and one draw of the partition: differences of up to {CHANCE:g} points may be chance.")
    return gaps + ([CAVEATS[nearest.source]] if nearest.source in CAVEATS else [])


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def _describe_gain(name: str, gain: Interval | None) -> dict[str, float | None]:
    return {name: _round(gain.mean if gain else None), f"{name}_half_width": _round(gain.half if gain else None),
            f"{name}_seeds": gain.count if gain else None}  # fmt: skip


def describe_evidence(e: Evidence) -> dict[str, Any]:
    return {
        "method": e.title, "run": f"steppe run {e.command}", "accuracy": round(e.accuracy.mean, 2),
        "half_width": _round(e.accuracy.half), "seeds": e.accuracy.count,
        **_describe_gain("over_fedavg", e.gain), **_describe_gain("over_fedavg_ema", e.gain_over_mean),
        "bytes": round(e.bytes_x, 2), "flops": round(e.flops_x, 2), "kept": round(e.kept, 2),
    }  # fmt: skip
