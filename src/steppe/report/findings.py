"""The sentences of a report: the same on a page, in Markdown and in LaTeX. `report_tables` has the tables."""

from __future__ import annotations

from statistics import fmean

from steppe.core.rounding import format_number
from steppe.report.compare_table import format_difference
from steppe.report.comparison import Comparison, Group
from steppe.report.formats import format_bytes, format_count, pluralize
from steppe.report.repeat import describe_data, describe_model, format_value
from steppe.report.seeds import Paired, compare_pairs, format_p, join_words, pair_differences

LEVEL = 0.05  # a difference with a smaller p is called a win


def write_headline(c: Comparison) -> str:
    """Return one sentence on which algorithm won, by how much, and whether the test over seeds confirms it."""
    best, m = c.ranking[0], c.metric
    mean, spread = best.average("last")
    reached = f"{m.pair(mean, spread, best.seeds)}{m.unit} {c.judged_on} {m.name}"
    if len(c.ranking) == 1:
        return f"{best.label} reached {reached}."
    second, single = c.ranking[1], min(g.seeds for g in c.ranking[:2]) == 1
    equal = [g.label for g in c.ranking if m.number(abs(mean - g.average("last")[0])) == m.number(0.0)]
    if len(equal) > 1:
        return f"{join_words(equal)} are equal{' on a single seed' if single else ' on average'}: {reached}."
    side = "below" if m.lower else "above"
    ahead = f"{_format_gap(c, abs(mean - second.average('last')[0]))} {side} {second.label}"
    tested = _describe_test(_compare_best(c))
    if has_winner(c):
        return f"{best.label} won: {reached}, {ahead} ({tested}), {_compare_price(best, second)}."
    if single:
        return f"{best.label} leads on a single seed: {reached}, {ahead}, {_compare_price(best, second)}."
    return f"No clear winner: {best.label} is {ahead}, which may be chance ({tested})."


def write_summary(c: Comparison) -> str:
    """Write the sentences below it: the difference seed by seed, and the cost."""
    best = c.ranking[0]
    if len(c.ranking) == 1:
        computed = "" if best.gradients is None else f" and computed {_format_passes(best)}"
        return f"It sent {format_bytes(best.traffic)}{computed}."
    second, sentences = c.ranking[1], []
    pairs = pair_differences(best.by_seed, second.by_seed)
    test = _compare_best(c)
    if test is not None and test.error is not None:
        ahead = sum((d < 0) == c.metric.lower and d != 0 for d in pairs)
        sentences.append(f"Seed by seed, {best.label} differs from {second.label} by "
                         f"{format_difference(test, c.metric)}"
                         f"{' points' if c.metric.percent else ''} (mean ± standard error) and is ahead "
                         f"in {ahead} of {len(pairs)} seeds ({best.variation}).")  # fmt: skip
    elif min(best.seeds, second.seeds) == 1:
        sentences.append("With a single seed nothing is known about the spread, so the difference may be chance.")
    return " ".join([*sentences, _compare_cost(best, second)])


def find_flattest(c: Comparison) -> str:
    """Say whose final models have the smallest λ1 and whether a test over seeds confirms it, if two were measured."""
    measured = {g.label: {r.seed: r.measures["λ1"][0] for r in g.runs if "λ1" in r.measures} for g in c.groups}
    ranked = sorted((label for label in measured if measured[label]), key=lambda k: fmean(measured[k].values()))
    if len(ranked) < 2:
        return ""
    number = {g.label: format_number(g.measures.get("λ1")) for g in c.groups}
    values = ", ".join(f"{label} {number[label]}" for label in ranked)
    first, second = (measured[label] for label in ranked[:2])
    test = compare_pairs(first, second)
    if min(len(first), len(second)) == 1:
        return f"On a single seed, {ranked[0]} has the smallest λ1 ({values})."
    said = f"{ranked[0]}'s is below {ranked[1]}'s"
    if test is not None and test.p is not None and test.p < LEVEL and test.difference < 0:
        return f"The smallest λ1 is clear: {said} ({_describe_test(test)}; {values})."
    on_average = " on average" if test is not None and test.difference > 0 else ""  # not on the seeds that both have
    return f"No clear smallest λ1: {said}{on_average}, which may be chance ({_describe_test(test)}; {values})."


def list_notes(c: Comparison) -> list[str]:
    """List what makes the comparison less than one protocol, what is not known, and what was left out."""
    notes = []
    if c.differences:
        each = "; ".join(f"{k} is {' or '.join(map(format_value, v))}" for k, v in c.differences.items())
        notes.append(f"The runs do not share one protocol: {each}.")
    counts = {g.seeds for g in c.groups}
    if len(counts) > 1:
        notes.append("The algorithms have different numbers of seeds: "
                     + ", ".join(f"{g.label} {g.seeds}" for g in c.groups) + ".")  # fmt: skip
    old = [str(run.folder) for run in c.runs if "format" not in run.about]
    if old:
        those = old[0] if len(old) == 1 else f"{old[0]} and {pluralize(len(old) - 1, 'other folder')}"
        notes.append(f"{those} {'was' if len(old) == 1 else 'were'} written by version 0.1.0, which did not record who "
                     "took part in each round: the number of gradients computed is not known.")  # fmt: skip
    elif unknown := [g.label for g in c.groups if g.gradients is None]:
        notes.append(f"The number of gradients computed is not known for {', '.join(unknown)}: who took part is a "
                     "secret, or was not recorded.")  # fmt: skip
    return notes + [f"Left out: {sentence}" for sentence in c.left_out]


def describe_setting(c: Comparison) -> str:
    """Describe the protocol in one line."""
    run, config = c.runs[0], c.runs[0].config
    parts = {"partition": config["partition"], "clients": pluralize(config["clients"], "client"),
             "per_round": f"{config['per_round']} per round", "rounds": pluralize(config["rounds"], "round"),
             "model": f"{describe_model(run)}, {run.about['parameters']:,} parameters"}  # fmt: skip
    kept = [text for key, text in parts.items() if key not in c.differences]
    seeds = sorted({g.seeds for g in c.groups})
    count = pluralize(seeds[0], "seed") if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
    varied = [max(c.groups, key=lambda g: g.seeds).variation] if seeds[-1] > 1 else []
    return " · ".join([describe_data(run), *kept, count, *varied])


def has_winner(c: Comparison) -> bool:
    """Return whether the best is ahead of the second by the paired t-test over their common seeds."""
    test = _compare_best(c)
    return test is not None and test.p is not None and test.p < LEVEL and (test.difference < 0) == c.metric.lower


def _compare_best(c: Comparison) -> Paired | None:
    best, second = c.ranking[:2]
    return compare_pairs(best.by_seed, second.by_seed)


def _describe_test(test: Paired | None) -> str:
    if test is None or test.error is None:
        return f"no test: they have {'one seed' if test else 'no seed'} in common"
    if test.p is None:
        return f"no test: the difference is the same at all {test.seeds} seeds"
    return f"paired t-test over {test.seeds} seeds, p {format_p(test.p)}"


def _format_gap(c: Comparison, gap: float) -> str:
    return f"{c.metric.number(gap)} points" if c.metric.percent else c.metric.number(gap)


def _compare_cost(best: Group, second: Group) -> str:
    ratio = _format_ratio(best.traffic, second.traffic, second)
    text = f"{best.label} sent {format_bytes(best.traffic)} in all ({ratio})"
    if best.gradients is not None and second.gradients is not None:
        text += f" and computed {_format_passes(best)} ({second.label}: {_format_passes(second)})"
    return text + "."


def _compare_price(best: Group, second: Group) -> str:
    """
    >>> from types import SimpleNamespace as G
    >>> _compare_price(G(traffic=2.0, gradients=5.0, forwards=5.0), G(traffic=1.0, gradients=5.0, forwards=0.0))
    'with 2× the traffic, the same number of gradients and 5 extra forward passes'
    """
    if best.traffic == second.traffic:
        price = ["with the same traffic"]
    else:
        price = [f"with {best.traffic / second.traffic:.2g}× the traffic" if second.traffic else "with more traffic"]
    if best.gradients is not None and second.gradients:
        same = best.gradients == second.gradients
        price.append(f"{'the same number of' if same else f'{best.gradients / second.gradients:.2g}× the'} gradients")
    if best.forwards != second.forwards and best.forwards is not None and second.forwards is not None:
        both = best.forwards and second.forwards
        count = f"{best.forwards / second.forwards:.2g}× the" if both else format_count(best.forwards or 0)
        price.append(f"{count} extra forward passes")
    return join_words(price)


def _format_passes(g: Group) -> str:
    """Return the gradients and, if there are any, the forward passes in addition to theirs."""
    extra = f" and {format_count(g.forwards)} extra forward passes" if g.forwards else ""
    return f"{format_count(g.gradients)} batch gradients{extra}"


def _format_ratio(a: float, b: float, whose: Group) -> str:
    if a == b:
        return f"the same as {whose.label}"
    return f"{a / b:.2g}× {whose.label}'s" if b else f"{whose.label}: none"


def describe_curves(c: Comparison, key: str, name: str, percent: bool) -> str:
    """Put a curve of every algorithm into words, by its beginning and its end."""
    unit, times = (" %", 100) if percent else ("", 1)
    each = []
    for g in c.ranking:
        curve = g.make_curve(key)
        if curve is not None:
            first, last, spread = (times * v for v in (curve.mean[0], curve.mean[-1], curve.spread[-1]))
            end = format_number((last, spread if curve.seeds > 1 else None))
            each.append(f"{g.label} from {first:.3g} to {end}{unit}")
    return f"{name}: {'; '.join(each)}."
