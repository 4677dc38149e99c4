"""Classes of parts that Python accepts, and that would do nothing."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

import steppe
from steppe.core.errors import SettingError, SteppeError
from steppe.core.part import Part
from steppe.core.part_class_checks import check_class, telling_missing_states
from steppe.parts.sam import SAM
from steppe.parts.sgd import SGD
from steppe.registry import PARTS, call_with_settings, check_parts, complete_algorithm, make_algorithm


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
    with pytest.raises(KeyError), telling_missing_states():
        {}["mine"]
