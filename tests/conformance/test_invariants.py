"""What compositions mean: duals agree, neutral settings change nothing, labels, order, scale and origin do not matter.

`make test` looks at a few compositions of each kind, `make test-all` at many. They are drawn from the registry with a
fixed seed (see `compositions.py`), and played on a federation of quadratics by the library's own round.
"""

from collections import Counter
from functools import wraps
from typing import NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, note, seed, settings
from hypothesis import strategies as st
from torch.utils._pytree import tree_flatten, tree_leaves

from steppe.core.errors import SteppeError
from steppe.parts.adamw import AdamW
from steppe.parts.control_variates import ControlVariates
from steppe.parts.differential_privacy import DifferentialPrivacy
from steppe.parts.dynamic_regularisation import DynamicRegularisation
from steppe.parts.geometric_bias import GeometricBias
from steppe.parts.normalised_averaging import NormalisedAveraging
from steppe.parts.proximal_ascent import ProximalAscent
from steppe.registry import PARTS, parse_addition
from steppe.runs.client_store import MemoryStore
from tests.conformance.compositions import (
    CLIENTS,
    NEUTRAL,
    PROBLEM,
    Composition,
    Turn,
    always,
    compositions,
    neutral,
    play,
    scaled,
    schedules,
)
from tests.conformance.problem import run, task

GUARDS = ("krum", "median", "trimmed_mean")  # who decide between clients' uploads
INSTEAD = ("take", "choose", "leave", "keep", "put", "use", "sample", "lower", "give")


class Cover(NamedTuple):
    """What a check of drawn compositions looks at: in `make test`, in `make test-all`, and what must apply of those."""

    few: int
    many: int
    least: int


COVERED: dict[str, Cover] = {}  # by what is checked, for docs/compatibility.md


def generated(what, few, many, least, **drawn):
    """Run a check on `few` drawn compositions in `make test`, on `many` in `make test-all`.

    A check is handed the composition and its algorithm; compositions that are refused must say why and what to do, and
    do not count. A check returns False where what it checks does not apply: that does not count either. At least
    `least` of the many must count.
    """
    COVERED[what] = Cover(few, many, least)

    def decorate(check):
        @pytest.mark.parametrize("examples", [few, pytest.param(many, marks=pytest.mark.slow)])
        @wraps(check)
        def test(examples):
            told = Counter()

            @seed(16)
            @settings(max_examples=examples, deadline=None, database=None, phases=(Phase.generate, Phase.shrink),
                      suppress_health_check=list(HealthCheck))  # fmt: skip
            @given(**drawn)
            def each(composition, **rest):
                try:
                    algorithm = composition.built()
                except SteppeError as refusal:
                    told["refused"] += 1
                    return explains(str(refusal))
                note(str([str(p) for p in algorithm.parts]))
                told["not applicable" if check(composition, algorithm, **rest) is False else "checked"] += 1

            each()
            assert told["checked"] >= (least if examples == many else least * examples // many - 2), told
            print(f"{check.__name__}: {dict(told)}")

        test.__wrapped__ = None  # pytest must not look for the check's own arguments
        del test.__wrapped__
        return test

    return decorate


def explains(refusal):
    assert len(refusal) > 40, refusal
    assert any(word in refusal for word in INSTEAD), f"says not what to take instead: {refusal}"


def agree(found, wanted, tolerance, what=""):
    (left, form), (right, other) = tree_flatten(found), tree_flatten(wanted)
    assert form == other, (form, other)
    for p, q in zip(left, right, strict=True):
        size = max(1.0, float(q.abs().max())) if q.numel() else 1.0
        gap = float((p - q).abs().max()) if q.numel() else 0.0
        assert gap <= tolerance * size, f"{what}: {gap:.2g} apart at size {size:.2g}"


# ------------------------------------------------------------------------------------------------------------- duals
def differs(part, algorithm):
    """Why the server's variable is by design not the mean of its clients'; empty if it is."""
    part = part.of if isinstance(part, ProximalAscent) else part
    others = [p.name for p in algorithm.using("reduce") if not isinstance(p, DifferentialPrivacy)]
    if others:
        return f"{others[0]} takes no mean, so that no client decides"
    if isinstance(part, ControlVariates) and part.gain is not None:
        return "FedMoSWA's c follows the newest variates by momentum"
    if isinstance(part, ControlVariates) and part.estimate == "plain":
        return "FedDC as printed has the mean of the round's variates alone"
    if isinstance(part, DynamicRegularisation) and part.over == "divided":
        return "FedGloSS as released divides the server's share once more"
    if isinstance(part, NormalisedAveraging):
        return "FedNova's d takes the absent to be like the mean"
    return ""


# Server and client states that mirror each other under different names; all others do so under one name.
MIRRORED = {"bbar": "b", "mean": "last"}


def duals(algorithm, task_x0):
    """(part, the server's state, the client's) of every variable that server and clients both keep."""
    for p in algorithm.parts:
        server, client = p.server_state(task_x0), p.client_state(task_x0)
        yield from ((p, name, MIRRORED.get(name, name)) for name in server if MIRRORED.get(name, name) in client)


TWO_SIDED = ("control_variates", "dynamic_regularisation", "geometric_bias", "momentum_sam", "consistent_sam",
             "latest_mean")  # fmt: skip


def own(row, part, name, until):
    """A client's variable now: FedScar's bias decays while its client is away."""
    value = row[part.name][name]
    return part.keep ** (until - row[part.name]["when"]) * value if isinstance(part, GeometricBias) and name == "b" \
        else value  # fmt: skip


@generated("the server keeps the mean of its clients' duals", 40, 450, 180,
           composition=compositions(without=GUARDS, having=TWO_SIDED), schedule=schedules)  # fmt: skip
def test_the_server_keeps_the_mean_of_its_clients(composition, algorithm, schedule):
    x0 = torch.tensor(PROBLEM.x0, dtype=torch.float64)
    kept = [dual for dual in duals(algorithm, x0) if not differs(dual[0], algorithm)]
    seen = play(algorithm, schedule)
    for leaf in tree_leaves((seen[-1].server, list(seen[-1].rows.values()))):
        assert leaf.isfinite().all()
    for found in seen:
        fresh = algorithm.client_state(x0)
        for part, name, mine in kept:
            until = found.server.state[part.name].get("at")
            rows = torch.stack([own(found.rows.get(i, fresh), part, mine, until) for i in range(CLIENTS)])
            agree(found.server.state[part.name][name], rows.mean(0), 1e-10, f"{part.name}.{name}")
    return bool(kept)


@pytest.mark.parametrize("entry", ["scaffold", "feddyn", "fedwmsam"])
def test_a_norm_bound_shrinks_what_clients_keep_as_well(entry):
    bound = parse_addition("norm_bound:limit=0.02")
    algorithm = Composition(entry, {}, (bound,), "sgd").built()
    x0 = torch.tensor(PROBLEM.x0, dtype=torch.float64)
    for found in play(algorithm, [Turn([0, 1, 2, 3]), Turn([1, 2]), Turn([0, 2, 3])]):
        fresh = algorithm.client_state(x0)
        for part, name, mine in duals(algorithm, x0):
            rows = torch.stack([found.rows.get(i, fresh)[part.name][mine] for i in range(CLIENTS)])
            agree(found.server.state[part.name][name], rows.mean(0), 1e-10, f"{part.name}.{name}")


# ------------------------------------------------------------------------------------------------- neutral settings
def parts_of(algorithm, found):
    """The model and the states of an algorithm's own parts."""
    names = [p.name for p in algorithm.parts]
    rows = {i: {n: row[n] for n in names} for i, row in found.rows.items()}
    return found.server.x, {n: found.server.state[n] for n in names}, rows


def test_every_part_says_where_it_is_neutral():
    assert sorted(NEUTRAL) == sorted(PARTS), "name the setting at which a part changes nothing, or None and why"


PARTIAL = [Turn([0, 1, 3]), Turn([2, 1]), Turn([3, 0, 2, 1]), Turn([1])]


@generated("a part at its neutral setting changes nothing", 30, 450, 350, composition=compositions(without=("krum",)),
           name=st.sampled_from([name for name in NEUTRAL if NEUTRAL[name] is not None]))  # fmt: skip
def test_a_neutral_part_changes_nothing(composition, algorithm, name):
    try:
        more = composition.built(neutral(name))
    except SteppeError:
        return False
    whole = {"krum", "dp"} & {name, *(p.name for p in algorithm.parts)}  # which count on a number of replies
    schedule = always(4) if whole else PARTIAL
    without, beside = play(algorithm, schedule), play(more, schedule)
    if algorithm.using("screen") and without[-1].uploads != beside[-1].uploads:
        return False  # a bound on all uploads together is another bound where there are more of them
    for a, b in zip(without, beside, strict=True):
        agree(parts_of(algorithm, b), parts_of(algorithm, a), 1e-12)
        if name != "latest_mean":  # which judges another model, and changes nothing else
            agree(b.judged, a.judged, 1e-12, "the judged model")
    return True


# Entries that are another one at this setting.
REDUCES = [
    ("fedprox", {"mu": 0.0}, "fedavg", {}), ("fedsam", {"rho": 0.0}, "fedavg", {}),
    ("fedasam", {"rho": 0.0}, "fedavg", {}), ("fedavgm", {"server_momentum": 0.0}, "fedavg", {}),
    ("fedcm", {"alpha": 1.0}, "fedavg", {}), ("mofedsam", {"rho": 0.0}, "fedcm", {}),
    ("mofedsam", {"alpha": 1.0}, "fedsam", {"eps": 1e-7}), ("fedlesam", {"rho": 0.0}, "fedavg", {}),
    ("fedntd", {"beta": 0.0}, "fedavg", {}), ("moon", {"mu": 0.0}, "fedavg", {}),
    ("fedsol", {"rho": 0.0}, "fedavg", {}), ("fedsol_ablation", {"variant": "a0"}, "fedavg", {}),
    ("fedgf", {"rho": 0.0, "threshold": 1e9}, "fedavg", {}),
    ("fedgf", {"threshold": 1e9}, "fedsam", {"rho": 0.05, "eps": 1e-16}),
    ("fednsam", {"rho": 0.0, "gamma": 0.0}, "fedavg", {}), ("fedscar", {"alpha": 0.0, "beta": 0.0}, "fedavg", {}),
    ("fedswa", {"end": 1.0, "server_lr": 1.0}, "fedavg", {}), ("fedgamma", {"rho": 0.0}, "scaffold", {}),
    ("fedlesam_s", {"rho": 0.0}, "scaffold", {}), ("fedlesam_d", {"rho": 0.0}, "feddyn", {}),
    ("fedsmoo", {"rho": 0.0}, "feddyn", {}),
    ("fedspeed", {"rho": 0.0, "variant": "norm"}, "feddyn", {"variant": "norm"}),
    ("fedgloss", {"rho": 0.0, "rho_client": 0.0}, "feddyn", {}),
    ("fedmoswa", {"end": 1.0, "server_lr": 1.0, "gamma": 1.0}, "scaffold", {}),
]  # fmt: skip


@pytest.mark.parametrize(("entry", "set_to", "other", "others"), REDUCES)
def test_entries_reduce_to_one_another(entry, set_to, other, others):
    one = play(Composition(entry, set_to, (), "sgd, momentum").built(), always(4))
    two = play(Composition(other, others, (), "sgd, momentum").built(), always(4))
    for a, b in zip(one, two, strict=True):
        agree(a.server.x, b.server.x, 1e-12)


def test_a_relaxed_start_takes_back_its_own_move_alone():
    scar = Composition("fedscar", {}, (), "sgd")
    without, beside = (play(a, always(3))[-1].server.x for a in (scar.built(), scar.built(neutral("relaxed_start"))))
    agree(beside, without, 1e-12)


# ---------------------------------------------------------------------------------------- labels, order, scale, origin
def enough(schedule, algorithm):
    """Krum needs three replies, and privacy the planned number."""
    return always(len(schedule)) if {"krum", "dp"} & {p.name for p in algorithm.parts} else schedule


@generated("labels of clients and order of replies do not matter", 20, 200, 160,
           composition=compositions(), schedule=schedules, labels=st.permutations(range(CLIENTS)),
           order=st.permutations(range(CLIENTS)))  # fmt: skip
def test_labels_of_clients_and_order_of_replies_do_not_matter(composition, algorithm, schedule, labels, order):
    """Client i is called labels[i] instead, and whoever is called replies in another order."""
    schedule = enough(schedule, algorithm)
    new = [Turn([labels[i] for i in sorted(turn.called, key=order.index)], *(
        frozenset(labels[i] for i in some) for some in turn[1:])) for turn in schedule]  # fmt: skip
    back = [labels.index(j) for j in range(CLIENTS)]
    problem = PROBLEM.model_copy(
        update={"clients": [PROBLEM.clients[i] for i in back], "steps": [PROBLEM.steps[i] for i in back]}
    )
    for a, b in zip(play(algorithm, schedule), play(algorithm, new, problem), strict=True):
        agree((b.server.x, b.server.state, b.judged), (a.server.x, a.server.state, a.judged), 1e-9)
        agree({i: b.rows[labels[i]] for i in a.rows}, a.rows, 1e-9)


def depends_on_scale(algorithm, sent):
    """Why scaling the loss by s and the learning rate by 1/s is not the same run."""
    for p in algorithm.parts:
        if isinstance(p, AdamW):
            return "steps have the length of the learning rate, whatever the gradient's"
        if isinstance(p, GeometricBias):
            return "beta multiplies a displacement to be added to a gradient, and to a model"
        if p.name == "consistent_sam":
            return "a gradient is compared with a perturbation"
        if p.name == "momentum_sam" and p.kind != "text":
            return "a gradient is compared with a displacement"
        if p.has("screen") and sent != {"update"}:
            return "one norm for updates and gradients"
    return ""


@generated("loss × s with learning rate / s is the same run", 20, 200, 125,
           composition=compositions(without=("geometric_bias", "consistent_sam")), schedule=schedules)  # fmt: skip
def test_a_larger_loss_is_a_larger_rate(composition, algorithm, schedule):
    schedule, factor = enough(schedule, algorithm), 4
    seen = play(algorithm, schedule)
    if depends_on_scale(algorithm, seen[-1].uploads):
        return False
    larger = [c.model_copy(update={"A": [[factor * a for a in row] for row in c.A]}) for c in PROBLEM.clients]
    problem = PROBLEM.model_copy(update={"clients": larger, "lr": PROBLEM.lr / factor})
    for a, b in zip(seen, play(scaled(algorithm, factor), schedule, problem), strict=True):
        agree((b.server.x, b.judged), (a.server.x, a.judged), 1e-5)  # a norm's eps does not scale
    return True


def depends_on_origin(algorithm):
    """Why moving all optima and the first model by one vector does not move the run by it."""
    clip = any(getattr(p, "clip", None) for p in algorithm.parts if p.name == "sgd")
    for p in algorithm.parts:
        if p.name == "asam":
            return "its radius is measured in |w|"
        if p.name == "sgd" and p.decay:
            return "decay pulls towards 0"
        if p.needs:
            return "a penalty on what the model shows"
        term = p.of if isinstance(p, ProximalAscent) else p
        if isinstance(term, DynamicRegularisation) and term.needs_plain_steps and clip:
            return "the official order clips −αx without αw"
    return ""


@generated("moving all optima and the first model moves the run", 20, 250, 115,
           composition=compositions(without=("man", "contrast", "distillation", "trajectory_teacher", "asam")),
           schedule=schedules)  # fmt: skip
def test_the_origin_does_not_matter(composition, algorithm, schedule):
    if depends_on_origin(algorithm):
        return False
    schedule, shift = enough(schedule, algorithm), torch.tensor([0.5, -2.0, 1.25], dtype=torch.float64)
    if any(isinstance(p, GeometricBias) for p in algorithm.parts) and any(alone(turn) for turn in schedule):
        return False  # the model is then that client's own, and unit(x − w_i) the direction of a rounding error
    clients = [c.model_copy(update={"b": moved(c.b, shift)}) for c in PROBLEM.clients]
    problem = PROBLEM.model_copy(update={"clients": clients, "x0": moved(PROBLEM.x0, shift)})
    for a, b in zip(play(algorithm, schedule), play(algorithm, schedule, problem), strict=True):
        agree((b.server.x - shift, b.judged - shift), (a.server.x, a.judged), 1e-8)
    return True


def alone(turn):
    """Return whether one client's reply is the whole round."""
    return len(set(turn.called) - turn.lost - turn.spoiled) == 1


def moved(numbers, shift):
    return [a + b for a, b in zip(numbers, shift.tolist(), strict=True)]


# ------------------------------------------------------------------------------------------- absence and checkpoints
@generated(
    "who does not reply was never called", 15, 120, 100, composition=compositions(without=("krum",)), schedule=schedules
)
def test_who_does_not_reply_was_never_called(composition, algorithm, schedule):
    """Lost and refused replies leave no trace, and a round without any reply is no round."""
    came = [Turn([i for i in turn.called if i not in turn.lost | turn.spoiled]) for turn in schedule]
    if algorithm.using("counted"):  # privacy plays such a round, because noise hides who replied
        return False
    for a, b in zip(play(algorithm, came), play(algorithm, schedule), strict=True):
        agree((b.server.x, b.server.state, b.judged), (a.server.x, a.server.state, a.judged), 0.0)
        assert b.rows.keys() == a.rows.keys()
        agree({i: b.rows[i] for i in a.rows}, a.rows, 0.0)
    return True


SHORT = [[1, 4], [2, 1]]  # of the small network's clients, those with few steps; one comes back


@generated("a checkpoint holds everything, on a network", 10, 100, 85, composition=compositions(without=("krum", "dp")))
def test_a_checkpoint_holds_everything(composition, algorithm):
    """On a network: finite, and to the same bits after a round, a checkpoint and another round."""
    server, store, _ = run(algorithm, rounds=2, schedule=SHORT)
    for leaf in tree_leaves((server.x, server.state, list(store.rows.values()))):
        assert leaf.isfinite().all()
    halfway, before, done = run(algorithm, rounds=1, schedule=SHORT)
    after = MemoryStore(lambda: algorithm.client_state(task().x0))
    after.restore({k: v.clone() for k, v in before.commit().items()})
    again, rows, _ = run(algorithm, rounds=1, schedule=SHORT, state=(halfway, after, done))
    agree((again.x, again.state), (server.x, server.state), 0.0)
    agree(dict(rows.rows), {i: store.rows[i] for i in rows.rows}, 0.0)
