"""The sequential executor in one process per core: two processes of one thread are faster than one process of two.

Workers are plain child processes, not forks and not multiprocessing's spawn. The user's script is never imported again,
and a worker ends when this process dies, because its standard input closes. Models and states are exchanged through one
memory-mapped file; the pipes carry only the next client's number. `shared_pickle.py` shares data and a frozen base.
"""

from __future__ import annotations

import os
import pickle
import selectors
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

import torch
from torch.utils._pytree import tree_map

from steppe.core.algorithm import Algorithm, States
from steppe.core.client import OWN_BUFFERS, Reply, Sent, begin, end
from steppe.core.errors import RunFailed
from steppe.core.stacking import put_row, take_row
from steppe.core.task import Task
from steppe.data.federation import Federation
from steppe.executors.allocator import MEMORY
from steppe.executors.executor import Answers, answer_for_all
from steppe.executors.shared_pickle import allocate, forget, pack, place_tensors, share, unpack

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class CannotShareError(Exception):
    """The experiment cannot be sent to another process; the text says why."""


class Workers:
    """An executor that trains clients in `count` child processes, with the same results as `Sequential`."""

    trusted = True

    def __init__(self, algorithm: Algorithm, task: Task, federation: Federation, count: int, slots: int,
                 own_buffers: bool = False) -> None:  # fmt: skip
        try:
            job, packer = pack((algorithm, task, federation))
        except Exception as error:  # pickling a user's object may raise anything
            raise CannotShareError(f"the model, loss or algorithm cannot be pickled ({error})") from error
        self.federation, self.algorithm, self.slots = federation, algorithm, slots
        shapes = _find_shapes(algorithm, task, slots, own_buffers)
        files = share(packer, task.constants.values())
        handles = [file.handle for file in files]
        try:
            handle = allocate(shapes)
        except OSError:
            forget(handles)
            raise
        self.sent, self.states, self.replies = place_tensors(shapes, handle)
        environment = {**os.environ, **MEMORY, **ONE_THREAD}
        command = [sys.executable, "-c", "from steppe.executors.workers import run_worker; run_worker()"]
        self.pool = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
                                      pass_fds=[handle, *handles]) for _ in range(count)]  # fmt: skip
        try:
            for worker in self.pool:
                self._ask(worker, (sys.path, job, files, handle, shapes))
            for worker in self.pool:
                self._answer(worker)
        except RunFailed:  # the worker died
            raise
        except Exception as error:  # from unpickling the job, because importing a user's module may raise anything
            raise CannotShareError(f"another process cannot build the model, loss or algorithm ({error})") from error
        finally:
            forget([handle, *handles])

    def __call__(self, sent: Sent, ids: Sequence[int], states: Sequence[States]) -> Answers:
        """Train these clients and return their replies, stacked. The next call reuses all memory but the states'."""
        tree_map(lambda shared, new: shared.copy_(new), self.sent, sent)
        return answer_for_all(self.federation, ids, self._collect_replies(ids, states))

    def _collect_replies(self, ids: Sequence[int], states: Sequence[States]) -> Reply:
        if len(ids) <= self.slots:
            self._play_round(ids, states)
            replies: Reply = tree_map(lambda t: t[: len(ids)], self.replies)
            return replies._replace(state=tree_map(torch.clone, replies.state))
        parts = []
        for begun in range(0, len(ids), self.slots):
            some = ids[begun : begun + self.slots]
            self._play_round(some, states[begun : begun + self.slots])
            parts.append(tree_map(lambda t, some=some: t[: len(some)].clone(), self.replies))
        together: Reply = parts[0] if len(parts) == 1 else tree_map(lambda *t: torch.cat(t), *parts)
        return together

    def _play_round(self, ids: Sequence[int], states: Sequence[States]) -> None:
        for i, state in enumerate(states):
            put_row(self.states, i, state)
        # Longest first, so that no long client starts last.
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
            self._report_loss()

    def _report_loss(self) -> NoReturn:
        self.close()
        raise RunFailed("A worker process ended unexpectedly, perhaps because it ran out of memory: "
                        "try fewer workers (workers = 1), or a smaller batch.") from None  # fmt: skip

    def _answer(self, worker: subprocess.Popen[bytes]) -> None:
        try:
            trouble = pickle.load(worker.stdout)  # type: ignore[arg-type]  # from our own child
        except (EOFError, pickle.UnpicklingError):
            self._report_loss()
        if trouble:
            self.close()
            raise trouble

    def close(self) -> None:
        """Close the pipes, which ends the workers, and wait for them."""
        for worker in self.pool:
            for pipe in (worker.stdin, worker.stdout):
                if pipe:
                    with suppress(BrokenPipeError):  # a dead worker's pipe may still have data in its buffer
                        pipe.close()
            worker.wait()
        self.pool = []


def run_worker() -> None:
    """Run a worker process: map the shared file, then train each requested client until the input closes."""
    from steppe.executors.sequential import train

    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output that a user's model prints must not mix with the messages
    asks = sys.stdin.buffer
    try:
        path, job, files, handle, shapes = pickle.load(asks)
        sys.path[:] = path  # the user's module may be in the script's folder
        algorithm, task, federation = unpack(job, files)
        sent, states, replies = place_tensors(shapes, handle)
        _put(answers, None)
        while True:
            slot, client = pickle.load(asks)
            # Cloned, so that the last bits of a client's result do not depend on its slot.
            state = tree_map(torch.clone, take_row(states, slot))
            put_row(replies, slot, train(algorithm, task, federation, sent, client, state, replies.update[slot]))
            _put(answers, None)
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        os._exit(0)
    except Exception as error:
        _put(answers, _make_portable(error))


def _make_portable(error: Exception) -> Exception:
    """Return an exception that can be pickled, with a note that it comes from a worker."""
    try:
        error = pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note("(in a worker process)")
    return error


def _find_shapes(algorithm: Algorithm, task: Task, slots: int, own_buffers: bool) -> tuple[Sent, States, Reply]:
    """Find the shapes of everything that passes between the processes, on the meta device."""
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
