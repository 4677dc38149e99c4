"""Keep a client's state on its node's disk, by federation and client.

Every state is stamped with the round that produced it. The server sends the stamp from which a client continues, that
of its last counted reply. A late or lost reply therefore has no effect, and a round that is repeated after a crash
starts from the state before it. Files are written under a temporary name and renamed, so a node may be killed at any
moment.
"""

from __future__ import annotations

import os
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file

from steppe.core.algorithm import States
from steppe.core.atomic_write import sync_to_disk
from steppe.core.wire import flatten_states
from steppe.flower.private_files import write_private
from steppe.flower.refusals import Refusal
from steppe.runs.tensor_files import save_file

KEPT = 3  # states to keep: the server may go back by two checkpoints


class NodeState:
    def __init__(self, folder: Path, federation: str, client: int) -> None:
        self.folder = folder / federation / f"client-{client}"

    def read(self, stamp: int, like: States, lost: str = "refuse") -> States:
        """Return the state after round `stamp`; `like` is the initial state, for stamp −1."""
        if stamp < 0 or not flatten_states(like):
            return like
        try:
            rows = load_file(self._name_file(stamp))
            return {part: {name: rows[f"{part}/{name}"].clone() for name in names} for part, names in like.items()}
        except (OSError, SafetensorError, KeyError) as error:
            if lost == "fresh":
                return like
            lost_file = self._name_file(stamp)
            raise Refusal("state", f"this node has lost the client's state of round {stamp + 1} ({lost_file}): "
                                   'restore it, or set lost_state = "fresh" in federation.toml to let the client '
                                   "start afresh.") from error  # fmt: skip

    def write(self, stamp: int, counted: int, state: States) -> None:
        """Store the state after round `stamp`, which started from `counted`; delete states that were never counted."""
        if not flatten_states(state):
            return
        aside, final = self.folder / f".round-{stamp:06d}.{os.getpid()}", self._name_file(stamp)
        with write_private():
            self.folder.mkdir(parents=True, exist_ok=True)
            save_file(flatten_states(state), aside)
        sync_to_disk(aside)
        aside.replace(final)
        sync_to_disk(self.folder)
        stamps = sorted(int(p.stem.removeprefix("round-")) for p in self.folder.glob("round-*.safetensors"))
        old = [s for s in stamps if s <= counted][:-KEPT]
        for path in [self._name_file(s) for s in stamps if s in old or (s > counted and s != stamp)]:
            path.unlink(missing_ok=True)
        for path in self.folder.glob(".round-*"):  # left behind by a process that died
            path.unlink(missing_ok=True)

    def _name_file(self, stamp: int) -> Path:
        return self.folder / f"round-{stamp:06d}.safetensors"
