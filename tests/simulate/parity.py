"""Every entry of the catalogue on the first 1, 2 and 3 of three gloo ranks: one launch for all of them.

    torchrun --nproc-per-node 3 -m tests.simulate.parity FOLDER

Rank 0 writes what each entry ends with, by sums (states in memory) and in fixed order (states on disk). Imported, it
offers the same rounds in one process.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from steppe.config import resolve
from steppe.core.server import Server
from steppe.simulate.ranks import Ranks
from steppe.simulate.run import play
from steppe.simulate.sequential import Sequential
from steppe.simulate.setup import Experiment
from steppe.simulate.store import DiskStore, MemoryStore, flat
from steppe.simulate.torchrun import join
from tests.conformance.problem import CLIENTS, LR, algorithm, entries, federation, label, task

# First there are fewer clients than ranks; then they come back, with one that is more work, on other ranks.
SCHEDULE = [[1, 4], [5, 1, 4]]


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
        store = DiskStore(fresh, Path(folder) / "clients.bin", CLIENTS) if on_disk else MemoryStore(fresh)
        server = Server(x0, alg.server_state(x0), {})
        for t, ids in enumerate(SCHEDULE):
            server = play(built, server, store, Sequential(alg, task(), federation()), t, ids, LR, print, ranks).after
            ranks.check_same(server.x)
        together = ranks.whole(store)
        known = together.known()
        rows = {str(i): flat(row) for i, row in zip(known, together.gather(known), strict=True)}
    found = {"x": server.x, **{f"server/{k}": v for k, v in flat(server.state).items()}}
    return found | {f"client {i}/{k}": v for i, row in rows.items() for k, v in row.items()}


def main(out: Path) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", UserWarning)
    join()
    groups = {n: dist.new_group(list(range(n))) for n in (1, 2, 3)}
    for n, group in groups.items():
        for reduction in ("sum", "ordered"):
            found: dict[str, torch.Tensor] = {}
            if dist.get_rank() < n:
                for entry in entries():
                    found |= {f"{label(entry)}: {k}": v for k, v in ended(entry, reduction, group).items()}
            if dist.get_rank() == 0:
                save_file({k: v.clone() for k, v in found.items()}, out / f"{n}-{reduction}.safetensors")
    dist.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
