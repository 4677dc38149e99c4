"""What two parts, or a part and an optimiser, optimise together: measured, and written to docs/compatibility.md.

    python -m tests.conformance.compatibility          writes the page; a test keeps it equal

Every pair with a part that makes clients agree is run on quadratics until it no longer moves; see `verdict`.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations
from pathlib import Path

import torch
from torch import Tensor

from steppe.core.algorithm import Algorithm
from steppe.core.errors import CompositionError, RunFailed
from steppe.core.part import Part
from steppe.parts.frozen_head import FrozenHead
from steppe.parts.look_ahead import LookAhead
from steppe.parts.nearest_neighbours import NearestNeighbours
from steppe.parts.normalised_averaging import NormalisedAveraging
from steppe.parts.own_model import OwnModel
from steppe.parts.proximal import Proximal
from steppe.parts.proximal_ascent import ProximalAscent
from steppe.registry import PARTS, assemble, parse_addition
from tests.conformance.compositions import CLIENTS, OPTIMISERS, PROBLEM, Seen, always, play

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
ROUNDS, UNSETTLED, CLOSE, FAR = 150, 100, 1e-6, 10.0

# Settings of the page: those of the papers where a few clients with a unit between them allow it.
TYPICAL: dict[str, str] = {
    "asam": "rho=0.05", "client_momentum": "alpha=0.5", "consistent_sam": "rho=0.05",
    "dp": f"clip=5,noise=0.01,seed=1,per_round={CLIENTS},clients={CLIENTS}", "dynamic_regularisation": "alpha=1",
    "ema": "keep=0.5", "geometric_bias": "beta=0.5", "global_ascent": "rho=0.05", "krum": "bad=0",
    "locally_estimated_sam": "rho=0.05", "momentum_sam": "alpha=0.5", "nesterov_sam": "gamma=0.3",
    "nesterov_start": "gamma=0.3", "norm_bound": "limit=0.5", "proximal": "mu=0.5", "sam": "rho=0.05",
    "server_adaptive": "kind=adam,lr=0.1,beta1=0.5,beta2=0.9,tau=0.1", "server_ascent": "rho=0.05",
    "server_momentum": "lr=1,momentum=0.3",
    "swa": f"start_at=0.5,cycle=1,rounds={ROUNDS}", "trajectory_teacher": "keep=0.5", "trimmed_mean": "cut=0.25",
}  # fmt: skip
NOT_ADDABLE: tuple[Part, ...] = (
    FrozenHead(), LookAhead(0.1), NearestNeighbours(), NormalisedAveraging(), OwnModel(),
    ProximalAscent(0.05, Proximal(1.0)),
)  # fmt: skip

# Parts whose fixed points are those of the mean loss, because every client's direction vanishes there.
CONSENSUS = ("control_variates", "dynamic_regularisation", "momentum_sam", "geometric_bias")

# What is optimised instead of the clients' mean loss, or how near to its optimum a method comes.
PERTURBED = "gradients are taken ρ away, so it stays within 2ρ"
SHIFTS: dict[str, str] = {
    "adamw": "steps have the length of the learning rate, so it stays within a round's steps",
    "asam": PERTURBED,
    "consistent_sam": PERTURBED,
    "dp": "noise in every round",
    "frozen_head": "only the body is optimised, for the head that it began with",
    "geometric_bias": "clients begin up to α/(1−keep) away, so it stays within twice that",
    "global_ascent": PERTURBED,
    "krum": "follows the clients nearest to one another, not the mean",
    "locally_estimated_sam": PERTURBED,
    "server_ascent": PERTURBED,
    "look_ahead": "the loss after one more gradient step (MAML)",
    "man": "adds the activations' norm to the loss",
    "median": "follows each coordinate's median, not the mean",
    "mixed_ascent": PERTURBED,
    "momentum_sam": PERTURBED,
    "nesterov_sam": PERTURBED,
    "own_model": "every client its own loss; no global model",
    "proximal_ascent": "gradients are taken up to ρ away along a proximal loss, so it stays within 2ρ",
    "sam": PERTURBED,
    "sgd, decay": "adds (λ/2)‖w‖² to the loss; (λ/2α)‖w‖² with client_momentum and momentum_sam, whose α "
    "scales the gradient alone",
    "trimmed_mean": "follows each coordinate's middle values, not the mean",
}
# From the optimum, at the settings of the page: what "within" above comes to. The others have no such bound.
RHO, STEPS = 0.05, max(PROBLEM.steps)  # type: ignore[arg-type]
WITHIN = {name: 2 * RHO for name, why in SHIFTS.items() if "2ρ" in why} | {
    "momentum_sam": 2 * 0.01, "geometric_bias": 2 * 0.01 / (1 - 0.9), "adamw": PROBLEM.lr * STEPS,
}  # fmt: skip
# The same, but only where nothing makes clients agree: where they do, updates and directions vanish.
UNAGREED: dict[str, str] = {
    "contrast": "adds a contrast of features to the clients' losses",
    "norm_bound": "clients whose updates are longer than the limit count less",
    "sgd, clip": "clients whose gradients are longer than the clip count less",
}


def part_named(name: str) -> Part:
    if name in PARTS:
        return parse_addition(f"{name}:{TYPICAL.get(name, '')}")
    return next(p for p in NOT_ADDABLE if p.name == name)


NAMES = sorted([*PARTS, *(p.name for p in NOT_ADDABLE)])


def composed(names: tuple[str, ...], optimiser: str = "sgd") -> Algorithm:
    chosen = [part_named(name) for name in names]
    own = tuple(p for p in chosen if p.name not in PARTS)
    return assemble(own, OPTIMISERS[optimiser], tuple(p for p in chosen if p.name in PARTS), "fedavg")


@cache
def optimum(decay: float = 0.0) -> Tensor:
    """Of the mean of all clients' losses, with (decay/2)‖w‖²."""
    A = [torch.tensor(c.A, dtype=torch.float64) for c in PROBLEM.clients]
    b = [torch.tensor(c.b, dtype=torch.float64) for c in PROBLEM.clients]
    eye = torch.eye(len(PROBLEM.x0)).double()
    return torch.linalg.solve(sum(A) / CLIENTS + decay * eye, sum(a @ v for a, v in zip(A, b, strict=True)) / CLIENTS)


def stands_still(seen: list[Seen]) -> bool:
    """The model of the last eight rounds, as it is judged and as it is trained."""
    if len(seen) < 20:
        return False
    last = torch.stack([s.judged for s in seen[-8:]] + [s.server.x for s in seen[-8:]])
    return float((last - last[-1]).norm(dim=1).max()) < CLOSE / 10


def distance(algorithm: Algorithm, target: Tensor, rounds: int = ROUNDS) -> float:
    """From the target, the largest of the last rounds; infinite where the run fails."""
    try:
        seen = play(algorithm, always(rounds), until=stands_still)
    except RunFailed:
        return float("inf")
    return max(float((s.judged - target).norm()) for s in seen[-8:])


@cache
def verdict(names: tuple[str, ...], optimiser: str = "sgd") -> tuple[str, str]:
    """(exact, sound, changes or refused; why) of these parts under this optimiser."""
    try:
        algorithm = composed(names, optimiser)
    except CompositionError as refusal:
        return "refused", str(refusal).partition(": ")[2]
    agreed = set(names) & set(CONSENSUS)
    reasons = SHIFTS if agreed else SHIFTS | UNAGREED
    told = [why for name in (*names, optimiser) if (why := reasons.get(name))]
    if agreed:
        found = distance(algorithm, optimum(), UNSETTLED if told else ROUNDS)
        if found < CLOSE:
            return "exact", ""
        moving = [name for name in (*names, optimiser) if name in reasons]
        if not told or not found < sum(WITHIN.get(name, FAR) for name in moving):
            raise AssertionError(f"{algorithm.name}, {optimiser}: {found:.2g} from the optimum, and nothing says why")
    return ("changes", "; ".join(dict.fromkeys(told))) if told else ("sound", "")


PAIRS = list(combinations(NAMES, 2))
SIGNS = {"exact": "=", "sound": "·", "changes": "≠", "refused": "×"}


def page() -> str:
    """The whole page, as measured now."""
    pairs = {pair: verdict(pair) for pair in PAIRS}
    singles = {(name, o): verdict((name,), o) for name in NAMES for o in OPTIMISERS}
    counts = {word: sum(v == word for v, _ in (*pairs.values(), *singles.values())) for word in SIGNS}
    head = "| | part | " + " | ".join(str(k) for k in range(1, len(NAMES))) + " |"
    rows = []
    for k, name in enumerate(NAMES):
        cells = [SIGNS[pairs[other, name][0]] for other in NAMES[:k]] + [""] * (len(NAMES) - 1 - k)
        rows.append(f"| {k + 1} | {name} | " + " | ".join(cells) + " |")
    reasons: dict[str, list[str]] = {}
    for (a, b), (word, why) in pairs.items():
        if word == "refused":
            reasons.setdefault(why, []).append(f"{a} + {b}")
    for (name, o), (word, why) in singles.items():
        if word == "refused":
            reasons.setdefault(why, []).append(f"{name} + {o}")
    lines = [
        INTRODUCTION.format(pairs=len(PAIRS), singles=len(singles), rounds=UNSETTLED, **counts),
        "## Part and part\n",
        head,
        "|---|---|" + "---|" * (len(NAMES) - 1),
        *rows,
        "\n## Part and optimiser\n",
        "| part | " + " | ".join(OPTIMISERS) + " |",
        "|---|" + "---|" * len(OPTIMISERS),
        *(f"| {name} | " + " | ".join(SIGNS[singles[name, o][0]] for o in OPTIMISERS) + " |" for name in NAMES),
        "\n## What is optimised instead (≠)\n",
        '"Within" is the distance from the optimum, or from the point where it would settle without this.\n',
        "| part or optimiser | |",
        "|---|---|",
        *(f"| {name} | {why} |" for name, why in sorted(SHIFTS.items())),
        *(f"| {name} | {why}; no effect if a part makes clients agree |" for name, why in sorted(UNAGREED.items())),
        "\n## Refused (×), and what to use instead\n",
        *(f"- {', '.join(where)}: {why}." for why, where in sorted(reasons.items())),
        NOTES,
        *coverage(),
    ]
    return "\n".join(lines)


def coverage() -> list[str]:
    """What `make test` and `make test-all` check of compositions that Hypothesis draws from the registry."""
    import tests.conformance.test_fixed_points  # noqa: F401  # a check is counted where it is defined
    from tests.conformance.test_invariants import COVERED

    rows = [*COVERED.items(), ("together", tuple(map(sum, zip(*COVERED.values(), strict=True))))]
    return [
        "## Drawn compositions\n",
        "Up to two parts with drawn settings, added to any entry in any variant under any optimiser; rounds with some",
        "clients, none, lost or refused replies. New parts and entries are included automatically. Refused",
        "compositions, and those that a property does not apply to, are not counted.\n",
        "| what is checked | drawn in `make test` | in `make test-all` | of these, counted at least |",
        "|---|---|---|---|",
        *(f"| {what} | {few} | {many} | {least} |" for what, (few, many, least) in rows),
        "",
    ]


INTRODUCTION = """# What goes with what

Written by `python -m tests.conformance.compatibility`; `make test-all` checks that it is up to date.

This page says what two parts, or a part and a local optimiser, optimise together. It was measured on a federation of
quadratics: four clients with unequal steps, all of them in every round, uniform weights.
There are {pairs} pairs of parts and {singles} of a part and an optimiser:

- `=` **exact** ({exact}): it finds the optimum of the clients' mean loss.
- `·` **sound** ({sound}): both parts do what they do alone. Nothing makes clients agree, so the fixed point has
  FedAvg's bias towards clients with more steps and steeper losses.
- `≠` **changes what is optimised** ({changes}): the third table says how.
- `×` **refused** ({refused}) when the algorithm is built; the reasons are below.

Every pair with a part that makes clients agree (control_variates, dynamic_regularisation, momentum_sam,
geometric_bias) was run until it no longer moved, or for {rounds} rounds if it never stopped; the others follow from the
parts, and `tests/conformance/test_fixed_points.py` compares FedAvg, FedProx and FedNova with closed forms. Columns have
the numbers of the rows.
"""
NOTES = """
## Variants

- `feddyn variant=official` and related methods with a `clip` c: −αx is clipped and αw is not, so ‖x‖ stays within c/α.
  Exact if the optimum lies there; on these quadratics (clip 0.5, α = 1, ‖x‖ = 0.64 at the optimum) 0.14 away from it.
- `feddc variant=paper`: exact with a small alpha. With K steps and curvature a it is stable for alpha < (K−1) a, never
  with one step; on these quadratics, where one client takes one step, up to 0.3.
- `fednova variant=official`: diverges with all clients in every round, because a client subtracts its own
  last direction and the mean is never added; a run warns about it. `ccvr` does not grow, but keeps a bias.
- `fedsol proximal=feddyn`: nothing pulls clients back, so their h_i grow by α‖Δ_i‖ per round. Their mean and the
  model do not grow; in the end, the ascent always has the same direction.
- `fedwmsam` with `norm_bound`: exact, but a limit below 1 also bounds the scalar v_i, which slows it down and shifts α.
- `fedmoswa`, `feddc variant=paper` and `fedgloss variant=official` keep a server variable that is by design not the
  mean of the clients'; the duals of all others are that mean, to 1e-10, in every composition that is not refused.
- Duals count clients alike: with `weighting = samples`, SCAFFOLD and FedDyn still find the optimum of the plain mean.
  Where the dual is part of the update (`over=active`: `fedspeed`, `feddc` and `fedgmt` with `variant=paper`), it
  has the models' weights, and the optimum is that of the mean by samples. A `norm_bound` then clips the dual, which
  does not vanish, so the result is biased (0.19 on these quadratics with a limit of 0.5), while `over=all` is exact.
  `fedmoswa`, which uploads c_i − c, is biased too (0.29); `scaffold` is exact.

## Symmetries that some parts break

| | not with | because |
|---|---|---|
| loss × s, learning rate / s | adamw | steps have the length of the learning rate |
| | geometric_bias | beta multiplies a displacement to be added to a gradient, and to a model |
| | consistent_sam, momentum_sam (paper, official) | a gradient is compared with a displacement |
| | norm_bound, dp, if gradients are uploaded too | one norm for updates and gradients |
| moving all optima and the first model | asam | its radius is measured in \\|w\\| |
| | weight decay | pulls towards 0 |
| | man, contrast, distillation, trajectory_teacher | act on the model's outputs |
| | dynamic_regularisation (official) with a clip | clips −αx without αw |
| a neutral part changes nothing | norm_bound, dp together with a part that uploads more | one norm for all uploads |
"""


if __name__ == "__main__":
    PAGE.write_text(page())
