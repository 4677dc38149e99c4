"""One client after the other, all at once, or in worker processes: the same numbers; and workers that die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import steppe
from steppe.config import resolve
from steppe.core.errors import RunFailed
from steppe.data import Partition
from steppe.data.federation import Federation
from steppe.engine.build import build_experiment
from steppe.executors.batched import Batched
from steppe.executors.sequential import Sequential
from steppe.executors.shared_pickle import forget, pack, share, unpack
from steppe.executors.workers import Workers
from steppe.experiment import Experiment
from tests.scene import NormNet, blobs, launch, remains, seeded

ROOT = Path(__file__).parents[2]


def unequal(algorithm: str = "scaffold", sizes: tuple[int, ...] = (1, 2, 7, 40, 23, 9), **options: Any) -> Experiment:
    """Clients of very different sizes, in float64: one sample and forty, with batches of four."""
    given = {"algorithm": algorithm, "clients": len(sizes), "per_round": len(sizes), "batch": 4, "epochs": 2,
             "momentum": 0.5, "dtype": "float64", "workers": 0, "partition": "iid", "lr": 0.2, **options}  # fmt: skip
    data = steppe.from_arrays(*blobs(sum(sizes)))
    built = build_experiment(resolve(given), None, seeded(), data)
    ends = np.cumsum(sizes)
    clients = tuple(np.arange(end - n, end) for end, n in zip(ends, sizes, strict=True))
    old = built.federation
    built.federation = Federation(
        old.data, Partition(clients, "by hand", 0), old.batch_size, old.epochs, old.augmentation, 0, torch.float64
    )
    return built


def _weights(built: Experiment, ids: list[int]) -> Tensor:
    return built.task.x0.new_tensor([float(built.federation.sizes[i]) for i in ids])


def one_round(built: Experiment, executor: Any, ids: list[int]) -> Any:
    """Replies of a second round, so that states are not all zero."""
    from steppe.core.server import Server, aggregate, broadcast
    from steppe.core.stacking import stack, take_row

    x = built.task.x0
    server = Server(x, built.algorithm.server_state(x), built.task.buffers)
    states = {i: built.algorithm.client_state(x) for i in ids}
    for t in range(2):
        lr, now = x.new_tensor(0.2), x.new_tensor(float(t))
        rows = stack([states[i] for i in ids]) if built.algorithm.using("prepare") else None
        server, sent = broadcast(built.algorithm, built.task.layout, server, lr, now, rows, len(ids))
        replies = executor(sent, ids, [states[i] for i in ids]).replies
        states = {i: take_row(replies.state, k) for k, i in enumerate(ids)}
        everyone = stack([states[i] for i in sorted(states)])
        weights = _weights(built, ids)
        server = aggregate(built.algorithm, built.task.layout, server, sent, replies, weights, len(ids),
                           lambda part, name, everyone=everyone: everyone[part][name])  # fmt: skip
    return replies, server


def assert_close(a: Any, b: Any, tolerance: float) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    "algorithm", ["fedavg", "fedsam", "scaffold", "feddyn", "fedprox", "moon", "fedsmoo", "fednova"]
)
def test_padding_never_changes_a_result(algorithm: str) -> None:
    built = unequal(algorithm, momentum=0.0 if algorithm == "fedsmoo" else 0.5)
    ids = list(range(6))
    steps = [built.federation.steps(i, built.algorithm.local_steps) for i in ids]
    assert len(set(steps)) > 3  # otherwise there is nothing to see here
    parts = built.algorithm, built.task, built.federation
    alone, server = one_round(built, Sequential(*parts), ids)
    together, server_too = one_round(built, Batched(*parts), ids)
    assert_close(together, alone, 1e-9)
    assert_close(server_too, server, 1e-9)


def test_neither_chunks_nor_the_order_of_clients_matter() -> None:
    built = unequal()
    ids = list(range(6))
    parts = built.algorithm, built.task, built.federation
    everyone, server = one_round(built, Batched(*parts), ids)
    for chunk in (1, 2, 5):
        assert_close(one_round(built, Batched(*parts, chunk=chunk), ids)[0], everyone, 1e-12)
    mixed = [3, 0, 5, 1, 4, 2]
    for executor in (Sequential(*parts), Batched(*parts), Batched(*parts, chunk=2)):
        replies, after = one_round(built, executor, mixed)
        assert_close(replies.update, everyone.update[mixed], 1e-12)
        assert_close(after, server, 1e-12)


def test_what_padding_holds_is_never_looked_at() -> None:
    """Sample 0 pads short batches; made infinite, it must not reach clients that do not own it."""
    built = unequal()
    ids = [1, 2, 3]
    parts = built.algorithm, built.task, built.federation
    before, _ = one_round(built, Batched(*parts), ids)
    built.federation.data.train_inputs[0] = float("inf")
    after, _ = one_round(built, Batched(*parts), ids)
    assert_close(after, before, 0)


def test_a_clients_round_depends_on_nobody_else() -> None:
    built = unequal()
    executor = Sequential(built.algorithm, built.task, built.federation)
    many, _ = one_round(built, executor, [0, 3, 4])
    assert many.update.shape == (3, built.task.layout.size)
    x = built.task.x0
    from steppe.core.client import Sent

    down = {"control_variates": built.algorithm.server_state(x)["control_variates"]}
    sent = Sent(x, down, {}, x.new_tensor(0.2), x.new_tensor(0.0))
    alone = executor(sent, [3], [built.algorithm.client_state(x)]).replies.update[0].clone()  # good until the next call
    among = executor(sent, [0, 3, 4], [built.algorithm.client_state(x)] * 3).replies
    assert torch.equal(alone, among.update[1])


# --- worker processes


@pytest.mark.parametrize("options", [{}, {"algorithm": "fedsam", "sampling": "bernoulli", "per_round": 2}])
def test_workers_give_the_same_bits(options: dict[str, Any], tmp_path: Path) -> None:
    """Bernoulli rounds may have more clients than per_round: they go through in several helpings."""
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    expected = remains(alone, launch(alone, rounds=4, **options))
    result = launch(shared, rounds=4, workers=2, **options)
    assert result.notes == []
    assert remains(shared, result) == expected
    if options:
        assert max(r["clients"] for r in result.history) > 2


@pytest.mark.parametrize("policy", [pytest.param("average", marks=pytest.mark.slow), "local"])
def test_workers_carry_running_statistics(policy: str, tmp_path: Path) -> None:
    options = {"model": None, "buffers": policy, "rounds": 3, "batch": 4, "partition": "iid"}
    outs = tmp_path / "alone", tmp_path / "shared"
    found = []
    for out, workers in zip(outs, (0, 2), strict=True):
        result = launch(out, **{**options, "model": seeded(NormNet), "workers": workers})
        assert not any("in this process" in note for note in result.notes)
        found.append(remains(out, result))
    assert found[0] == found[1]


def test_what_only_this_function_knows_is_sent_by_its_code() -> None:
    class Local(nn.Linear):
        """Only this function knows it."""

    @dataclass(frozen=True)
    class Half(steppe.Part):
        name = "half"

        def gradient(self, grad: steppe.Oracle, w: torch.Tensor, s: steppe.LocalStep) -> torch.Tensor:
            return 0.5 * grad(w)

    torch.manual_seed(0)
    model = parametrizations.weight_norm(Local(6, 3))
    shared = launch(model=model, workers=2, rounds=1, algorithm=Half())
    assert shared.notes == []
    assert torch.equal(shared.x, launch(model=model, workers=0, rounds=1, algorithm=Half()).x)


class Tied(nn.Module):
    """A large frozen matrix, used twice, and a small one that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.again, self.last = nn.Linear(6, 6000), nn.Linear(6, 6000), nn.Linear(6000, 3)
        self.again.weight = self.base.weight
        self.base.requires_grad_(False)
        self.again.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.base(x) + self.again(x)))


def test_workers_share_a_frozen_base_with_this_process() -> None:
    torch.manual_seed(0)
    model = Tied()
    before, place = model.base.weight.clone(), model.base.weight.data_ptr()
    shared = launch(model=model, workers=2, rounds=1, algorithm="fedavg")
    assert shared.notes == []
    assert torch.equal(model.base.weight, before)
    assert model.base.weight.data_ptr() != place  # it moved to the shared file, and is there once
    assert model.again.weight is model.base.weight
    assert shared.model.base.weight.data_ptr() == model.base.weight.data_ptr()  # type: ignore[union-attr]
    assert torch.equal(shared.x, launch(model=model, workers=0, rounds=1, algorithm="fedavg").x)


def test_a_large_parameter_arrives_as_one_and_a_buffer_does_not() -> None:
    layer = nn.Linear(200, 200)
    layer.register_buffer("table", torch.ones(200, 200))
    job, packer = pack(layer)
    files = share(packer, ())
    made = unpack(job, files)
    forget(file.handle for file in files)
    assert [len(file.places) for file in files] == [2, 0]  # none of them is frozen
    assert (type(made.weight), type(made.table)) == (nn.Parameter, torch.Tensor)
    assert torch.equal(made.weight, layer.weight)


def test_whatever_pickle_says_the_run_goes_on_here() -> None:
    class Unwilling:
        """Not one of the exceptions that pickle itself raises; nor are those of torch.jit's functions."""

        def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(outputs, targets, reduction="none")

        def __reduce__(self) -> Any:
            raise ValueError("not me")

    result = steppe.run("fedavg", seeded(), blobs(), loss=Unwilling(), clients=4, per_round=2, rounds=1, workers=2,
                        partition="iid")  # fmt: skip
    assert any("cannot be pickled (not me)" in note for note in result.notes)


@pytest.mark.slow
def test_a_module_that_only_this_process_can_import_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "import os, torch\nif os.environ['STEPPE_TEST_PARENT'] != str(os.getpid()): raise ValueError('only there')\n"
    (tmp_path / "steppe_test_at_home.py").write_text(text + "class Own(torch.nn.Linear):\n    pass\n")
    monkeypatch.setenv("STEPPE_TEST_PARENT", str(os.getpid()))
    monkeypatch.syspath_prepend(tmp_path)
    from steppe_test_at_home import Own

    result = launch(model=Own(6, 3), workers=2, rounds=1)
    assert any("another process cannot build the model" in note for note in result.notes)


SCRIPT = """
    import sys, torch, steppe
    sys.path.insert(0, {root!r})
    from tests.scene import blobs
    torch.set_num_threads(1)
    class Mine(torch.nn.Linear): pass
    torch.manual_seed(0)
    r = steppe.run("fedavg", Mine(6, 3), blobs(), clients=4, per_round=2, rounds=2, partition="iid", workers=2)
    print(r.notes, r.accuracy)
"""


@pytest.mark.slow
def test_a_model_of_the_script_itself_trains_in_workers(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT.format(root=str(ROOT))))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[] ")  # no note: it was not trained in the script's own process


@pytest.mark.slow
def test_a_module_beside_the_script_reaches_the_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers look where this process looks, not only where it was started."""
    (tmp_path / "steppe_test_own_net.py").write_text("import torch\nclass Own(torch.nn.Linear):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    from steppe_test_own_net import Own

    result = launch(model=Own(6, 3), workers=2, rounds=1)
    assert result.notes == []


class Breaks(nn.Linear):
    """Fails in the middle of training, in a way that cannot be pickled."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and os.environ.get("STEPPE_TEST_PARENT") != str(os.getpid()):

            class OddError(Exception):
                pass

            raise OddError("the model broke")
        return super().forward(x)


class Quits(nn.Linear):
    """Takes its process with it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and os.environ.get("STEPPE_TEST_PARENT") != str(os.getpid()):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)


class Sleeps(nn.Linear):
    """Slow enough to be found at work."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and torch.is_grad_enabled():
            time.sleep(0.2)
        return super().forward(x)


def _workers(model: nn.Module, count: int = 2) -> tuple[Workers, Experiment]:
    built = unequal("fedavg")
    task = build_experiment(built.config, None, model, built.federation.data).task
    return Workers(built.algorithm, task, built.federation, count, slots=6), built


def _all_six(workers: Workers, built: Experiment, model: nn.Module) -> None:
    from steppe.core.client import Sent

    x = torch.cat([p.detach().flatten() for p in model.parameters()]).double()
    sent = Sent(x, {}, {}, x.new_tensor(0.1), x.new_tensor(0.0))
    workers(sent, list(range(6)), [built.algorithm.client_state(x)] * 6)


def test_the_workers_files_have_no_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever the parent is killed, also while its workers start, nothing stays in the temporary folder."""
    seen: list[list[Path]] = []

    def killed(*_: Any, **__: Any) -> None:
        seen.append([path for path in tmp_path.iterdir() if path.is_file()])  # torch makes a folder of its own
        raise KeyboardInterrupt

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(subprocess, "Popen", killed)
    with pytest.raises(KeyboardInterrupt):
        _workers(Sleeps(6, 3))
    assert seen == [[]]


def test_an_exception_in_a_worker_is_raised_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPPE_TEST_PARENT", str(os.getpid()))
    model = Breaks(6, 3)
    workers, built = _workers(model)
    pool = list(workers.pool)
    with pytest.raises(RuntimeError, match="the model broke") as caught:
        _all_six(workers, built, model)
    assert caught.value.__notes__ == ["(in a worker process)"]
    assert all(worker.returncode is not None for worker in pool)


@pytest.mark.slow
def test_a_worker_killed_in_a_round_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPPE_TEST_PARENT", str(os.getpid()))
    model = Quits(6, 3)
    workers, built = _workers(model)
    pool = list(workers.pool)
    with pytest.raises(RunFailed, match="A worker process ended unexpectedly") as caught:
        _all_six(workers, built, model)
    assert caught.value.exit_code == 3
    assert all(worker.returncode is not None for worker in pool)


@pytest.mark.slow
def test_a_worker_killed_between_rounds_is_a_sentence() -> None:
    model = Sleeps(6, 3)
    workers, built = _workers(model)
    workers.pool[0].kill()
    workers.pool[0].wait()
    with pytest.raises(RunFailed, match="A worker process ended unexpectedly"):
        _all_six(workers, built, model)


ORPHANS = """
    import sys
    sys.path.insert(0, {root!r})
    from tests.executors.test_executors import Sleeps, _all_six, _workers
    model = Sleeps(6, 3)
    workers, built = _workers(model)
    print(*[w.pid for w in workers.pool], flush=True)
    _all_six(workers, built, model)
"""


@pytest.mark.slow
def test_workers_do_not_outlive_a_killed_parent() -> None:
    command = [sys.executable, "-c", textwrap.dedent(ORPHANS.format(root=str(ROOT)))]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 2
    assert all(_lives(pid) for pid in pids)
    parent.kill()
    parent.wait()
    for _ in range(600):  # they finish the client that they are at
        if not any(_lives(pid) for pid in pids):
            return
        time.sleep(0.1)
    raise AssertionError(f"{pids} are still there")


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
