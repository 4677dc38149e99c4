"""Every setting of every part and entry refuses what is not a sane value of it, by name."""

import math
from dataclasses import dataclass
from inspect import Parameter
from typing import Annotated

import numpy as np
import pytest

import steppe
from steppe.algorithms import CATALOGUE
from steppe.core.errors import SettingError
from steppe.core.part import Part
from steppe.core.ranges import Range
from steppe.parts.adamw import AdamW
from steppe.parts.look_ahead import FixedRate
from steppe.parts.sgd import SGD
from steppe.registry import PARTS, call_with_settings, list_settings, make_algorithm, parse_addition

WRONG = [math.inf, -math.inf, math.nan, -1, -1e-3, 10**30, 1e30, "much", "", [], {}, object(), True, 0.5j]
OPTIMISERS = {"sgd": SGD, "adamw": AdamW, "fixed_rate": FixedRate}
MAKERS = {**CATALOGUE, **PARTS, **OPTIMISERS}
SETTINGS = [(name, key) for name, maker in MAKERS.items() for key in list_settings(maker)]
FLAGS = {"not_true", "accumulate", "amplified", "aligned", "jump"}
TEXTS = {("asam", "on"), ("dp", "secret")}
UNBOUNDED = {
    ("norm_bound", "limit"),
    ("dp", "clip"),
    ("fedgf", "threshold"),
    ("mixed_ascent", "threshold"),
}  # inf: no bound


def legal(name, key, value):
    if isinstance(value, str):
        return (name, key) in TEXTS
    if isinstance(value, bool):
        return key in FLAGS
    return (name, key) in UNBOUNDED and value in (math.inf, 10**30, 1e30)


def required(maker):
    """Values for the settings without a default."""
    usual = {"rho": 0.1, "limit": 1.0, "mu": 1.0, "alpha": 0.1, "kind": "adam", "lr": 0.1, "beta1": 0.9, "beta2": 0.99,
             "tau": 0.01}  # fmt: skip
    return {k: usual[k] for k, v in list_settings(maker).items() if v is Parameter.empty}


@pytest.mark.parametrize(("name", "key"), SETTINGS)
def test_wrong_values_are_refused_by_name(name, key):
    maker = MAKERS[name]
    for value in WRONG:
        if legal(name, key, value):
            continue
        given = {**required(maker), key: value}
        with pytest.raises(SettingError, match=rf"\b{key} of "):
            call_with_settings(maker, f"algorithm or part {name!r}", given)
        if isinstance(maker, type):  # also without the registry
            with pytest.raises(SettingError, match=rf"\b{key} of part '{maker.name}'"):
                maker(**given)


def test_there_are_many():
    assert len(SETTINGS) > 130


@pytest.mark.parametrize("name", MAKERS)
def test_defaults_are_legal(name):
    maker = MAKERS[name]
    given = {k: v for k, v in list_settings(maker).items() if v is not Parameter.empty}
    call_with_settings(maker, name, {**required(maker), **given})


def test_errors_are_one_family():
    with pytest.raises(steppe.SteppeError, match=r"rho of algorithm 'fedsam' is -1, but must be between 0 and 1e\+09"):
        make_algorithm("fedsam", SGD(), {"rho": -1})
    with pytest.raises(ValueError, match="momentum of part 'sgd' is 1, but must be at least 0, below 1"):
        SGD(momentum=1)
    with pytest.raises(SettingError, match="rho of part 'sam' must be a number, not 'much'"):
        parse_addition("sam:rho=much")


def test_numbers_of_other_libraries_are_numbers():
    assert SGD(momentum=np.float32(0.5)).momentum == 0.5
    assert type(make_algorithm("fedsam", SGD(), {"rho": 1}).parts[0].rho) is float


def test_a_part_of_ones_own_may_say_its_ranges_or_nothing():
    @dataclass(frozen=True)
    class Mine(Part):
        name = "mine"
        strength: float = -1.0
        share: Annotated[float, Range(0, 0.5)] = 0.1
        anything: object = None

    assert Mine(strength=-5.0, anything=[1]).strength == -5.0
    with pytest.raises(SettingError, match="strength of part 'mine' is inf, but must be finite"):
        Mine(strength=math.inf)
    with pytest.raises(SettingError, match=r"share of part 'mine' is 0\.6, but must be between 0 and 0\.5"):
        Mine(share=0.6)
