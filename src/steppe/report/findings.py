"""What a comparison says, in words: the same for a page, for Markdown and for LaTeX. `evidence` has the tables."""

from __future__ import annotations

import json
import shlex
from typing import Any

from steppe.algorithms import CATALOGUE
from steppe.config import resolve
from steppe.report.comparison import Comparison, Group, Run, count_text, mean_and_spread, traffic_text


# ------------------------------------------------------------------------------------------------------ the answer
def headline(c: Comparison) -> str:
    """One sentence: which algorithm won, by how much, and whether that is more than the spread over seeds."""
    best, m = c.ranking[0], c.metric
    mean, spread = best.over("last")
    reached = f"{m.pair(mean, spread, best.seeds)}{m.unit} test {m.name}"
    if len(c.ranking) == 1:
        return f"{best.label} reached {reached}."
    second = c.ranking[1]
    gap = _points(c, abs(mean - second.over("last")[0]))
    side = "below" if m.lower else "above"
    if decided(c):
        return f"{best.label} won: {reached}, {gap} {side} {second.label}, {_price(best, second)}."
    if min(best.seeds, second.seeds) == 1:
        return f"{best.label} leads on a single seed: {reached}, {gap} {side} {second.label}, {_price(best, second)}."
    return f"No clear winner: {best.label} is {gap} {side} {second.label}, within the spread over seeds."


def lead(c: Comparison) -> list[str]:
    """The sentences below it: the difference seed by seed, the cost, and what else must be known."""
    best = c.ranking[0]
    said = []
    if len(c.ranking) > 1:
        second = c.ranking[1]
        pairs = paired(best, second)
        if len(pairs) > 1:
            mean, spread = mean_and_spread(pairs)
            ahead = sum((d < 0) == c.metric.lower and d != 0 for d in pairs)
            said.append(f"Seed by seed, {best.label} differs from {second.label} by "
                        f"{c.metric.number(mean, sign=True)} ± {c.metric.number(spread)}"
                        f"{' points' if c.metric.percent else ''} and is ahead in {ahead} of {len(pairs)} "
                        "seeds.")  # fmt: skip
        elif min(best.seeds, second.seeds) == 1:
            said.append("With a single seed nothing is known about the spread: a difference may be luck.")
        said.append(_cost_sentence(best, second))
    else:
        said.append(f"It sent {traffic_text(best.traffic)}" + _computed(best.gradients) + ".")
    return said


def notes(c: Comparison) -> list[str]:
    """What makes the comparison less than one protocol, and what was left out of it."""
    said = []
    if c.differences:
        told = "; ".join(f"{k} is {' or '.join(map(_value, v))}" for k, v in c.differences.items())
        said.append(f"The runs were not made under one protocol: {told}.")
    counts = {g.seeds for g in c.groups}
    if len(counts) > 1:
        said.append("The algorithms have different numbers of seeds: "
                    + ", ".join(f"{g.label} {g.seeds}" for g in c.groups) + ".")  # fmt: skip
    return said + [f"Left out: {sentence}" for sentence in c.left_out]


def setting(c: Comparison) -> str:
    """The protocol in one line."""
    run, config = c.runs[0], c.runs[0].config
    model = config["model"] if run.about.get("model") else "an own model"
    shown = {"partition": config["partition"], "clients": f"{config['clients']} clients",
             "per_round": f"{config['per_round']} a round", "rounds": counted(config["rounds"], "round"),
             "model": f"{model}, {run.about['parameters']:,} parameters"}  # fmt: skip
    kept = [text for key, text in shown.items() if key not in c.differences]
    seeds = sorted({g.seeds for g in c.groups})
    count = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    return " · ".join([config["data"], *kept, f"{count} seed{'s' if seeds[-1] > 1 else ''}"])


def counted(count: int, what: str) -> str:
    """
    >>> counted(1, "round"), counted(30, "round")
    ('1 round', '30 rounds')
    """
    return f"{count} {what}{'' if count == 1 else 's'}"


def paired(a: Group, b: Group) -> list[float]:
    """Differences of the final model's metric at the seeds that both have."""
    other = {r.seed: float(r.summary["last"]) for r in b.runs}
    return [float(r.summary["last"]) - other[r.seed] for r in a.runs if r.seed in other]


def decided(c: Comparison) -> bool:
    """Ahead at every common seed, of which there are at least two, and by more than either spread."""
    best, second = c.ranking[:2]
    pairs = paired(best, second)
    (mean, spread), (other, other_spread) = best.over("last"), second.over("last")
    ahead = all((d < 0) if c.metric.lower else (d > 0) for d in pairs)
    return len(pairs) > 1 and ahead and abs(mean - other) > max(spread, other_spread)


def _points(c: Comparison, gap: float) -> str:
    return f"{c.metric.number(gap)} points" if c.metric.percent else c.metric.number(gap)


def _cost_sentence(best: Group, second: Group) -> str:
    text = f"{best.label} sent {traffic_text(best.traffic)} in all ({_times(best.traffic, second.traffic, second)})"
    if best.gradients is not None and second.gradients is not None:
        text += f"{_computed(best.gradients)} ({_times(best.gradients, second.gradients, second)})"
    return text + "."


def _price(best: Group, second: Group) -> str:
    """
    >>> from types import SimpleNamespace as G
    >>> _price(G(traffic=2.0, gradients=5.0), G(traffic=1.0, gradients=5.0))
    'for 2× its bytes and as many gradients'
    """
    sent = "as many bytes" if best.traffic == second.traffic else ""
    sent = sent or (f"{best.traffic / second.traffic:.2g}× its bytes" if second.traffic else "more bytes")
    if best.gradients is None or not second.gradients:
        return f"for {sent}"
    same = best.gradients == second.gradients
    return f"for {sent} and {'as many' if same else f'{best.gradients / second.gradients:.2g}× its'} gradients"


def _computed(gradients: float | None) -> str:
    return "" if gradients is None else f" and computed {count_text(gradients)} batch gradients"


def _times(a: float, b: float, whose: Group) -> str:
    if a == b:
        return f"as {whose.label}"
    return f"{a / b:.2g}× {whose.label}'s" if b else f"{whose.label}: none"


# ----------------------------------------------------------------------------------------------------- the runs
def command(run: Run) -> str:
    """The command that makes this run again. Only what differs from the defaults, or from the recipe, is said."""
    config = run.config
    base = resolve({"algorithm": config["algorithm"], "data": config["data"]}
                   | ({"recipe": config["recipe"]} if config["recipe"] else {})).model_dump(mode="json")  # fmt: skip
    words = ["steppe", "run", config["algorithm"]]
    words += [w for part in config["add"] for w in ("--add", part)]
    for key, value in config["settings"].items():
        words += ["--set", f"settings.{key}={_value(value)}"]
    said = {"algorithm", "settings", "add", "rounds"}
    for key, value in config.items():
        if key not in said and (value != base.get(key) or (key in ("recipe", "data") and value is not None)):
            words += ["--set", f"{key}={_value(value)}"]
    return shlex.join([*words, "--rounds", str(config["rounds"])])


def is_own(run: Run) -> bool:
    """Whether it had a model or parts of the user's own, which no command can name."""
    return run.about.get("model") is None or run.about["algorithm"].partition("+")[0] != run.config["algorithm"]


def idea(run: Run) -> str:
    """The paper and its idea, as the catalogue has them."""
    entry = CATALOGUE.get(run.config["algorithm"])
    return ((entry.__doc__ if entry else "") or "").strip().partition("\n")[0] if not is_own(run) else ""


def _value(value: Any) -> str:
    """As `--set` reads it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, list) else str(value)


# ------------------------------------------------------------------------------------------- figures, in words
def in_words(c: Comparison, key: str, name: str, percent: bool) -> str:
    """A curve of every algorithm, as its beginning and its end."""
    told = []
    for g in c.ranking:
        curve = g.curve(key)
        if curve is not None:
            first, last, spread = (
                v * (100 if percent else 1) for v in (curve.mean[0], curve.mean[-1], curve.spread[-1])
            )
            unit = " %" if percent else ""
            end = f"{last:.3g} ± {spread:.2g}" if curve.seeds > 1 else f"{last:.3g}"
            told.append(f"{g.label} from {first:.3g} to {end}{unit}")
    return f"{name}: {'; '.join(told)}."
