"""Mistakes in parts that Python accepts."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import pytest
import torch

import steppe
from steppe.core.errors import SettingError, SteppeError
from steppe.core.part import Part
from steppe.core.part_class_checks import check_class, explain_missing_states
from steppe.parts.sam import SAM
from steppe.parts.sgd import SGD
from steppe.registry import PARTS, call_with_settings, check_parts, complete_algorithm, make_algorithm
from tests.scene import blobs, seeded


class Misspelt(Part):
    name = "misspelt"

    def gradeint(self, grad, w, s):
        return 2 * grad(w)


class Undecorated(Part):
    name = "undecorated"
    rho: float = 0.1


class Widened(SAM):  # its base is a dataclass, and it is not
    extra: float = 1.0


@pytest.mark.parametrize("part", [Misspelt(), type("Heir", (Misspelt,), {})()])
def test_a_method_that_is_nearly_a_hook_is_refused(part):
    with pytest.raises(SettingError, match=r"Misspelt\.gradeint is not a hook.*write gradient, or _gradeint"):
        check_parts(part)


def test_every_way_in_checks_the_class():
    complete = make_algorithm("fedavg", SGD()).plus(Misspelt())
    for enter in (lambda: complete_algorithm(complete, SGD(), ()), lambda: call_with_settings(Misspelt, "part", {})):
        with pytest.raises(SettingError, match="write gradient"):
            enter()


@pytest.mark.parametrize(("kind", "setting"), [(Undecorated, "rho"), (Widened, "extra")])
def test_settings_without_a_dataclass_are_refused(kind, setting):
    with pytest.raises(SettingError, match=rf"the setting {setting}, .* decorate it with @dataclass\(frozen=True\)"):
        call_with_settings(kind, "part", {setting: 0.2})


def test_what_is_meant_is_accepted():
    @dataclass(frozen=True)
    class Fine(Part):
        name: ClassVar[str] = "fine"
        end: float = 0.0  # a field may be near a hook's name

        def _gradients(self): ...
        def helper(self): ...

    class Plain(Part):
        name: str = "plain"
        asks: int = 2
        limit: ClassVar[int] = 3

    class Made(Part):
        name = "made"
        rho: float

        def __init__(self, rho):
            self.rho = rho

    for kind in (Fine, Plain, Made, *PARTS.values()):
        check_class(kind)


HOOKS = {
    "gradient": lambda self, grad, w, s: grad(w) + s.state["m"],
    "penalty": lambda self, w, out, s: (w * s.down["m"]).sum(),
    "finish": lambda self, delta, s: delta + s.state["m"],
    "send": lambda self, x, s: x + s.state["m"],
    "server": lambda self, delta, s: delta + s.up["m"],
    "evaluated": lambda self, x, s: x + s.state["m"],
}


@pytest.mark.parametrize("hook", HOOKS)
def test_a_state_that_nobody_declared_is_a_sentence(hook):
    part = type("Reader", (Part,), {"name": "reader", hook: HOOKS[hook]})()
    with pytest.raises(
        SteppeError, match=r"Reader\.<lambda> reads 'm', which does not exist: declare it in client_state"
    ):
        steppe.run(part, "mlp", clients=2, per_round=1, rounds=1, max_steps=1, workers=0, progress=False)


def test_a_key_error_elsewhere_stays_one():
    with pytest.raises(KeyError), explain_missing_states():
        {}["mine"]


def add_in_place(tensor, result):
    tensor.add_(1)
    return result


WRONG = [
    ("gradient", lambda self, grad, w, s: None, "returns None, but must return a tensor of the model's size"),
    ("gradient", lambda self, grad, w, s: grad(w).sum(), r"returns a tensor of shape \(\), but must"),
    ("gradient", lambda self, grad, w, s: add_in_place(w, grad(w)), "changes w and s.x in place"),
    ("finish", lambda self, delta, s: add_in_place(s.x, delta), "changes s.x in place"),
    ("finish", lambda self, delta, s: s.state.update(c=delta), r"writes s\.state\['c'\] on a client, where it is lost"),
    ("server", lambda self, delta, s: s.state.update(c=delta), r"s\.state\['c'\] on the server: declare it"),
    ("server", lambda self, delta, s: delta[:2], r"returns a tensor of shape \(2,\)"),
    ("evaluated", lambda self, x, s: None, "returns None"),
    ("penalty", lambda self, w, out, s: w, "must return one number as a tensor"),
    ("penalty", lambda self, w, out, s: out.features.sum(), "out.features exists only if the class says needs"),
    ("client_state", lambda self, x: {"c": 0.0}, "must return a dict of tensors"),
    ("start", lambda self, w: w, r"must take these arguments: \(self, w, s\)"),
    ("gradient", lambda self, grad, w, s: grad(w).double(), r"type float64, but the model's is float32: convert it"),
    ("gradient", lambda self, grad, w, s: grad(w.double()).float(), "calls grad with a tensor of type float64"),
    ("gradient", lambda self, grad, w, s: grad(w[:3]), r"calls grad with a tensor of shape \(3,\)"),
    ("gradient", lambda self, grad, w, s: grad(), "calls grad with no argument"),
    ("gradient", lambda self, grad, w, s: w, "never calls grad, so there is no gradient"),
    ("gradient", lambda self, grad, w, s: grad(w) / s.up, r"fails in line .*: AttributeError: .* s has layout"),
    ("gradient", lambda self, grad, w, s: 1 // 0, "fails in line .*: ZeroDivisionError: "),
    ("server", lambda self, delta, s: delta.double(), "type float64"),
    ("finish", lambda self, delta, s: s.up.update(c=1.0) or delta, r"writes 1.0 to s.up\['c'\], but must"),
    ("penalty", lambda self, w, out, s: out.logits.mul_(2).sum(), "changes out.logits in place"),
    ("client_state", lambda self, x: {"k": torch.zeros((), dtype=torch.int64)}, "type int64 as 'k', but a state"),
    ("client_state", lambda self, x: {0: x * 0}, "as 0, but a state has a name that is text"),
]


@pytest.mark.parametrize(("hook", "function", "sentence"), WRONG, ids=range(len(WRONG)))
def test_a_hook_that_does_what_it_must_not_is_named_before_training(hook, function, sentence):
    part = type("Wrong", (Part,), {"name": "wrong", hook: function})()
    with pytest.raises(SteppeError, match=rf"^Wrong\.{hook} .*{sentence}"):
        steppe.run(part, "mlp", clients=2, per_round=1, rounds=1, max_steps=1, workers=0, progress=False)


SAID = [
    ({"down": "momentum"}, r'must be a tuple of names: down = \("momentum",\)'),
    ({"needs": "features"}, "must be some of activations, features, logits"),
    ({"needs": frozenset({"feature"})}, "must be some of activations, features, logits"),
    ({"reduction": {"c": "average"}}, 'with "weights", "mean" or "sum" for each upload'),
    ({"frozen": "haed"}, "must be 'head' or 'body'"),
    ({"asks": "2"}, "must be a whole number, at least 1"),
    ({"name": "a/b"}, "must be made of letters, digits"),
    ({"name": ""}, "must be made of letters, digits"),
]


@pytest.mark.parametrize(("said", "sentence"), SAID, ids=range(len(SAID)))
def test_what_a_class_says_about_itself_is_checked(said, sentence):
    part = type("Wrong", (Part,), {"name": "wrong", **said})()
    with pytest.raises(SettingError, match=rf"^Wrong: {next(iter(said))} is .*{sentence}"):
        check_parts(part)


def test_a_broadcast_must_be_in_the_servers_state():
    part = type("Sends", (Part,), {"name": "sends", "down": ("c",)})()
    with pytest.raises(SteppeError, match=r"Sends\.down names 'c', which server_state does not return"):
        steppe.run(part, "mlp", clients=2, per_round=1, rounds=1, max_steps=1, workers=0, progress=False)


def test_a_second_call_of_grad_is_declared_where_it_matters():
    ask_twice = {"name": "twice", "gradient": lambda self, grad, w, s: grad(grad(w))}
    part = type("Twice", (Part,), ask_twice)()
    own = type("Own", (Part,), {"name": "own", "once": True, "gradient": lambda self, grad, w, s: grad(w)})()
    small = {"clients": 2, "per_round": 1, "rounds": 1, "max_steps": 1, "workers": 0, "progress": False}
    assert len(steppe.run(part, "mlp", **small).history) == 1
    with pytest.raises(SteppeError, match=r"Twice\.gradient calls grad 2 times per step, .* write asks = 2"):
        steppe.run((own, part), "mlp", **small)


def test_a_hook_that_reads_values_is_tried_on_numbers():
    part = type("Reads", (Part,), {"name": "reads", "gradient": lambda self, grad, w, s: grad(w) * float(w[0] < 9)})()
    assert len(steppe.run(part, "mlp", clients=2, per_round=1, rounds=1, max_steps=1, workers=0).history) == 1


def test_a_state_keeps_the_shape_that_was_declared():
    class Shrinks(Part):
        name = "shrinks"

        def client_state(self, x):
            return {"c": torch.zeros_like(x)}

        def finish(self, delta, s):
            s.state["c"] = delta[:2]
            return delta

    with pytest.raises(SteppeError, match=r"Shrinks\.finish writes a tensor of shape \(2,\) to s\.state\['c'\]"):
        steppe.run(Shrinks(), "mlp", clients=2, per_round=1, rounds=1, max_steps=1, workers=0, progress=False)


class Remembers(Part):
    """Keeps what belongs to a client, or to the run, in itself."""

    name = "remembers"

    def __init__(self, how):
        self.how, self.last, self.seen, self.sum = how, None, [], torch.zeros(())

    @cached_property
    def factor(self):  # computed once from its settings, which is no state
        return 2.0

    def finish(self, delta, s):
        if self.how == "last":
            self.last = delta
        if self.how == "seen":
            self.seen.append(delta)
        if self.how == "sum":
            self.sum += 1
        if self.how == "new":
            self.new = delta
        return self.factor * delta


@pytest.mark.parametrize("how", ["last", "seen", "sum", "new"])
def test_a_part_does_not_keep_state_in_itself(how):
    with pytest.raises(SteppeError, match=rf"Remembers\.finish changes self\.{how}, which all clients share and no"):
        steppe.run(Remembers(how), seeded(), blobs(), clients=2, per_round=2, rounds=1, progress=False)
    steppe.cost(Remembers("nothing"), seeded(), blobs())


def test_a_state_is_not_changed_in_place():
    class Adds(Part):
        name = "adds"

        def client_state(self, x):
            return {"sum": x * 0}

        def finish(self, delta, s):
            s.state["sum"].add_(delta)
            return delta

    with pytest.raises(SteppeError, match=r"Adds\.finish changes s\.state\['sum'\] in place: write to a new tensor"):
        steppe.cost(Adds(), seeded(), blobs())


def test_a_reduction_has_the_name_of_its_upload():
    class Averages(Part):
        name = "averages"
        reduction: ClassVar[dict[str, str]] = {"squares": "mean", "rarely": "sum"}  # the second in some settings only

        def finish(self, delta, s):
            s.up["square"] = delta.dot(delta)
            return delta

    with pytest.raises(SteppeError, match=r"reduction names 'squares', but finish writes s\.up\['square'\]"):
        steppe.cost(Averages(), seeded(), blobs())


def test_settings_of_any_type_are_taken():
    @dataclass(frozen=True)
    class Typed(Part):
        name: ClassVar[str] = "typed"
        rates: list[float] = ()
        order: Literal[1, 2] = 1
        plain = 0.5

    assert call_with_settings(Typed, "part", {"rates": [0.1, 0.2], "order": 2}).rates == [0.1, 0.2]
    with pytest.raises(SettingError, match="order of part is 3; known: 1, 2"):
        call_with_settings(Typed, "part", {"order": 3})
    with pytest.raises(SettingError, match=r"plain has no type .*, so it is not a field .* write plain: TYPE"):
        call_with_settings(Typed, "part", {"plain": 0.1})
