"""The sentences of a report: the same on a page, in Markdown and in LaTeX. `report_tables` has the tables."""

from __future__ import annotations

from typing import Any

from steppe.report.comparison import Comparison, Group
from steppe.report.formats import format_bytes, format_count, pluralize
from steppe.report.repeat import describe_data, describe_model, format_value
from steppe.report.seeds import compare_pairs, format_p, join_words, pair_differences

LEVEL = 0.05  # a difference with a smaller p is called a win


def write_headline(c: Comparison) -> str:
    """Return one sentence on which algorithm won, by how much, and whether the test over seeds confirms it."""
    best, m = c.ranking[0], c.metric
    mean, spread = best.average("last")
    reached = f"{m.pair(mean, spread, best.seeds)}{m.unit} test {m.name}"
    if len(c.ranking) == 1:
        return f"{best.label} reached {reached}."
    second, single = c.ranking[1], min(g.seeds for g in c.ranking[:2]) == 1
    equal = [g.label for g in c.ranking if m.number(abs(mean - g.average("last")[0])) == m.number(0.0)]
    if len(equal) > 1:
        return f"{join_words(equal)} are equal{' on a single seed' if single else ' on average'}: {reached}."
    side = "below" if m.lower else "above"
    ahead = f"{_format_gap(c, abs(mean - second.average('last')[0]))} {side} {second.label}"
    if has_winner(c):
        return f"{best.label} won: {reached}, {ahead} ({_describe_test(c)}), {_compare_price(best, second)}."
    if single:
        return f"{best.label} leads on a single seed: {reached}, {ahead}, {_compare_price(best, second)}."
    return f"No clear winner: {best.label} is {ahead}, which may be chance ({_describe_test(c)})."


def write_summary(c: Comparison) -> str:
    """Write the sentences below it: the difference seed by seed, and the cost."""
    best = c.ranking[0]
    if len(c.ranking) == 1:
        return f"It sent {format_bytes(best.traffic)}{_format_gradients(best.gradients)}."
    second, sentences = c.ranking[1], []
    pairs = pair_differences(best.by_seed, second.by_seed)
    test = compare_pairs(best.by_seed, second.by_seed)
    if test is not None and test.error is not None:
        ahead = sum((d < 0) == c.metric.lower and d != 0 for d in pairs)
        sentences.append(f"Seed by seed, {best.label} differs from {second.label} by "
                         f"{c.metric.number(test.difference, sign=True)} ± {c.metric.number(test.error)}"
                         f"{' points' if c.metric.percent else ''} (mean ± standard error) and is ahead "
                         f"in {ahead} of {len(pairs)} seeds ({best.variation}).")  # fmt: skip
    elif min(best.seeds, second.seeds) == 1:
        sentences.append("With a single seed nothing is known about the spread, so the difference may be chance.")
    return " ".join([*sentences, _compare_cost(best, second)])


def find_flattest(rows: dict[str, dict[str, Any]]) -> str:
    """Say whose final model has the smallest λ1, if at least two were measured.

    >>> find_flattest({"fedavg": {"λ1": (30.98, 0.1)}, "fedsam": {"λ1": (17.52, 0.1)}})
    'The flattest minimum is that of fedsam (λ1 17.5; fedavg 31).'
    """
    found = sorted((values["λ1"][0], label) for label, values in rows.items() if "λ1" in values)
    if len(found) < 2:
        return ""
    (least, flattest), *others = found
    compared = ", ".join(f"{label} {value:.3g}" for value, label in others)
    return f"The flattest minimum is that of {flattest} (λ1 {least:.3g}; {compared})."


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
    best, second = c.ranking[:2]
    test = compare_pairs(best.by_seed, second.by_seed)
    return test is not None and test.p is not None and test.p < LEVEL and (test.difference < 0) == c.metric.lower


def _describe_test(c: Comparison) -> str:
    best, second = c.ranking[:2]
    test = compare_pairs(best.by_seed, second.by_seed)
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
        text += f"{_format_gradients(best.gradients)} ({_format_ratio(best.gradients, second.gradients, second)})"
    return text + "."


def _compare_price(best: Group, second: Group) -> str:
    """
    >>> from types import SimpleNamespace as G
    >>> _compare_price(G(traffic=2.0, gradients=5.0), G(traffic=1.0, gradients=5.0))
    'with 2× the traffic and the same number of gradients'
    """
    if best.traffic == second.traffic:
        price = "with the same traffic"
    else:
        price = f"with {best.traffic / second.traffic:.2g}× the traffic" if second.traffic else "with more traffic"
    if best.gradients is None or not second.gradients:
        return price
    same = best.gradients == second.gradients
    much = "the same number of" if same else f"{best.gradients / second.gradients:.2g}× the"
    return f"{price} and {much} gradients"


def _format_gradients(gradients: float | None) -> str:
    return "" if gradients is None else f" and computed {format_count(gradients)} batch gradients"


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
            end = f"{last:.3g} ± {spread:.2g}" if curve.seeds > 1 else f"{last:.3g}"
            each.append(f"{g.label} from {first:.3g} to {end}{unit}")
    return f"{name}: {'; '.join(each)}."
