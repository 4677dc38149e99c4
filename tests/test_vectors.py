"""Every vector of the specification that is a federation of quadratics, states included, to 1e-8."""

import json
from pathlib import Path

import numpy as np
import pytest

from steppe.algorithms import CATALOGUE
from steppe.engine.quadratics import Problem, trace

FILE = json.loads((Path(__file__).parent / "vectors" / "quadratic.json").read_text())
CASES = {case["id"]: case for case in FILE["cases"]}


def problem_of(case):
    return {**FILE["problems"][case["problem"]], **case.get("change", {})}


def found(states, name):
    """The states of this name, whichever part keeps them."""
    name = {"sigma": "h"}.get(name, name)  # FedGloSS's σ is FedDyn's dual
    return [np.array(tensors[name]) for tensors in states.values() if name in tensors]


def close(ours, theirs, what):
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-8, err_msg=what)


@pytest.mark.parametrize("name", CASES)
def test_vector(name):
    case = CASES[name]
    assert case["algorithm"] in CATALOGUE
    rounds = trace(case["algorithm"], Problem(**problem_of(case)), case["settings"])["rounds"]
    checked = 0
    for t, ours in enumerate(rounds):
        if case["x"][t] is not None:
            close(ours["x"], case["x"][t], f"x after round {t}")
            checked += 1
        for state, values in case.get("server", {}).items():
            if values[t] is not None:
                (mine,) = found(ours["server"], state)
                close(mine, values[t], f"server's {state} after round {t}")
        for state, values in case.get("clients", {}).items():
            for client, value in (values[t] or {}).items():
                if client not in ours["clients"]:  # never took part: no state, and the vector says zero
                    close(0 * np.array(value), value, f"client {client}'s {state}")
                    continue
                (mine,) = found(ours["clients"][client], state)
                close(mine, value, f"client {client}'s {state} after round {t}")
        for client, value in ((case.get("locals") or {})[t] or {}).items() if case.get("locals") else ():
            close(ours["local"][client], value, f"client {client}'s model in round {t}")
        if case.get("consistency") and case["consistency"][t] is not None:
            gaps = [np.square(np.array(w) - ours["x"]).sum() for w in ours["local"].values()]
            close(np.mean(gaps), case["consistency"][t], f"consistency after round {t}")
    assert checked
