"""Entries of the catalogue on the first 1, 2 and 3 of three gloo ranks, then whole runs: one launch for them all.

    torchrun --nproc-per-node 3 -m tests.distributed.parity FOLDER [rest]

Rank 0 writes what each entry ends with, by sums (states in memory) and in fixed order (states on disk). Imported, it
offers the same in one process.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file

import steppe
from steppe.config import resolve
from steppe.core.server import Server
from steppe.core.wire import flatten_states
from steppe.distributed.ranks import Ranks
from steppe.distributed.torchrun import join
from steppe.engine.play_round import play_round
from steppe.executors.sequential import Sequential
from steppe.experiment import Experiment
from steppe.runs.client_store import DiskStore, MemoryStore
from tests.conformance.problem import CLIENTS, LR, algorithm, entries, federation, label, task
from tests.scene import NormNet, launch, seeded

# First there are fewer clients than ranks; then they come back, with one that is more work, on other ranks.
SCHEDULE = [[1, 4], [5, 1, 4]]

# One entry for each kind of state and message; `rest` means all the others, and no whole runs.
SOME = ("fedavg", "scaffold", "feddyn", "fedsmoo", "fedscar", "fednova-variant=ccvr", "fedgmt", "local")

# Whole runs, each with something that only some ranks know of.
RUNS: dict[str, dict[str, Any]] = {
    "early stopping": {"algorithm": "fedadam", "validation": 0.2, "early_stopping": 2, "rounds": 12, "server_lr": 0.5},
    "own statistics": {"buffers": "local", "partition": "iid", "algorithm": "feddyn"},
    "averaged statistics": {"buffers": "average", "partition": "iid", "store": "disk"},
    "own models": {"algorithm": "local", "rounds": 3},
    "measured": {"measure": ["consistency:2"], "reduction": "sum"},
    "the median": {"add": ["median"], "reduction": "sum", "algorithm": "fedsmoo"},
    "clients that fail": {"dropout": 0.6, "rounds": 6, "algorithm": "fedsam", "store": "disk"},
    "a bad update": {"per_round": 6, "nonfinite": "drop", "rounds": 3},
    "a bad update, on disk": {"per_round": 6, "nonfinite": "drop", "rounds": 3, "store": "disk"},
}


@dataclass(frozen=True)
class Spoils(steppe.Part):
    """The second round of a client that takes two steps ends with NaN; it counts its rounds."""

    name = "spoils"

    def client_state(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"rounds": torch.zeros(1, dtype=x.dtype)}

    def finish(self, delta: torch.Tensor, s: steppe.ClientRound) -> torch.Tensor:
        s.state["rounds"] = s.state["rounds"] + 1
        return torch.where((s.steps == 2) & (s.state["rounds"] == 2), torch.nan, delta)


def run(name: str, out: Path) -> Any:
    options = {"reduction": "ordered", **RUNS[name]}
    if "statistics" in name:
        options["model"] = seeded(NormNet)
    if "bad" in name:
        options["algorithm"] = Spoils()
    return launch(out / name, **options)


def ended(entry: tuple[str, dict[str, Any]], reduction: str, group: Any = None) -> dict[str, torch.Tensor]:
    """The model, the server's states and the clients', after two rounds."""
    alg, x0 = algorithm(*entry), task().x0
    config = resolve({"clients": CLIENTS, "reduction": reduction, "dtype": "float64"})
    built = Experiment(config, alg, task(), federation(), cost=None)  # type: ignore[arg-type]

    def fresh() -> Any:
        return alg.client_state(x0)

    with tempfile.TemporaryDirectory() as folder:
        ranks = Ranks(fresh, on_disk=reduction == "ordered", group=group)
        on_disk = ranks.on_disk and ranks.rank == 0
        store = DiskStore(fresh, Path(folder) / "clients.bin") if on_disk else MemoryStore(fresh)
        server = Server(x0, alg.server_state(x0), {})
        for t, ids in enumerate(SCHEDULE):
            server = play_round(built, server, store, Sequential(alg, task(), federation()), t, ids, LR, ranks).after
            ranks.check_same(server.x)
        together = ranks.merge_stores(store)
        known = together.list_known()
        rows = {str(i): flatten_states(row) for i, row in zip(known, together.gather(known), strict=True)}
    found = {"x": server.x, **{f"server/{k}": v for k, v in flatten_states(server.state).items()}}
    return found | {f"client {i}/{k}": v for i, row in rows.items() for k, v in row.items()}


def main(out: Path, rest: bool) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", UserWarning)
    join()
    groups = {n: dist.new_group(list(range(n))) for n in (1, 2, 3)}
    for n, group in groups.items():
        for reduction in ("sum", "ordered"):
            found: dict[str, torch.Tensor] = {}
            if dist.get_rank() < n:
                for entry in (e for e in entries() if (label(e) not in SOME) == rest):
                    found |= {f"{label(entry)}: {k}": v for k, v in ended(entry, reduction, group).items()}
            if dist.get_rank() == 0:
                save_file({k: v.clone() for k, v in found.items()}, out / f"{n}-{reduction}.safetensors")
    for name in RUNS if not rest else ():
        run(name, out)
    dist.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]), rest=sys.argv[2:] == ["rest"])
