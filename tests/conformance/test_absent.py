"""A called client whose reply does not come, or is not taken, leaves the same state as one that was never called."""

import warnings

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

from steppe.config import resolve
from steppe.core.server import Server
from steppe.engine.play_round import play_round
from steppe.executors.executor import Answers
from steppe.executors.sequential import Sequential
from steppe.experiment import Experiment
from steppe.runs.client_store import MemoryStore
from tests.conformance.problem import CLIENTS, LR, algorithm, entries, federation, label, task

CALLED = [[0, 1, 3, 4], [5, 2, 1], [3, 0, 5, 2, 4], [1, 0]]
LOST, SPOILT = [[3], [1], [4], []], [[], [5], [0], []]  # each of them is called again later, but for one
GONE = [{*lost, *spoilt} for lost, spoilt in zip(LOST, SPOILT, strict=True)]
ENTRIES = [e for e in entries() if e[1].get("first_step") != "official"]  # along rounding noise, by design


class Losing(Sequential):
    """Trains everybody who is called; some replies are lost on the way, and some are not finite."""

    trusted = False

    def __call__(self, sent, ids, states):
        answers = super().__call__(sent, ids, states)
        for k, i in enumerate(ids):
            if i in SPOILT[int(sent.round)]:
                answers.replies.update[k] = torch.nan
        keep = [k for k, i in enumerate(ids) if i not in LOST[int(sent.round)]]
        replies = tree_map(lambda v: v[keep], answers.replies)
        return Answers([ids[k] for k in keep], replies, [answers.sizes[k] for k in keep], answers.samples, {})


def run(alg, executor, schedule):
    tsk, fed = task(), federation()
    built = Experiment(resolve({"clients": CLIENTS, "nonfinite": "drop"}), alg, tsk, fed, None)
    server, store = Server(tsk.x0, alg.server_state(tsk.x0), {}), MemoryStore(lambda: alg.client_state(tsk.x0))
    for t, ids in enumerate(schedule):
        server = play_round(built, server, store, executor(alg, tsk, fed), t, ids, LR * 0.9**t).after
    return server.x, server.state, {i: store.rows[i] for i in store.list_known()}


@pytest.mark.parametrize("entry", ENTRIES, ids=label)
def test_no_reply_leaves_no_trace(entry):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        alg = algorithm(*entry)
    never = run(alg, Sequential, [[i for i in ids if i not in gone] for ids, gone in zip(CALLED, GONE, strict=True)])
    found = run(alg, Losing, CALLED)
    assert found[2].keys() == never[2].keys()
    for p, q in zip(tree_leaves(found), tree_leaves(never), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize(
    "settings", [{}, {"variant": "lagged"}, {"scale": "var"}, {"variant": "lagged", "scale": "var"}]
)
def test_rounds_that_nobody_answers_age_fedscars_mean_too(settings):
    """b̄ is the mean of all b_i, which decay in every round, whoever answers."""
    alg, tsk, fed, keep = algorithm("fedscar", {"keep": 0.7, "alpha": 0.3, **settings}), task(), federation(), 0.7
    built = Experiment(resolve({"clients": CLIENTS}), alg, tsk, fed, None)
    server, store = Server(tsk.x0, alg.server_state(tsk.x0), {}), MemoryStore(lambda: alg.client_state(tsk.x0))
    for t, ids in [(0, [0, 1, 2]), (1, [1, 2, 3]), (2, [0, 3]), (6, [4, 1]), (7, [1]), (11, [0, 1, 2, 3])]:
        played = play_round(built, server, store, Sequential(alg, tsk, fed), t, ids, LR)
        server = played.after
        own = [store.rows[i]["geometric_bias"] for i in store.list_known()]
        mean = sum(keep ** (t - float(s["when"])) * s["b"] for s in own) / CLIENTS
        torch.testing.assert_close(server.state["geometric_bias"]["bbar"], mean, rtol=0, atol=1e-12)
        assert float(mean.norm()) > 0 or t == 0
        h = sum(s["h"] for s in own) / CLIENTS
        torch.testing.assert_close(server.state["geometric_bias"]["h"], h, rtol=0, atol=1e-12)
