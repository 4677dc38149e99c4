"""Numbers over seeds: mean and spread, and whether a difference between two algorithms is more than luck.

The test is a paired t-test. Runs of one seed share the initial model, the partition, the clients of every round and
the order of batches, so their difference has less noise than either. `describe_variation` says what differs from seed
to seed: a spread over seeds that share one partition says nothing about other partitions. For n differences with mean
m and standard deviation s,

    t = m / (s/√n)    p = P(|T| ≥ |t|) = I_{ν/(ν+t²)}(ν/2, 1/2),  ν = n − 1

where T has Student's distribution and I is the regularised incomplete beta function. The test assumes normal
differences. A sign-flip test does not, but its p is never below 2/2ⁿ, so it says nothing at 3 or 4 seeds. Over several
algorithms, p is not corrected for their number.

I is computed here, in twenty lines, because scipy is not a dependency of the core install; the tests compare with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, isfinite, lgamma, log, log1p, nan, sqrt
from statistics import fmean, stdev
from typing import Any

from steppe.config import OWN
from steppe.data.partition import is_rule, parse
from steppe.data.rules import natural
from steppe.jobs.points import Point


def compute_spread(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the sample standard deviation, 0 for a single value; nan if a value is not finite."""
    if not all(map(isfinite, values)):
        return nan, nan
    return fmean(values), stdev(values) if len(values) > 1 else 0.0


def describe_variation(config: Mapping[str, Any], abouts: Sequence[Mapping[str, Any]] = ()) -> str:
    """Say what differs from seed to seed, and what all seeds share.

    `abouts` are the about.json of the runs: their hashes show whether models of the user's own and held-out samples
    are the same.

    >>> run = {"model": "cnn", "vary": None, "partition": "lda(0.3)", "clients": 20, "per_round": 5, "validation": 0.0}
    >>> describe_variation({**run, "vary": "all"})
    "seeds vary the initial model, the batches, the partition and the clients' schedule"
    >>> describe_variation(run)
    "seeds vary the initial model and the batches; all share the partition and the clients' schedule"
    >>> describe_variation({**run, "validation": 0.1, "per_round": 20})
    'seeds vary the initial model, the batches, the validation samples and the partition'
    """
    if len(abouts) == 1:
        return "one seed, so nothing varies"
    everything = config.get("vary") == "all"
    initial = {(a.get("model") or {}).get("initial") for a in abouts}
    data = {(a.get("data") or {}).get("hash") for a in abouts}
    private = [p for a in abouts for p in a.get("parts", []) if p["part"] == "dp" and "amplified" in p]
    noise = len({p["seed"] for p in private}) > 1
    rule = config["partition"]
    divided = is_rule(rule) and parse(rule)[0] is not natural
    own_model = config["model"].startswith(OWN)
    unknown = own_model and (not initial or None in initial)
    # A rule divides what validation leaves; held-out samples from a file are the same for all seeds.
    held_out = bool(config["validation"]) and (len(data) != 1 or None in data)
    varied = {
        "the initial model": not own_model or len(initial) > 1,
        "the batches": True,
        "the validation samples": held_out,
        "the partition": divided and (held_out or (everything and config.get("partition_seed") is None)),
        "the clients' schedule": any(not p["secret"] and noise for p in private if p["amplified"])
        or (everything and config.get("sampling_seed") is None and not any(p["amplified"] for p in private)),
        "the clients' failures": bool(config.get("dropout")),
        "the clients' speeds": bool(config.get("speed")),
        "the noise": any(p["secret"] for p in private) or noise,
    }
    there = {
        "the initial model": not unknown,
        "the validation samples": bool(config["validation"]),
        "the clients' schedule": config["per_round"] != config["clients"],  # otherwise there is no choice of clients
        "the clients' failures": varied["the clients' failures"],
        "the clients' speeds": varied["the clients' speeds"],
        "the noise": bool(private),
    }
    varied = {what: differs for what, differs in varied.items() if there.get(what, True)}
    shared = [what for what, differs in varied.items() if not differs]
    words = f"seeds vary {join_words([what for what in varied if what not in shared])}"
    words += f"; all share {join_words(shared)}" if shared else ""
    return words + ("; whether they vary the initial model was not recorded" if unknown else "")


def describe_points(points: Sequence[Point]) -> str:
    """Say the same about a comparison or a sweep: about the point with the most runs."""
    most = max(points, key=lambda p: len(p.results))
    return describe_variation(most.config.model_dump(), most.abouts)


def join_words(words: Sequence[str]) -> str:
    """
    >>> join_words(["a", "b", "c"]), join_words(["a"])
    ('a, b and c', 'a')
    """
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


@dataclass(frozen=True)
class Paired:
    """Mean difference over the seeds that both have, its standard error, and the two-sided p-value.

    One seed has neither; differences that are all the same have no p, because their spread is not known.
    """

    seeds: int
    difference: float
    error: float | None
    p: float | None


def pair_differences(ours: Mapping[int, float], theirs: Mapping[int, float]) -> list[float]:
    """Return our value minus theirs at every seed that both have."""
    return [ours[k] - theirs[k] for k in ours if k in theirs]


def compare_pairs(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Paired | None:
    """Test the difference of two algorithms by seed; None where no seed is common.

    >>> compare_pairs({0: 0.9, 1: 0.8, 2: 0.85}, {0: 0.8, 1: 0.78, 2: 0.8}).seeds
    3
    """
    each = pair_differences(ours, theirs)
    if not each:
        return None
    mean, n = fmean(each), len(each)
    if n == 1:
        return Paired(1, mean, None, None)
    error = stdev(each) / sqrt(n)
    # Differences of equal numbers may differ in their last bit: this does not count as spread.
    spread = error > 1e-12 * max(map(abs, [*ours.values(), *theirs.values()]))
    return Paired(n, mean, error, compute_student_p(mean / error, n - 1) if spread else None)


def compute_student_p(t: float, freedom: int) -> float:
    """Return P(|T| ≥ |t|) for Student's T.

    >>> round(compute_student_p(2.0, 1), 12) == round(1 - 2 * 0.35241638234956674, 12)  # arctan(2)/π
    True
    """
    return 1.0 if t == 0 else incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5)


def format_p(p: float) -> str:
    """
    >>> format_p(0.10161), format_p(2e-5)
    ('= 0.102', '< 0.001')
    """
    return "< 0.001" if p < 0.001 else f"= {p:.3f}"


def incomplete_beta(x: float, a: float, b: float) -> float:
    """Return I_x(a, b), by its continued fraction (modified Lentz), on the side where that converges fast."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(1 - x, b, a)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x)) / a
    tiny = 1e-300
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1) or tiny)
    value, before, m = d, inf, 0
    while abs(value - before) > 1e-15 * abs(value):
        before, m = value, m + 1
        for factor in (m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
                       -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))):  # fmt: skip
            d = 1 / (1 + factor * d or tiny)
            c = 1 + factor / c or tiny
            value *= c * d
    return front * value
