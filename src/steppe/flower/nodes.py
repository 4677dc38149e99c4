"""The nodes of a Flower federation as an executor of the round loop: it sends a round's work and collects the replies.

A node says which client it is; clients are sampled by their numbers, so a run does not depend on Flower's random node
ids. Who is away, late or wrong is named, and the round goes on with the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from torch import Tensor
from torch.utils._pytree import tree_map

from steppe.core.algorithm import States
from steppe.core.client import Reply, Sent
from steppe.core.errors import RunFailed, SteppeError
from steppe.core.layout import Tensors
from steppe.core.stacking import stack
from steppe.core.validate import faults
from steppe.data import Partition
from steppe.engine.experiment import Experiment
from steppe.flower.build import compute_fingerprint, trace_reply
from steppe.flower.federation_file import FederationFile, Sample, write_terms
from steppe.flower.messages import (
    ARRAYS,
    TERMS,
    count_bytes,
    list_reply,
    list_work,
    pack_terms,
    read_reply,
    read_told,
)
from steppe.flower.reply_checks import check_reply
from steppe.runs.client_store import MemoryStore, flat

GONE = ErrorCode.NODE_UNAVAILABLE, ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE
POLL, GREET, AGAIN = 0.2, 2.0, 60.0  # seconds between looks at the replies, at who is here, and two questions to a node


class NodeStore(MemoryStore):
    """Clients' states lie on their nodes. Here is of which counted round each is and, where needed, a mirror of it."""

    def __init__(self, fresh: Callable[[], States]) -> None:
        super().__init__(fresh)
        self.counted: dict[int, int] = {}
        self.sizes: dict[int, int] = {}
        self.round = -1  # the one being played

    def scatter(self, ids: Sequence[int], states: Sequence[States]) -> None:
        self.counted.update(dict.fromkeys(ids, self.round))
        if any(flat(s) for s in states):
            super().scatter(ids, states)

    def reset(self) -> None:
        super().reset()
        self.counted.clear()

    def commit(self) -> dict[str, Tensor]:
        return {**super().commit(), "counted": _table(self.counted), "sizes": _table(self.sizes)}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        rows = dict(tensors)
        counted, sizes = (dict(rows.pop(name).tolist()) for name in ("counted", "sizes"))
        super().restore(rows)
        self.counted, self.sizes = counted, sizes | self.sizes


def _table(numbers: dict[int, int]) -> Tensor:
    return torch.tensor(list(numbers.items()), dtype=torch.int64).reshape(-1, 2)


class Answer(NamedTuple):
    reply: Reply
    seconds: float
    size: int


class Nodes:
    """Plays a round on the nodes that the grid reaches."""

    def __init__(self, grid: Grid, settings: FederationFile, built: Experiment, sample: Sample, store: NodeStore,
                 say: Callable[[str], None]) -> None:  # fmt: skip
        self.grid, self.settings, self.built, self.store, self.say = grid, settings, built, store, say
        self.terms, self.fingerprint = (
            write_terms(settings, built.config, sample, built.cost),
            compute_fingerprint(built),
        )
        reply, self.mirrored = trace_reply(built.algorithm, built.task)
        self.like: Tensors = list_reply(reply, self.mirrored)
        self.stateful = bool(flat(reply.state))
        self.who: dict[int, int] = {}  # client -> node
        self.asked: dict[str, tuple[int, float]] = {}  # question -> node, and when it was put
        self.met: set[int] = set()  # nodes that have been asked who they are
        self.gathered = False
        self.refusals: dict[int, str] = {}  # node -> why it takes no part
        self.answered: list[int] = []  # the clients whose replies the last call gave back
        self.told: dict[str, Any] = {}  # what the round's record says about it
        if self.mirrored:
            built.notes.append(f"{built.algorithm.name} needs its clients' states on the server, so they are uploaded "
                               "with every reply")  # fmt: skip

    def gather(self) -> None:
        """Wait for enough nodes; say who is missing when the time is over."""
        clients, enough = self.built.config.clients, self.settings.enough or self.built.config.clients
        until = time.monotonic() + self.settings.wait
        while True:
            self._greet()
            if len(self.who) >= enough:
                break
            away = [i for i in range(clients) if i not in self.who]
            why = "".join(f"; node {node}: {text.rstrip('.')}" for node, text in self.refusals.items())
            if time.monotonic() > until or (not self.asked and len(self.who) + len(self.refusals) >= enough):
                waited = f" after {self.settings.wait:g} s" if time.monotonic() > until else ""
                raise RunFailed(f"{enough} nodes were asked for and {len(self.who)} can take part{waited}: no node of "
                                f"client {_listed(away)}{why}. Start what is missing, or lower `enough`.")  # fmt: skip
            time.sleep(POLL)
        self.gathered = True
        self.say(f"{len(self.who)} of {clients} clients are here: {_listed(sorted(self.who))}")

    def __call__(self, sent: Sent, ids: Sequence[int], states: Sequence[States]) -> Reply:
        """The round's good replies, stacked in the order of `answered`."""
        if not self.gathered:
            self.gather()
        began = time.monotonic()
        round_, x0 = int(sent.round), self.built.task.x0
        self.store.round = round_
        present = self._present(ids)
        self._set_sizes()
        shared = {k: Array(v.detach().cpu().contiguous().numpy()) for k, v in list_work(sent).items()}
        # A client's first state is made of the first model, which is what everybody receives in the first round.
        apart = self.stateful and not torch.equal(sent.x, x0)
        first = {"x0": Array(x0.detach().cpu().numpy())} if apart else {}
        messages, down = {}, 0
        for i in present:
            counted = self.store.counted.get(i, -1)
            terms = pack_terms(self.terms, self.fingerprint, round=round_, lr=float(sent.lr), counted=counted,
                                 mirrored=self.mirrored)  # fmt: skip
            arrays = ArrayRecord({**shared, **(first if counted < 0 else {})})
            content = RecordDict({ARRAYS: arrays, TERMS: terms})
            down += count_bytes(content)
            messages[i] = Message(content, self.who[i], MessageType.TRAIN, group_id=str(round_ + 1),
                                  ttl=self.settings.deadline + 60)  # fmt: skip
        refused: dict[int, str] = {}
        good: dict[int, Answer] = {}
        for client, message in self._replies(messages):
            if message.has_error():  # of Flower's: the node has gone, or its app did not start
                self.say(f"round {round_ + 1}: client {client}: Flower says: {message.error.reason}")
                continue
            try:
                good[client] = self._read(message, client, round_)
            except SteppeError as error:
                refused[client] = str(error)
                self.say(f"round {round_ + 1}: client {client} was refused: {error}")
        missing = [i for i in ids if i not in good and i not in refused]
        if missing:
            self.say(f"round {round_ + 1}: no reply of client {_listed(missing)}")
        if len(good) < min(self.settings.least, len(ids)):
            why = "".join(f"; client {i}: {text.rstrip('.')}" for i, text in refused.items())
            raise RunFailed(f"round {round_ + 1}: {len(good)} good replies, and at least {self.settings.least} are "
                            f"needed; no reply of client {_listed(missing)}{why}.")  # fmt: skip
        self.answered = [i for i in ids if i in good]
        training = max(a.seconds for a in good.values())
        self.told = ({"dropped": missing} if missing else {}) | (
            {"refused": [{"client": i, "why": why} for i, why in refused.items()]} if refused else {}
        )  # fmt: skip
        self.told |= {
            "nodes": {"asked": len(ids), "bytes_down": down // max(len(present), 1),
                      "bytes_up": sum(a.size for a in good.values()) // len(good),
                      "training": round(training, 4), "overhead": round(time.monotonic() - began - training, 4)},
        }  # fmt: skip
        replies: Reply = tree_map(lambda v: v.to(x0.device), stack([good[i].reply for i in self.answered]))
        return replies

    def close(self) -> None:
        """Nothing to give back."""

    def _present(self, ids: Sequence[int]) -> list[int]:
        """Those of the round's clients whose nodes are here; wait while they are too few."""
        until = time.monotonic() + self.settings.wait
        least = min(self.settings.least, len(ids))
        while True:
            self._greet()
            present = [i for i in ids if i in self.who]
            if len(present) >= least:
                return present
            if time.monotonic() > until:
                raise RunFailed(f"{least} of this round's clients ({_listed(ids)}) are needed, and {len(present)} are "
                                f"here after {self.settings.wait:g} s.")  # fmt: skip
            time.sleep(POLL)

    def _greet(self) -> None:
        """Ask nodes that are new who they are, hear what others have answered, forget those that have gone."""
        online, now = set(self.grid.get_node_ids()), time.monotonic()
        self.who = {client: node for client, node in self.who.items() if node in online}
        self.refusals = {node: text for node, text in self.refusals.items() if node in online}
        overdue = {node for node, asked in self.asked.values() if now - asked > AGAIN}  # it may have died over it
        self.asked = {q: (node, asked) for q, (node, asked) in self.asked.items() if node in online - overdue}
        self.met = (self.met & online) - overdue
        new = sorted(online - self.met)
        if new:
            content = RecordDict({TERMS: pack_terms(self.terms, self.fingerprint)})
            questions = [Message(content, node, MessageType.QUERY, ttl=self.settings.deadline + 60) for node in new]
            self.asked |= {q: (n, now) for q, n in zip(self.grid.push_messages(questions), new, strict=True) if q}
            self.met |= set(new)
        for reply in self.grid.pull_messages(list(self.asked)) if self.asked else ():
            node, _ = self.asked.pop(reply.metadata.reply_to_message_id, (0, 0.0))
            if node:
                self._hear(node, reply)

    def _hear(self, node: int, message: Message) -> None:
        """A node says which client it is, or why it is none."""
        if message.has_error() and message.error.code in GONE:
            self.met.discard(node)  # it is asked again when it is back
            return
        try:
            if message.has_error():
                raise SteppeError(f"Flower says: {message.error.reason}")
            told = read_told(message.content)
            client, samples = told.get("client"), told.get("samples")
            if not isinstance(client, int) or not isinstance(samples, int) or samples < 1:
                raise SteppeError("it does not say which client it is")
        except SteppeError as error:
            self.refusals[node] = str(error)
            self.say(f"node {node} takes no part: {error}")
            return
        before = self.who.get(client)
        if before is not None and not self.gathered:
            raise RunFailed(f"nodes {before} and {node} both say that they are client {client}: give each node a "
                            "client=<number> of its own.")  # fmt: skip
        if self.gathered:
            self.say(f"client {client} is here, at node {node}{f' and no longer at {before}' if before else ''}")
        self.who[client], self.store.sizes[client] = node, samples

    def _set_sizes(self) -> None:
        """The round loop weighs clients by their numbers of samples, as the nodes tell them."""
        sizes = [self.store.sizes.get(i, 0) for i in range(self.built.config.clients)]
        split = Partition(tuple(np.arange(n) for n in sizes), "at the nodes", 0)
        self.built.federation = replace(self.built.federation, partition=split)

    def _replies(self, messages: dict[int, Message]) -> Iterator[tuple[int, Message]]:
        """(client, reply) as they come in, until all are here or time is over; a later one is never looked at."""
        ids = self.grid.push_messages(list(messages.values()))
        waiting = {text: client for text, client in zip(ids, messages, strict=True) if text}
        until = time.monotonic() + self.settings.deadline
        greeted = time.monotonic()
        while waiting and time.monotonic() < until:
            for reply in self.grid.pull_messages(list(waiting)):
                client = waiting.pop(reply.metadata.reply_to_message_id, None)
                if client is not None:
                    yield client, reply
            if waiting:
                time.sleep(POLL)
            if time.monotonic() - greeted > GREET:
                self._greet()
                greeted = time.monotonic()

    def _read(self, message: Message, client: int, round_: int) -> Answer:
        content = message.content
        expected = {"federation": self.settings.name, "client": client, "round": round_,
                    "fingerprint": self.fingerprint}  # fmt: skip
        arrays, told = check_reply(content, expected, self.like)
        reply = read_reply(arrays, told, self.built.algorithm)
        if why := faults(stack([reply]), self.built.config.refuse_above)[0]:
            raise SteppeError(f"its update {why}")
        return Answer(reply, told["seconds"], count_bytes(content))


def _listed(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids)) if ids else "nobody"
