"""Growth of the cost of a round on a GPU, with the clients per round, clients in total, local steps and model size.

SCAFFOLD on the FedAvg-CNN and CIFAR-10 shapes, ten clients in parallel, without evaluation. Local steps have batches of
50 images: 50 steps are five epochs of 500 images. One capture serves all sizes except those that change the step itself
(one lane, a wider model) and must be compiled. These come last. They are left out, with a message, if `--seconds` does
not leave as much time as the first compilation took.

    python -m benchmarks.growth --device cuda --seconds 90 --out benchmarks/results/gpu-growth.json
    python -m benchmarks.growth --device cpu --tiny            a quick check, on any machine
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks import jobs
from benchmarks.growth import WORDS
from steppe.config import resolve
from steppe.core.server import Server
from steppe.data import Data, from_arrays
from steppe.engine.build import build_experiment
from steppe.engine.choose_executor import choose_executor
from steppe.engine.play_round import play_round
from steppe.engine.resources import make_store
from steppe.experiment import Experiment
from steppe.models.cnn import conv
from steppe.models.mlp import Stack, dense
from steppe.runs.provenance import find_versions


@dataclass(frozen=True)
class Sizes:
    """The base, and the sizes along each axis. `lanes` is the number of clients trained in parallel."""

    lanes: int = 10
    batch: int = 50
    clients: tuple[int, ...] = (1000, 100, 10_000)  # the first of each is the base
    per_round: tuple[int, ...] = (10, 50, 200)
    steps: tuple[int, ...] = (50, 10, 100)
    width: tuple[int, ...] = (4, 2)  # factor on the channels and units of the base; the largest first
    rounds: int = 4


TINY = Sizes(2, 4, (20, 10, 40), (2, 4, 10), (2, 1, 3), (2,), 2)


def cnn(width: int) -> Stack:
    """Build the FedAvg-CNN for 3×32×32, with `width` times the channels and units."""
    torch.manual_seed(0)
    layers: list[nn.Module] = conv(3, 32 * width, 5, padding=2) + conv(32 * width, 64 * width, 5, padding=2)
    return Stack(layers + dense(64 * width * 8 * 8, 512 * width), 512 * width, 10)


class Job:
    """A model and a number of lanes, with one executor that captures once and runs rounds of any size."""

    def __init__(self, data: Data, device: str, compiled: bool, sizes: Sizes, lanes: int, width: int = 1) -> None:
        self.sizes, self.lanes, self.options = sizes, lanes, {"device": device, "compile": compiled}
        self.base = self._experiment(data, cnn(width), sizes.clients[0], sizes.steps[0])
        self.executor = choose_executor(self.base)
        self.t, self.played = 0, list[Experiment]()

    def _experiment(self, data: Data, model: nn.Module, clients: int, steps: int, **known: Any) -> Experiment:
        # As many epochs as steps, so that clients with less than one batch also take all steps.
        config = resolve({"algorithm": "scaffold", "recipe": "fedsol", "augmentation": "cifar-fedsol",
                          "clients": clients, "per_round": self.lanes, "chunk": self.lanes, "partition": "iid",
                          "rounds": 1000, "batch": self.sizes.batch, "epochs": steps, "max_steps": steps,
                          "executor": "batched", **self.options})  # fmt: skip
        return build_experiment(config, model=model, data=data, **known)

    def round_seconds(self, per_round: int, clients: int | None = None, steps: int | None = None) -> dict[str, Any]:
        """Time the first round of this size, and the best and the median of the others."""
        clients, steps = clients or self.sizes.clients[0], steps or self.sizes.steps[0]
        base = self.base
        e = self._experiment(base.federation.data, base.task.learner, clients, steps, known_cost=base.cost)
        # The same tensors at the same addresses, so that the captured graph stays valid.
        e = replace(e, task=base.task, algorithm=base.algorithm,
                    federation=replace(e.federation, data=base.federation.data))  # fmt: skip
        self.executor.federation = e.federation
        self.played.append(e)  # kept alive, because the graph reads tensors of the first one
        store, x0, times = make_store(e, None), base.task.x0, []
        server = Server(x0, base.algorithm.server_state(x0), base.task.buffers)
        for _ in range(self.sizes.rounds):
            ids = torch.randperm(clients)[:per_round].tolist()
            began = time.perf_counter()
            server = play_round(e, server, store, self.executor, self.t, ids, e.lr(0)).after
            float(server.x.sum())  # waits for the device
            times.append(time.perf_counter() - began)
            self.t += 1
        return {"seconds": min(times[1:]), "median": statistics.median(times[1:]), "first_round": times[0],
                "parameters": base.task.layout.size}  # fmt: skip


def measure(device: str, seconds: float, compiled: bool = True, sizes: Sizes | None = None,
            out: Path | None = None) -> dict[str, Any]:  # fmt: skip
    """Measure seconds per round along each axis: {axis: {size: …}}, and list what was left out."""
    began, sizes = time.perf_counter(), sizes or Sizes()
    if sizes.lanes < 10:
        images, labels = torch.randint(256, (400, 3, 32, 32), dtype=torch.uint8).numpy(), torch.arange(400).numpy() % 10
        data, what = from_arrays(images, labels, images[:10], labels[:10], classes=10), "a few random images"
    else:
        data, what = jobs.cifar()
    per_round, clients, steps = sizes.per_round[0], sizes.clients[0], sizes.steps[0]
    report: dict[str, Any] = {
        "versions": find_versions(torch.device(device)), "device": device, "data": what, "compiled": compiled,
        "lanes": sizes.lanes, "base": {"clients": clients, "per_round": per_round, "steps": steps},
        "clients": {}, "per_round": {}, "steps": {}, "width": {}, "left_out": [],
    }  # fmt: skip

    def note(axis: str, size: int, found: dict[str, Any]) -> None:
        report[axis][str(size)] = found
        report["seconds"] = time.perf_counter() - began
        print(f"{WORDS[axis]:18} {size:>6,}: {1e3 * found['seconds']:8.1f} ms per round "
              f"(first {found['first_round']:.1f} s)", flush=True)  # fmt: skip
        if out:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(report, indent=1) + "\n")

    def late(needed: float, *what: str) -> bool:
        if time.perf_counter() - began + needed <= seconds:
            return False
        report["left_out"] += what
        return True

    print(f"growth of a round's cost on {device}: SCAFFOLD, FedAvg-CNN, {sizes.lanes} lanes; otherwise {clients:,} "
          f"clients, {per_round} per round, {steps} local steps", flush=True)  # fmt: skip
    job = Job(data, device, compiled, sizes, sizes.lanes)
    most = max(sizes.per_round)  # first, because a larger round later would need a new capture
    note("per_round", most, job.round_seconds(most))
    compiling = report["seconds"]  # the time until the first figure
    base = job.round_seconds(per_round)
    for axis, size in (("per_round", per_round), ("clients", clients), ("steps", steps), ("width", 1)):
        note(axis, size, base)
    points = [("per_round", n) for n in sizes.per_round[1:] if n != most]
    points += [("clients", n) for n in sizes.clients[1:]] + [("steps", n) for n in sizes.steps[1:]]
    for axis, n in points:
        if not late(1.0, f"{WORDS[axis]} {n}"):
            note(axis, n, job.round_seconds(**{"per_round": per_round, axis: n}))
    notes = list(job.base.notes)
    del job  # frees its memory
    if not late(compiling, f"{WORDS['per_round']} 1"):
        note("per_round", 1, Job(data, device, compiled, sizes, 1).round_seconds(1))
    for n in sizes.width:
        if not late(compiling, f"{WORDS['width']} ×{n}"):
            note("width", n, Job(data, device, compiled, sizes, sizes.lanes, n).round_seconds(per_round))
    if report["left_out"]:
        print(f"left out, because of the time limit of {seconds:g} s: " + ", ".join(report["left_out"]))
    for line in notes:
        print(f"note: {line}")
    report |= {"notes": notes, "seconds": time.perf_counter() - began}
    if out:
        out.write_text(json.dumps(report, indent=1) + "\n")
        print(f"{report['seconds']:.0f} s; written to {out}")
    return report


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__,
                                      formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    options.add_argument("--device", required=True, help="cuda, or cpu for a trial")
    options.add_argument("--seconds", type=float, default=90, help="time limit in seconds (default: 90)")
    options.add_argument("--uncompiled", action="store_true", help="use the batched executor without compilation")
    options.add_argument("--tiny", action="store_true", help="small sizes, for a quick check")
    options.add_argument("--out", type=Path, help="a JSON file, rewritten after every figure")
    chosen = options.parse_args()
    if chosen.device.startswith("cuda") and not torch.cuda.is_available():
        raise SystemExit("--device cuda needs a CUDA device, but PyTorch finds none.")
    sizes = TINY if chosen.tiny else Sizes()
    measure(chosen.device, chosen.seconds, not chosen.uncompiled, sizes, chosen.out)


if __name__ == "__main__":
    main()
