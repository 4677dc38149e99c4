"""One capture serves rounds of all sizes: the GPU's growth is measured with what trains as a fresh executor does."""

from __future__ import annotations

import pytest
import torch

from benchmarks import gpu_growth
from steppe.data import from_arrays
from steppe.executors.captured import Captured
from steppe.experiment import Experiment

SMALL = gpu_growth.Sizes(lanes=2, batch=4, clients=(8, 16), per_round=(2, 5), steps=(2, 3), width=(), rounds=2)


def test_a_time_budget_is_kept_and_what_was_left_out_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    told = gpu_growth.measure("cpu", 0.0, sizes=SMALL)
    assert set(told["per_round"]) == {"5", "2"}  # the first two figures, and nothing after them
    assert told["left_out"] == ["clients in total 16", "local steps 3", "clients per round 1"]
    assert "left out, because of the time limit of 0 s: clients in total 16" in capsys.readouterr().out


@pytest.mark.slow
def test_one_executor_plays_all_sizes_as_its_own_would(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (80, 3, 32, 32), dtype=torch.uint8, generator=generator).numpy()
    labels = torch.arange(80).numpy() % 10
    data = from_arrays(images, labels, images[:10], labels[:10], classes=10)

    def captured(e: Experiment) -> Captured:  # what a GPU would get, without the compiler
        return Captured(e.algorithm, e.task, e.federation, e.config.chunk, compiled=False)

    monkeypatch.setattr(gpu_growth, "choose_executor", captured)
    seen: list[torch.Tensor] = []
    play = gpu_growth.play_round

    def watched(*args):  # type: ignore[no-untyped-def]
        played = play(*args)
        seen.append(played.after.x)
        return played

    monkeypatch.setattr(gpu_growth, "play_round", watched)
    several = gpu_growth.Job(data, "cpu", False, SMALL, 2)
    several.round_seconds(5)
    for size in ({"per_round": 2}, {"per_round": 3, "clients": 16, "steps": 3}):
        seen.clear()
        for job in (several, gpu_growth.Job(data, "cpu", False, SMALL, 2)):
            torch.manual_seed(1)  # who takes part
            job.t = 0
            job.round_seconds(**size)
        shared, own = seen[: SMALL.rounds], seen[SMALL.rounds :]
        torch.testing.assert_close(shared, own, rtol=0, atol=1e-6)
        assert not torch.equal(shared[0], shared[1])
