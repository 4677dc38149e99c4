"""The library against the plain programs, every entry and variant that a quadratic can tell, in a rough federation:
unequal sizes and steps, few clients a round, momentum, decay, a clip, tensors of several lengths."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from tests.conformance.problem import entries, label
from tests.references.test_references import quadratic

from steppe.algorithms import CATALOGUE
from steppe.engine.quadratics import Problem, trace
from steppe.parts.sgd import SGD
from steppe.registry import list_settings, make_algorithm

PROBLEM = {
    "clients": [
        {"A": [[1.2, 0.3, 0, 0], [0.3, 0.8, 0.1, 0], [0, 0.1, 1.5, 0.4], [0, 0, 0.4, 0.6]], "b": [1, 0, 0, 2], "n": 10},
        {"A": [[0.5, 0, 0.2, 0], [0, 1.1, 0, 0.3], [0.2, 0, 0.9, 0], [0, 0.3, 0, 1.4]], "b": [-2, 0, 1, 0.5], "n": 30},
        {"A": [[2, 0.5, 0, 0.1], [0.5, 1, 0, 0], [0, 0, 0.7, 0.2], [0.1, 0, 0.2, 0.9]], "b": [0, 2, -1, -1], "n": 20},
        {"A": [[0.9, 0, 0, 0], [0, 0.4, 0.1, 0], [0, 0.1, 1.8, 0], [0, 0, 0, 1]], "b": [1.5, 1, 2, 0], "n": 5},
    ],
    "x0": [0.4, -0.2, 0.3, 0.1], "tensors": [2, 1, 1], "rounds": [[0, 1, 3], [2, 1], [0, 2], [3, 1, 0], [2, 3]],
    "steps": [3, 1, 2, 4], "lr": 0.1, "lr_decay": 0.9, "momentum": 0.5, "weight_decay": 0.01, "clip": None,
    "weighting": "samples",
}  # fmt: skip
CHANGES = {"momentum": {}, "clip": {"momentum": 0.0, "clip": 0.5}, "one step": {"steps": 1, "weight_decay": 0.0}}
OPEN = {
    "perfedavg": {"outer_lr": 0.05},
    "fedlesam_s-variant=official": {"control_scale": 0.1},
}  # what follows from the run or the variant unless it is given


def differs(name, settings):
    """Where the library deviates from the formulas on purpose (its parts say so), what makes the two the same."""
    if name == "fedspeed" and settings["variant"] == "paper":
        return {"weighting": "uniform"}  # the duals' mean has the models' weights, because they travel as one vector
    if name == "fedscar" and settings["variant"] == "poster":
        return {"rounds": [[0, 1, 2, 3]] * 3}  # a client learns the next model only when it is active again
    if name == "perfedavg" and settings["variant"] == "clean":
        return {"clip": None}  # its inner move is not clipped
    return {}


def traced(name, problem, settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of variants that are known to diverge
        return trace(name, Problem(**problem), settings)["rounds"]


def can(entry):
    """Whether an entry works on parameters alone, and has a plain program."""
    name, settings = entry
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return name in quadratic.ALGORITHMS and not make_algorithm(name, SGD(), settings).needs


ABLATIONS = [("fedsol_ablation", {"variant": f"a{i}", "proximal": "l2"}) for i in (0, 2, 3, 4, 5, 6)]
ABLATIONS += [("fedsol_ablation", {"variant": f"a{i}", "proximal": "l2", "radius": "layer"}) for i in (1, 2, 3, 6)]
WITHOUT_MAN = [("takyr", {"weight": 0.0})]  # a quadratic has no activations
ENTRIES = [entry for entry in (*entries(), *ABLATIONS, *WITHOUT_MAN) if can(entry)]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("entry", ENTRIES, ids=label)
def test_the_library_equals_the_plain_program(entry, change):
    name, own = entry
    settings = (
        {k: v for k, v in list_settings(CATALOGUE[name]).items() if v is not None}
        | OPEN.get(name, {})
        | own
        | OPEN.get(label(entry), {})
    )
    problem = {**PROBLEM, **CHANGES[change], **differs(name, settings)}
    want = quadratic.run(name, problem, settings)
    for t, ours in enumerate(traced(name, problem, settings)):
        np.testing.assert_allclose(ours["x"], want["x"][t], rtol=0, atol=1e-10, err_msg=f"x after round {t}")
        for i, w in want["locals"][t].items():
            np.testing.assert_allclose(ours["local"][str(i)], w, rtol=0, atol=1e-10, err_msg=f"client {i}, round {t}")


def test_how_many_there_are():
    """An entry that stopped being compared would not be missed otherwise; README says how many are."""
    compared = {name for name, _ in ENTRIES} - {"fedsol_ablation"}
    algorithms = set(CATALOGUE) - {"fedsol_ablation"}
    root = Path(__file__).parents[2]
    readme, evidence = (root / "README.md").read_text(), (root / "docs/evidence.md").read_text()
    for page in (readme, evidence):
        assert f"{len(compared)} of the {len(algorithms)} algorithms" in page
    assert f"the classics: {len(algorithms)} algorithms, seven ablations" in " ".join(readme.split())
    assert len([name for name, _ in ENTRIES if name == "fedsol_ablation"]) >= 11
