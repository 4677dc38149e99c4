"""Which compositions are refused, and that order is meaning. What the others mean: `test_invariants.py`."""

import pytest
import torch

from steppe.core.algorithm import Algorithm
from steppe.core.errors import CompositionError
from steppe.parts.consistent_sam import ConsistentSAM
from steppe.parts.control_variates import ControlVariates
from steppe.parts.sam import SAM
from steppe.parts.sgd import SGD
from steppe.registry import parse_addition
from tests.conformance.problem import algorithm, run


def built(name, *add):
    return algorithm(name, add=tuple(map(parse_addition, add)))


def test_two_parts_of_one_name_are_refused():
    with pytest.raises(CompositionError, match="two parts are named 'sam'"):
        Algorithm((SAM(0.1), SAM(0.2), SGD()))
    with pytest.raises(CompositionError, match="two parts are named 'sam'"):
        built("fedsam", "sam:rho=0.01")


def test_a_dual_inside_a_part_that_asks_twice_is_refused():
    with pytest.raises(CompositionError, match="more than once per step"):
        Algorithm((ConsistentSAM(0.1), SAM(0.1), SGD()))
    Algorithm((SAM(0.1), ConsistentSAM(0.1), SGD()))  # the other way round is fine


def test_two_judged_models_are_refused():
    with pytest.raises(CompositionError, match="'ema' and 'swa' both define which model is evaluated"):
        built("fedavg", "ema", "swa:rounds=2")


@pytest.mark.parametrize("served", ["control_variates", "dynamic_regularisation:alpha=1", "server_momentum"])
def test_clients_alone_have_no_server(served):
    with pytest.raises(CompositionError, match="no server for"):
        built("local", served)
    with pytest.raises(CompositionError, match="cannot move their start: leave it out"):
        built("local", "relaxed_start")
    built("local", "sam:rho=0.1")


def test_order_is_meaning():
    inside = Algorithm((SAM(0.05), ControlVariates(), SGD()))  # the ascent sees the plain gradient
    outside = Algorithm((ControlVariates(), SAM(0.05), SGD()))  # the ascent sees the corrected one
    assert not torch.allclose(run(inside)[0].x, run(outside)[0].x, atol=1e-9)
