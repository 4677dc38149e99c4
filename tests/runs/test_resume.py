"""After kill -9 at any moment, a resumed run ends with the bits of an uninterrupted one."""

from __future__ import annotations

import json
import multiprocessing
import random
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from steppe import from_arrays
from steppe.config import resolve
from steppe.core.errors import SteppeError
from steppe.engine.build import build_experiment
from steppe.engine.rounds import simulate
from steppe.runs import checkpoint
from tests.scene import USUAL, blobs, dies, launch, listening, remains, seeded

KILLS = multiprocessing.get_context("forkserver")  # children start clean, and torch is imported once
KILLS.set_forkserver_preload(["tests.runs.warm"])

SCENES: dict[str, dict[str, Any]] = {
    "scaffold, memory": {},
    "scaffold, disk, every third": {"store": "disk", "checkpoint_every": 3, "rounds": 7},
    "scaffold, disk": {"store": "disk"},
    "feddyn, batched": {"algorithm": "feddyn", "executor": "batched", "chunk": 2, "checkpoint_every": 3, "rounds": 7},
    "fedadam, early stopping": {"algorithm": "fedadam", "validation": 0.2, "early_stopping": 2, "rounds": 12,
                                "server_lr": 0.5},
    "fedsam, bernoulli": {"algorithm": "fedsam", "sampling": "bernoulli", "evaluate_every": 2, "checkpoint_every": 3},
}  # fmt: skip


def killed(at: int, out: Path, options: dict[str, Any]) -> bool:
    """Whether the child was killed; False when the run ended before its `at`-th touch of the disk."""
    child = KILLS.Process(target=dies, args=(at, out, options))
    child.start()
    child.join(60)
    assert child.exitcode in (0, -signal.SIGKILL), child.exitcode
    return child.exitcode != 0


@pytest.mark.parametrize("scene", SCENES)
def test_a_run_killed_anywhere_ends_with_the_same_bits(scene: str, tmp_path: Path) -> None:
    options = SCENES[scene]
    whole = tmp_path / "whole"
    expected = remains(whole, launch(whole, **options))
    moments = random.Random(scene).sample(range(1, 75), 7)
    died = 0
    for at in moments:
        out = tmp_path / f"killed-{at}"
        died += killed(at, out, options)
        assert remains(out, launch(out, resume=True, **options)) == expected, f"killed at {at}"
    assert died >= 3


def test_a_run_may_be_killed_again_and_again(tmp_path: Path) -> None:
    options: dict[str, Any] = {"store": "disk", "resume": True}
    whole, out = tmp_path / "whole", tmp_path / "out"
    expected = remains(whole, launch(whole, store="disk"))
    times = 0
    while killed(31, out, options):  # far enough for a checkpoint or two, so that it gets there in the end
        times += 1
        assert times < 20
    assert times >= 2
    assert remains(out, launch(out, **options)) == expected


def test_early_stopping_restores_the_best_round(tmp_path: Path) -> None:
    options = SCENES["fedadam, early stopping"]
    result = launch(tmp_path / "whole", **options)
    losses = [r["validation_loss"] for r in result.history]
    best = losses.index(min(losses)) + 1
    assert best < len(losses) < 12  # it did stop early, and not at the best round
    assert len(losses) == best + 2
    assert result.summary["model_of_round"] == best
    assert result.accuracy == result.history[best - 1]["accuracy"]
    assert result.accuracy == pytest.approx(_accuracy(result))


def _accuracy(result: Any) -> float:
    data = result.experiment.federation.data
    with torch.no_grad():
        return float((result.model(data.test_inputs).argmax(1) == data.test_targets).double().mean())


# What may have happened to a checkpoint, and what is then said about it.
def _truncate(at: Path) -> None:
    path = at / "server.safetensors"
    path.write_bytes(path.read_bytes()[:-20])


def _empty(at: Path) -> None:
    (at / "clients.safetensors").write_bytes(b"")


def _lose(at: Path) -> None:
    (at / "server.safetensors").unlink()


def _lose_manifest(at: Path) -> None:
    (at / "manifest.json").unlink()


def _cut_manifest(at: Path) -> None:
    path = at / "manifest.json"
    path.write_text(path.read_text()[:50])


def _edit_manifest(at: Path) -> None:
    path = at / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "round": 1}))


def _edit_notes(at: Path) -> None:
    path = at / "manifest.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "notes": {**content["notes"], "since": 5}}))


def _edit_tensor(at: Path) -> None:
    path = at / "server.safetensors"
    save_file({k: v + 1e-3 for k, v in load_file(path).items()}, path)


DAMAGE = [_truncate, _empty, _lose, _lose_manifest, _cut_manifest, _edit_manifest, _edit_notes, _edit_tensor]


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run killed after its third round, `killed`, and one that was not, `whole`."""
    home = tmp_path_factory.mktemp("interrupted")
    for store in ("memory", "disk"):
        launch(home / f"whole-{store}", store=store)
        with pytest.raises(KeyboardInterrupt, match="stop here"):
            launch(home / f"killed-{store}", store=store, watch=_stop_after(4))
        names = sorted(p.name for p in (home / f"killed-{store}/checkpoints").iterdir())
        assert names == ["round-000003", "round-000004"]
    return home


def _stop_after(rounds: int) -> Any:
    def watch(record: dict[str, Any]) -> None:
        if record["round"] == rounds:
            raise KeyboardInterrupt("stop here")

    return watch


def _resumed(out: Path, **options: Any) -> tuple[Any, list[str]]:
    """A resumed run and what it said."""
    built = build_experiment(resolve({**USUAL, **options}), None, seeded(), from_arrays(*blobs()))
    with listening() as said:
        return simulate(built, out, True), said


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda f: f.__name__)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(
    damage: Any, interrupted: Path, tmp_path: Path
) -> None:
    out = shutil.copytree(interrupted / "killed-memory", tmp_path / "run")
    damage(out / "checkpoints/round-000004")
    result, said = _resumed(out, store="memory")
    assert "round-000004" in said[0]
    assert "damaged" in said[0]
    assert said[1] == "The earlier checkpoint of round 3 is used instead."
    whole = interrupted / "whole-memory"
    assert remains(out, result) == remains(whole, result)


def test_an_edited_row_on_disk_is_noticed(interrupted: Path, tmp_path: Path) -> None:
    out = shutil.copytree(interrupted / "killed-disk", tmp_path / "run")
    newest, before = (load_file(out / f"checkpoints/round-00000{n}/clients.safetensors") for n in (4, 3))
    same = [*zip(before["clients"], before["slots"], strict=True)]
    row = next(k for k, one in enumerate(zip(newest["clients"], newest["slots"], strict=True)) if one not in same)
    client, place, slot = (int(newest[name][row]) for name in ("clients", "places", "slots"))
    path = out / "clients.bin"
    raw = bytearray(path.read_bytes())
    width = 4 * json.loads((out / "about.json").read_text())["parameters"]
    raw[(3 * place + slot) * width + 5] ^= 1
    path.write_bytes(raw)
    result, said = _resumed(out, store="disk")
    assert "round-000004" in said[0]
    assert f"state of client {client} in clients.bin" in said[0]
    assert said[1] == "The earlier checkpoint of round 3 is used instead."
    assert remains(out, result) == remains(interrupted / "whole-disk", result)


@pytest.mark.parametrize("store", ["memory", "disk"])
def test_when_no_checkpoint_is_whole_the_run_starts_from_the_beginning(
    store: str, interrupted: Path, tmp_path: Path
) -> None:
    out = shutil.copytree(interrupted / f"killed-{store}", tmp_path / "run")
    for path in (out / "checkpoints").iterdir():
        _truncate(path)
    result, said = _resumed(out, store=store)
    lost = "No checkpoint is intact, so the run STARTS AGAIN FROM ROUND 1; the old records are replaced."
    assert said.count(lost) == 1
    assert lost in result.notes
    assert remains(out, result) == remains(interrupted / f"whole-{store}", result)


def test_the_checkpoint_to_fall_back_on_outlives_a_second_crash(
    interrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed run must not write over the rows of the older checkpoint before it has made a new one."""
    out = shutil.copytree(interrupted / "killed-disk", tmp_path / "run")

    def crash(*_: Any) -> None:
        raise RuntimeError("stop here")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", crash)
        with pytest.raises(RuntimeError, match="stop here"):
            launch(out, resume=True, store="disk")
    _truncate(out / "checkpoints/round-000004")
    result, said = _resumed(out, store="disk")
    assert said[1] == "The earlier checkpoint of round 3 is used instead."
    assert remains(out, result) == remains(interrupted / "whole-disk", result)


def test_a_torn_record_is_written_again(interrupted: Path, tmp_path: Path) -> None:
    out = shutil.copytree(interrupted / "killed-memory", tmp_path / "run")
    with (out / "rounds.jsonl").open("a") as file:
        file.write('{"round": 5, "lr": 0.0')
    result = launch(out, resume=True, store="memory")
    assert remains(out, result) == remains(interrupted / "whole-memory", result)


def test_workers_resume_too(tmp_path: Path, interrupted: Path) -> None:
    out = shutil.copytree(interrupted / "killed-memory", tmp_path / "run")
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps({**config, "workers": 2}))
    result = launch(out, resume=True, workers=2, store="memory")
    assert result.notes == []  # no word of having gone without them
    assert remains(out, result) == remains(interrupted / "whole-memory", result)


def test_only_the_number_of_rounds_may_change(interrupted: Path, tmp_path: Path) -> None:
    out = shutil.copytree(interrupted / "killed-memory", tmp_path / "run")
    with pytest.raises(SteppeError, match=r"lr was 0\.1 and is 0\.2"):
        launch(out, resume=True, store="memory", lr=0.2)
    with pytest.raises(SteppeError, match="already finished 4 rounds"):
        launch(out, resume=True, store="memory", rounds=2)
    with pytest.raises(SteppeError, match=r"model was 'own:tests\.scene\.Net'"):
        launch(out, resume=True, store="memory", model=torch.nn.Linear(6, 3))
    with pytest.raises(SteppeError, match="already holds a run"):
        launch(out)
    longer, whole = launch(out, resume=True, store="memory", rounds=8), tmp_path / "whole"
    assert remains(out, longer) == remains(whole, launch(whole, rounds=8, store="memory"))


def _wrong(outputs: Any, targets: Any) -> Any:
    return (outputs.argmax(1) != targets).double()


def test_the_direction_of_a_metric_may_not_change(tmp_path: Path) -> None:
    out = tmp_path / "run"
    launch(out, rounds=2, metric=("wrong", _wrong, "lower"))
    with pytest.raises(SteppeError, match=r"wrong \(lower is better\) and are wrong \(higher is better\)"):
        launch(out, resume=True, rounds=3, metric=("wrong", _wrong, "higher"))
    launch(out, resume=True, rounds=3, metric=("wrong", _wrong, "lower"))


def test_a_schedule_that_is_a_function_allows_more_rounds(tmp_path: Path) -> None:
    out = tmp_path / "run"
    launch(out, rounds=2, lr_schedule=lambda t: 1 / (t + 1))
    with pytest.raises(SteppeError, match="lr_schedule was"):
        launch(out, resume=True, rounds=3, lr_schedule=lambda t: 1 / (t + 2))
    longer = launch(out, resume=True, rounds=3, lr_schedule=lambda t: 1 / (t + 1))
    whole = launch(tmp_path / "whole", rounds=3, lr_schedule=lambda t: 1 / (t + 1))
    assert remains(out, longer) == remains(tmp_path / "whole", whole)


def test_a_finished_run_can_be_made_longer_and_its_old_summary_does_not_outlive_that(tmp_path: Path) -> None:
    out = tmp_path / "run"
    launch(out, rounds=2)
    with pytest.raises(KeyboardInterrupt, match="stop here"):
        launch(out, resume=True, rounds=5, watch=_stop_after(3))
    assert not (out / "result.json").exists()
    launch(out, resume=True, rounds=5)
    assert json.loads((out / "result.json").read_text())["rounds"] == 5


def test_resuming_a_finished_run_does_not_say_that_this_machine_trained_it(tmp_path: Path) -> None:
    out = tmp_path / "run"
    launch(out, rounds=2)
    told = {name: json.loads((out / name).read_text()) for name in ("result.json", "versions.json")}
    assert told["result.json"]["executor"] == "sequential"
    elsewhere = {"result.json": {"executor": "captured", "notes": ["fast"]}, "versions.json": {"hardware": "H200"}}
    for name, changes in elsewhere.items():
        (out / name).write_text(json.dumps(told[name] | changes))
    launch(out, resume=True, rounds=2)
    for name, changes in elsewhere.items():
        assert json.loads((out / name).read_text()) == told[name] | changes
    (out / "result.json").write_text("{")  # what is damaged is written again
    launch(out, resume=True, rounds=3)
    assert json.loads((out / "result.json").read_text())["executor"] == "sequential"
    assert json.loads((out / "versions.json").read_text()) == told["versions.json"]


def test_a_new_run_in_an_old_folder_does_not_find_its_checkpoints(tmp_path: Path) -> None:
    """As `steppe compare` does it: an unfinished run of other settings is replaced."""
    out = tmp_path / "run"
    tiny = {"model": "mlp", "clients": 4, "per_round": 2, "max_steps": 2, "checkpoint_every": 1, "workers": 0}
    simulate(build_experiment(resolve({**tiny, "rounds": 4, "seed": 1})), out)
    result = simulate(build_experiment(resolve({**tiny, "rounds": 2})), out)
    assert [p.name for p in sorted((out / "checkpoints").iterdir())] == ["round-000001", "round-000002"]
    again = simulate(build_experiment(resolve({**tiny, "rounds": 2})), out, resume=True)
    assert torch.equal(again.x, result.x)


@pytest.mark.parametrize("algorithm", ["fedlesam", "moon", "fedscar", "mofedsam", "fedsmoo", "fednova"])
def test_every_kind_of_state_survives_a_checkpoint(algorithm: str, tmp_path: Path) -> None:
    """Among them states that are the global model itself under another name."""
    options = {"algorithm": algorithm, "rounds": 4, "momentum": 0.0}
    whole, out = tmp_path / "whole", tmp_path / "out"
    expected = remains(whole, launch(whole, **options))
    with pytest.raises(KeyboardInterrupt, match="stop here"):
        launch(out, watch=_stop_after(2), **options)
    assert remains(out, launch(out, resume=True, **options)) == expected
