"""Every entry learns the embedded digits: global methods by the global model, personalised ones by the clients' own."""

from functools import cache

import pytest

import steppe
from steppe.algorithms import CATALOGUE
from steppe.evaluate.personal import is_personal
from steppe.parts.sgd import SGD
from steppe.registry import make_algorithm

PROTOCOL = {"model": "mlp", "rounds": 8, "clients": 10, "per_round": 5, "partition": "lda(0.5)", "lr": 0.2,
            "batch": 40, "evaluate_every": 8}  # fmt: skip
# The paper's radius for its ablations is 2, at which some of them are meant to fail; a small one must not hurt.
ABLATIONS = [pytest.param("fedsol_ablation", {"variant": f"a{i}", "rho": 0.1}, id=f"a{i}",
                          marks=[pytest.mark.slow] * (i > 0)) for i in range(7)]  # fmt: skip
# FedGF's threshold is the length of an update, and belongs to the small learning rate that it was published with.
OTHERWISE = {"fedgf": {"lr": 0.01, "batch": 20, "rounds": 20},
             "perfedavg": {"lr": 0.1, "batch": 20, "rounds": 15, "evaluate_every": 15}}  # fmt: skip
LATE = ("fedadagrad", "feddc", "fedcm", "mofedsam", "fedspeed", "fedwmsam")
OTHERWISE |= {name: {"rounds": 10, "evaluate_every": 10} for name in LATE}
ENTRIES = [pytest.param(name, {}, id=name) for name in CATALOGUE if name != "fedsol_ablation"] + ABLATIONS


@pytest.mark.parametrize(("name", "settings"), ENTRIES)
def test_learns(name, settings):
    result = steppe.run(name, **{**PROTOCOL, **OTHERWISE.get(name, {})}, settings=settings)
    if is_personal(make_algorithm(name, SGD())):
        reached = max(own["mean"] for own in result.summary["personal"].values())
        assert reached > 0.55, f"clients' own models reach {reached:.2f}; chance on their own classes is far below"
    else:
        assert result.accuracy > 0.75, f"the global model reaches {result.accuracy:.2f}"
    assert result.history[-1]["train_loss"] < result.history[0]["train_loss"]


@pytest.mark.parametrize("name", ["fedsam", "fedasam", "fedsol", "fedprox", "fedntd", "moon", "fedspeed"])
def test_switched_off_it_is_another(name):
    """rho = 0, mu = 0, beta = 0: FedAvg to the bit of the arithmetic (FedSpeed: FedDyn with its own mean)."""
    off = {"fedsam": {"rho": 0.0}, "fedasam": {"rho": 0.0}, "fedsol": {"rho": 0.0}, "fedprox": {"mu": 0.0},
           "fedntd": {"beta": 0.0}, "moon": {"mu": 0.0}, "fedspeed": {"rho": 0.0, "variant": "official"}}  # fmt: skip
    plain = run_shortly("feddyn", variant="official") if name == "fedspeed" else run_shortly("fedavg")
    assert float((run_shortly(name, **off[name]) - plain).abs().max()) < 1e-9


@cache
def run_shortly(name, **settings):
    return steppe.run(name, **{**PROTOCOL, "rounds": 3, "dtype": "float64"}, settings=settings).x
