"""One process a core for the sequential executor: two processes of one thread beat one process of two.

Workers are plain child processes, not forks and not multiprocessing's spawn: the user's script is never
imported again, and a worker ends by itself when this process dies, because its standard input ends. Models
and states pass through one memory-mapped file; the pipes carry only which client is next.
"""

from __future__ import annotations

import os
import pickle
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from steppe.core.algorithm import Algorithm, States
from steppe.core.client import OWN_BUFFERS, Reply, Sent, begin, end
from steppe.core.errors import RunFailed
from steppe.core.stacking import put, row
from steppe.core.task import Task
from steppe.data.federation import Federation
from steppe.executors.allocator import MEMORY
from steppe.executors.executor import Answers, everybody

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class CannotShareError(Exception):
    """The job cannot be sent to another process; the text says why."""


class Workers:
    """Trains the round's clients in `count` child processes; the same numbers as `Sequential` with one thread."""

    trusted = True

    def __init__(self, algorithm: Algorithm, task: Task, federation: Federation, count: int, slots: int,
                 own_buffers: bool = False) -> None:  # fmt: skip
        try:
            job = pickle.dumps((algorithm, task, federation))
        except Exception as error:  # whatever a user's object says when it is asked to be pickled
            raise CannotShareError(f"the model, loss or algorithm cannot be pickled ({error})") from error
        if b"__main__" in job:
            raise CannotShareError("the model, loss or algorithm is defined in a notebook or in the script itself")
        self.federation, self.algorithm, self.slots = federation, algorithm, slots
        shapes = _shapes(algorithm, task, slots, own_buffers)
        handle, name = tempfile.mkstemp(prefix="steppe-")
        try:
            if hasattr(os, "posix_fallocate"):  # a full disk is an error here; later it would end the process
                os.posix_fallocate(handle, 0, bytes_of(shapes))
        except OSError:
            Path(name).unlink()
            raise
        finally:
            os.close(handle)
        self.sent, self.states, self.replies = mapped(shapes, name)
        environment = {**os.environ, **MEMORY, **ONE_THREAD}
        command = [sys.executable, "-c", "from steppe.executors.workers import work; work()"]
        self.pool = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
                     for _ in range(count)]  # fmt: skip
        try:
            for worker in self.pool:
                self._ask(worker, (sys.path, job, name, shapes))
            for worker in self.pool:
                self._answer(worker)
        except RunFailed:  # it died
            raise
        except Exception as error:  # only unpickling the job can raise these: importing its modules may do anything
            raise CannotShareError(f"another process cannot build the model, loss or algorithm ({error})") from error
        finally:
            Path(name).unlink()  # mapped everywhere by now: it disappears with the last process

    def __call__(self, sent: Sent, ids: Sequence[int], states: Sequence[States]) -> Answers:
        """Replies stacked in the order of the ids. All but the states lie in memory that the next call uses again."""
        tree_map(lambda shared, new: shared.copy_(new), self.sent, sent)
        return everybody(self.federation, ids, self._replies(ids, states))

    def _replies(self, ids: Sequence[int], states: Sequence[States]) -> Reply:
        if len(ids) <= self.slots:
            self._round(ids, states)
            replies: Reply = tree_map(lambda t: t[: len(ids)], self.replies)
            return replies._replace(state=tree_map(torch.clone, replies.state))
        parts = []
        for begun in range(0, len(ids), self.slots):
            some = ids[begun : begun + self.slots]
            self._round(some, states[begun : begun + self.slots])
            parts.append(tree_map(lambda t, some=some: t[: len(some)].clone(), self.replies))
        together: Reply = parts[0] if len(parts) == 1 else tree_map(lambda *t: torch.cat(t), *parts)
        return together

    def _round(self, ids: Sequence[int], states: Sequence[States]) -> None:
        for i, state in enumerate(states):
            put(self.states, i, state)
        # Longest first, so that the last worker to finish does not start late.
        waiting = sorted(range(len(ids)), key=lambda i: self.federation.steps(ids[i], self.algorithm.local_steps))
        with selectors.DefaultSelector() as ready:
            for worker in self.pool:
                if waiting:
                    slot = waiting.pop()
                    self._ask(worker, (slot, ids[slot]))
                    ready.register(worker.stdout, selectors.EVENT_READ, worker)  # type: ignore[arg-type]
            while ready.get_map():
                for event, _ in ready.select():
                    self._answer(event.data)
                    if waiting:
                        slot = waiting.pop()
                        self._ask(event.data, (slot, ids[slot]))
                    else:
                        ready.unregister(event.fileobj)

    def _ask(self, worker: subprocess.Popen[bytes], message: Any) -> None:
        try:
            _put(worker.stdin, message)
        except BrokenPipeError:
            self._lost()

    def _lost(self) -> NoReturn:
        self.close()
        raise RunFailed("A worker process ended unexpectedly, perhaps for lack of memory: "
                        "try fewer workers (workers = 1), or a smaller batch.") from None  # fmt: skip

    def _answer(self, worker: subprocess.Popen[bytes]) -> None:
        try:
            trouble = pickle.load(worker.stdout)  # type: ignore[arg-type]  # from our own child
        except (EOFError, pickle.UnpicklingError):
            self._lost()
        if trouble:
            self.close()
            raise trouble

    def close(self) -> None:
        for worker in self.pool:
            for pipe in (worker.stdin, worker.stdout):
                if pipe:
                    with suppress(BrokenPipeError):  # what is still in the buffer of a dead one's pipe
                        pipe.close()
            worker.wait()
        self.pool = []


def work() -> None:
    """A worker's life: map the shared file, then train whichever client is asked for."""
    from steppe.executors.sequential import train

    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a user's model prints must not get between our messages
    asks = sys.stdin.buffer
    try:
        path, job, name, shapes = pickle.load(asks)
        sys.path[:] = path  # the user's module may lie beside the script, wherever that was started
        algorithm, task, federation = pickle.loads(job)
        sent, states, replies = mapped(shapes, name)
        _put(answers, None)
        while True:
            slot, client = pickle.load(asks)
            # A clone, so that a client's numbers do not depend on the slot that it happened to get.
            state = tree_map(torch.clone, row(states, slot))
            put(replies, slot, train(algorithm, task, federation, sent, client, state, replies.update[slot]))
            _put(answers, None)
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        os._exit(0)
    except Exception as error:
        _put(answers, _portable(error))


def _places(leaves: Sequence[Tensor]) -> tuple[list[int], list[int]]:
    """Where each tensor begins in the shared file, with the end of the last one, and their sizes in bytes."""
    sizes = [leaf.numel() * leaf.element_size() for leaf in leaves]
    begins = [0]
    for size in sizes:
        begins.append((begins[-1] + size + 63) // 64 * 64)
    return begins, sizes


def bytes_of(shapes: Any) -> int:
    """How large the shared file of these tensors is."""
    return max(_places(tree_flatten(shapes)[0])[0][-1], 1)


def mapped(shapes: Any, name: str) -> Any:
    """A tree of meta tensors as a tree of real ones that lie in one shared file."""
    leaves, structure = tree_flatten(shapes)
    begins, sizes = _places(leaves)
    memory = torch.from_file(name, shared=True, size=bytes_of(shapes), dtype=torch.uint8)
    return tree_unflatten([memory[b : b + n].view(leaf.dtype).view(leaf.shape)
                           for b, n, leaf in zip(begins, sizes, leaves, strict=False)], structure)  # fmt: skip


def _portable(error: Exception) -> Exception:
    """An exception that survives the way to the other process, with a note on where it comes from."""
    try:
        error = pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note("(in a worker process)")
    return error


def _shapes(algorithm: Algorithm, task: Task, slots: int, own_buffers: bool) -> tuple[Sent, States, Reply]:
    """What passes between the processes, found on tensors without data."""
    meta = task.to("meta")
    scalar = meta.x0.new_zeros(())
    held, state = algorithm.server_state(meta.x0), algorithm.client_state(meta.x0)
    if own_buffers:
        state = {**state, OWN_BUFFERS: meta.buffers}
    down = {p.name: {k: held[p.name][k] for k in p.down} for p in algorithm.parts if p.down}
    sent = Sent(meta.x0, down, meta.buffers, scalar, scalar)
    reply = end(algorithm, meta, sent, begin(algorithm, meta, sent, state, scalar), scalar)
    states, replies = tree_map(lambda t: t.new_empty((slots, *t.shape)), (state, reply))
    return sent, states, replies


def _put(pipe: Any, message: Any) -> None:
    pickle.dump(message, pipe)
    pipe.flush()
