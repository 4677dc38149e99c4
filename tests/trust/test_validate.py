"""What the server accepts: shape, type, finite numbers, a bound on the norm."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import steppe
from steppe.core.client import Reply, Sent, list_uploads, make_empty_replies
from steppe.core.errors import RunFailed
from steppe.core.validate import find_faults, find_misfit, sift_replies
from tests.conformance.problem import algorithm, run, task
from tests.scene import launch, records


def reply(update: Any, **up: torch.Tensor) -> Reply:
    told = torch.zeros(len(update))
    return Reply(update, {"part": up} if up else {}, {}, told, told, {"part": {"kept": torch.ones(len(update))}})


LIKE = reply(torch.zeros(0, 3), c=torch.zeros(0, 2))


@pytest.mark.parametrize(("sent", "why"), [
    (reply(torch.ones(3), c=torch.ones(2)), ""),
    (reply(torch.ones(4), c=torch.ones(2)), "its update has shape (4,) where (3,) is expected"),
    (reply(torch.ones(1, 3), c=torch.ones(2)), "its update has shape (1, 3) where (3,) is expected"),
    (reply(torch.ones(3), c=torch.ones(2).half()), "its part.c has type torch.float16 where torch.float32 is expected"),
    (reply(torch.ones(3).long(), c=torch.ones(2)), "its update has type torch.int64 where torch.float32 is expected"),
    (reply(torch.ones(3)), "it lacks part.c"),
    (reply(torch.ones(3), c=torch.ones(2), d=torch.ones(2)), "it has part.d, which was not requested"),
    (reply([1.0, 2.0, 3.0], c=torch.ones(2)), "its update is not a tensor"),
])  # fmt: skip
def test_a_reply_of_another_kind(sent: Reply, why: str) -> None:
    assert find_misfit(sent, LIKE) == why


def test_numbers_and_norms() -> None:
    update, c = torch.tensor([[3.0, 0, 0]] * 5), torch.tensor([[4.0, 0]] * 5)
    update[1, 2], c[2, 0], c[3, 1] = math.nan, math.inf, 1e-3
    many = reply(update, c=c)
    assert find_faults(many) == ["", "is not finite", "is not finite", "", ""]
    assert find_faults(many, 5.0) == ["", "is not finite", "is not finite", "has norm 5, above the limit of 5", ""]
    many.state["part"]["kept"][4] = -math.inf  # what a client keeps would spoil its next round
    assert find_faults(many)[4] == "is not finite"
    ids, kept = sift_replies([7, 8, 9, 10, 11], many, find_faults(many))
    assert ids == [7, 10]
    assert torch.equal(kept.up["part"]["c"], c[[0, 3]])
    assert find_faults(reply(torch.zeros(0, 3))) == []


def test_known_lengths_spare_a_look_and_hide_nothing() -> None:
    update, c = torch.ones(4, 3), torch.ones(4, 2)
    c[1, 0] = math.nan
    looked_away = reply(torch.full((4, 3), math.nan), c=c)  # lengths are believed: a caller must have measured them
    assert find_faults(looked_away, lengths=torch.ones(4)) == ["", "is not finite", "", ""]
    update[0], update[2, 1], update[3, 2] = 3e38, math.nan, -math.inf
    many = reply(update, c=c)
    lengths = torch.linalg.vector_norm(update, dim=1)
    assert lengths[0] == math.inf  # although each of its numbers is finite
    assert (
        find_faults(many, lengths=lengths)
        == find_faults(many)
        == ["", "is not finite", "is not finite", "is not finite"]
    )


def test_huge_numbers_have_a_norm() -> None:
    assert find_faults(reply(torch.full((1, 3), 3e38)), 1e30)[0].startswith("has norm 5.196e+38")


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedsmoo", "fednova", "feddc"])
def test_nobody_shows_what_is_expected(name: str) -> None:
    """The empty replies have the shapes and types of real ones, so real ones fit."""
    alg, seen = algorithm(name), []
    x0 = task().x0

    @dataclass(frozen=True)
    class Look(steppe.Part):
        name = "look"

        def reduce(self, rows: Any, s: Any) -> Any:
            seen.append(rows)
            return {k: v.mean(0) for k, v in rows.items()}

    run(steppe.Algorithm((*alg.parts, Look())), rounds=1)
    down = {p.name: {k: p.server_state(x0)[k] for k in p.down} for p in alg.parts if p.down}
    empty = make_empty_replies(alg, task(), Sent(x0, down, {}, x0.new_tensor(0.1), x0.new_tensor(0.0)))
    expected = list_uploads(alg, empty)
    assert expected.keys() == seen[0].keys()
    assert all(expected[k].shape[1:] == v.shape[1:] and expected[k].dtype == v.dtype for k, v in seen[0].items())
    assert all(len(v) == 0 for v in expected.values())


@dataclass(frozen=True)
class Boosted(steppe.Part):
    """Clients with fewer than so many steps send a thousand times their update."""

    name = "boosted"
    below: float = 0.0

    def finish(self, delta: torch.Tensor, s: steppe.ClientRound) -> torch.Tensor:
        return torch.where(s.steps < self.below, 1000 * delta, delta)


def test_a_reply_that_is_too_long_is_refused_named_and_counted(tmp_path: Path) -> None:
    federation = launch(algorithm="fedavg", rounds=0).experiment.federation
    steps = [federation.steps(i, lambda e, b: e * b) for i in range(6)]
    worst = steps.index(min(steps))
    common = {"algorithm": Boosted(min(steps) + 0.5), "per_round": 6, "rounds": 2, "refuse_above": 20.0}
    with pytest.raises(RunFailed, match=rf"round 1: the update of client {worst} has norm .* above the limit of 20"):
        launch(**common)
    told = launch(tmp_path / "run", nonfinite="drop", **common)
    assert told.summary["refused"] == 2
    for record in records(tmp_path / "run"):
        assert [f["client"] for f in record["refused"]] == [worst]
        assert [told["client"] for told in record["refused"]] == [worst]
        assert "above the limit of 20" in record["refused"][0]["why"]
        assert record["clients"] == 5
    assert "refused" not in launch(algorithm="fedavg", rounds=1, refuse_above=1e6).summary
