"""The nodes of a Flower federation as an executor of the round loop: it sends a round's work and collects the replies.

A node reports which client it is; clients are sampled by their numbers, so a run does not depend on Flower's random
node ids. Absent clients, late replies and bad replies are logged, and the round continues with the others.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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
from steppe.core.validate import find_faults
from steppe.core.wire import list_reply, list_work
from steppe.executors.executor import Answers
from steppe.experiment import Experiment
from steppe.flower.both_sides import compute_fingerprint, trace_reply
from steppe.flower.federation_file import FederationFile, Sample, Terms, write_terms
from steppe.flower.keys import take_fingerprint
from steppe.flower.messages import (
    ARRAYS,
    REFUSAL,
    TERMS,
    build_reply,
    count_bytes,
    pack_terms,
)
from steppe.flower.pull import Inbox, Unreadable
from steppe.flower.refusals import Strikes
from steppe.flower.reply_checks import check_reply, find_largest_size, read_introduction
from steppe.runs.client_store import MemoryStore, flatten_states

log = logging.getLogger("steppe")
AWAY = ErrorCode.NODE_UNAVAILABLE, ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE
POLL, GREET, AGAIN = 0.2, 2.0, 60.0  # seconds between checks of replies, of present nodes, and questions to a node


class NodeStore(MemoryStore):
    """Clients' states are on their nodes. This keeps the last counted round of each and, if needed, a copy of it."""

    def __init__(self, fresh: Callable[[], States]) -> None:
        super().__init__(fresh)
        self.counted: dict[int, int] = {}
        self.sizes: dict[int, int] = {}
        self.round = -1  # the current round

    def scatter(self, ids: Sequence[int], states: Sequence[States]) -> None:
        self.counted.update(dict.fromkeys(ids, self.round))
        if any(flatten_states(s) for s in states):
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
    """An executor that runs a round on the nodes that the grid reaches."""

    trusted = False  # everything that a node sends is checked

    def __init__(self, grid: Grid, settings: FederationFile, built: Experiment, sample: Sample, store: NodeStore,
                 keys: dict[int, str] | None = None,
                 where: Path | None = None) -> None:  # fmt: skip
        self.grid, self.settings, self.built, self.store = grid, settings, built, store
        self.keys = keys  # client -> its node's key; None if nodes have no keys
        self.terms = write_terms(Terms(settings.name, settings.lost_state, built.config, sample, built.cost))
        self.fingerprint = compute_fingerprint(built)
        reply, self.mirrored = trace_reply(built.algorithm, built.task)
        self.like: Tensors = list_reply(reply, self.mirrored)
        self.stateful = bool(flatten_states(reply.state))
        self.inbox = Inbox(grid, find_largest_size(self.like))
        self.strikes = Strikes(where and where / "refusals.json", settings.refusals, settings.leave_out)
        self.who: dict[int, int] = {}  # client -> node
        self.asked: dict[str, tuple[int, float]] = {}  # question -> node, and when it was asked
        self.met: set[int] = set()  # nodes that have been asked which client they are
        self.gathered = False
        self.refused: dict[int, tuple[str, float]] = {}  # node -> why it does not take part, and since when
        self.declined: set[int] = set()  # those of them that gave the reason themselves
        self.excused: set[int] = set()  # nodes that were absent when they were asked
        if self.mirrored:
            built.notes.append(f"{built.algorithm.name} needs its clients' states on the server, so they are uploaded "
                               "with every reply")  # fmt: skip

    def gather(self) -> None:
        """Wait for enough nodes; when time is up, raise an error that names the missing ones."""
        clients, enough = self.built.config.clients, self.settings.enough or self.built.config.clients
        until = time.monotonic() + self.settings.wait
        while True:
            self._greet()
            if len(self.who) >= enough:
                break
            away = [i for i in range(clients) if i not in self.who]
            why = "".join(f"; node {node}: {text.rstrip('.')}" for node, (text, _) in self.refused.items())
            if time.monotonic() > until or (not self.asked and len(self.who) + len(self.declined) >= enough):
                waited = f" after {self.settings.wait:g} s" if time.monotonic() > until else ""
                raise RunFailed(f"{enough} nodes are needed and {len(self.who)} can take part{waited}: no node for "
                                f"client {_listed(away)}{why}. Start these nodes, or lower `enough`.")  # fmt: skip
            time.sleep(POLL)
        self.gathered = True
        log.info(f"{len(self.who)} of {clients} clients are connected: {_listed(sorted(self.who))}")

    def __call__(self, sent: Sent, ids: Sequence[int], states: Sequence[States]) -> Answers:
        """Run the round on the nodes that are present, and return the good replies.

        If nodes disconnect during the round and too few are left, the round is repeated for up to `wait` seconds.
        """
        if not self.gathered:
            self.gather()
        began = time.monotonic()
        round_, x0, least = int(sent.round), self.built.task.x0, min(self.settings.least, len(ids))
        self.store.round = round_
        while True:
            present = self._present(ids, round_)
            messages, down = self._write(sent, present)
            good, refused = self._collect(messages, round_)
            missing = [i for i in ids if i not in good and i not in refused]
            if missing:
                log.warning(f"round {round_ + 1}: no reply from client {_listed(missing)}")
            if len(good) >= least:
                break
            why = "".join(f"; client {i}: {text.rstrip('.')}" for i, text in refused.items())
            short = (f"round {round_ + 1}: {len(good)} good replies, but at least {self.settings.least} are needed"
                     f"{f'; no reply from client {_listed(missing)}' if missing else ''}{why}.")  # fmt: skip
            if not missing or time.monotonic() - began > self.settings.wait:
                raise RunFailed(short)
            log.warning(f"{short} The round is repeated.")
        answered = [i for i in ids if i in good]
        sizes = [self.store.sizes[i] for i in answered]
        passed = time.monotonic() - began
        training = max(min(max(a.seconds, 0.0), passed) for a in good.values())
        facts: dict[str, Any] = ({"dropped": missing} if missing else {}) | (
            {"refused": [{"client": i, "why": why} for i, why in refused.items()]} if refused else {}
        )  # fmt: skip
        facts |= {
            "samples": sizes,
            "nodes": {"asked": len(ids), "bytes_down": down // max(len(present), 1),
                      "bytes_up": sum(a.size for a in good.values()) // len(good),
                      "training": round(training, 4), "overhead": round(passed - training, 4)},
        }  # fmt: skip
        replies: Reply = tree_map(lambda v: v.to(x0.device), stack([good[i].reply for i in answered]))
        known = [self.store.sizes.get(i, 0) for i in range(self.built.config.clients)]
        return Answers(answered, replies, sizes, sum(known), facts)

    def _write(self, sent: Sent, present: Sequence[int]) -> tuple[dict[int, Message], int]:
        """Write the messages with these clients' work; return them with their total size in bytes."""
        round_, x0 = int(sent.round), self.built.task.x0
        shared = {k: Array(v.detach().cpu().contiguous().numpy()) for k, v in list_work(sent).items()}
        # A client's first state is made from the initial model, which all clients receive in the first round.
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
        return messages, down

    def _collect(self, messages: dict[int, Message], round_: int) -> tuple[dict[int, Answer], dict[int, str]]:
        """Send the work; return the good replies, and why others were refused."""
        refused: dict[int, str] = {}
        good: dict[int, Answer] = {}
        for client, node, message in self._replies(messages):
            try:
                good[client] = self._read(message, client, node, round_)
            except Gone as error:  # the node is absent, or its app did not start: not a reply of its own
                log.warning(f"round {round_ + 1}: client {client}: {error}")
            except SteppeError as error:
                refused[client] = str(error)
                log.warning(f"round {round_ + 1}: client {client} was refused: {error}")
                if self.strikes.add(client, round_):
                    log.warning(f"client {client} is left out for {self.settings.leave_out} rounds")
        return good, refused

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _present(self, ids: Sequence[int], round_: int) -> list[int]:
        """Return the round's clients whose nodes are present and not left out; wait while they are too few."""
        until = time.monotonic() + self.settings.wait
        least = min(self.settings.least, len(ids))
        out = [i for i in ids if self.strikes.is_out(i, round_)]
        while True:
            self._greet()
            present = [i for i in ids if i in self.who and i not in out]
            if len(present) >= least:
                return present
            if time.monotonic() > until or len(ids) - len(out) < least:
                without = f", and client {_listed(out)} is left out because of refused replies" if out else ""
                raise RunFailed(f"{least} of this round's clients ({_listed(ids)}) are needed, but {len(present)} are "
                                f"connected after {self.settings.wait:g} s{without}.")  # fmt: skip
            time.sleep(POLL)

    def _greet(self) -> None:
        """Ask new nodes which client they are, read the answers of others, and forget nodes that are gone."""
        nodes = {node.node_id: node.public_key for node in self.grid.get_nodes()}
        online, now = set(nodes), time.monotonic()
        self.who = {client: node for client, node in self.who.items() if node in online}
        self.refused = {node: (why, at) for node, (why, at) in self.refused.items() if node in online}
        self.declined &= online
        self.excused &= online
        # It may have died before it answered, or its problem may have been fixed.
        again = {node for node, at in (*self.asked.values(), *((n, at) for n, (_, at) in self.refused.items()))
                 if now - at > AGAIN}  # fmt: skip
        self.asked = {q: (node, at) for q, (node, at) in self.asked.items() if node in online - again}
        self.met = (self.met & online) - again
        new = sorted(online - self.met)
        if new:
            content = RecordDict({TERMS: pack_terms(self.terms, self.fingerprint)})
            questions = [Message(content, node, MessageType.QUERY, ttl=self.settings.deadline + 60) for node in new]
            self.asked |= {q: (n, now) for q, n in zip(self.grid.push_messages(questions), new, strict=True) if q}
            self.met |= set(new)
        for question, message in self.inbox.pull(list(self.asked)) if self.asked else ():
            node, _ = self.asked.pop(question)
            self._hear(node, nodes.get(node, b""), message)

    def _hear(self, node: int, key: bytes, message: Message | SteppeError) -> None:
        """Read which client a node is, or why it cannot take part. A bad answer never ends the run."""
        try:
            told = check_origin(message, node)
            client, samples = read_introduction(told, self.settings.name, self.built.config.clients,
                                                self.settings.max_samples)  # fmt: skip
            self._check_claim(client, node, key)
        except Gone as error:
            if error.away and node not in self.excused:
                self.excused.add(node)  # it is asked again at once, but only once
                self.met.discard(node)
                return
            self._refuse(node, error)
        except Exception as error:
            self._refuse(node, error if isinstance(error, SteppeError) else Unreadable(error))
        else:
            if self.gathered and client not in self.who:
                log.info(f"client {client} is connected as node {node}")
            self.refused.pop(node, None)
            self.declined.discard(node)
            self.excused.discard(node)
            self.who[client], self.store.sizes[client] = node, samples
            return
        if isinstance(message, Message) and message.has_content() and REFUSAL in message.content:
            self.declined.add(node)

    def _check_claim(self, client: int, node: int, key: bytes) -> None:
        """Check that the node's key is bound to this client or, without keys, that no other node has claimed it."""
        if self.keys is not None and self.keys.get(client) != take_fingerprint(key):
            raise SteppeError(f"it claims to be client {client}, which is bound to another node's key")
        if self.who.get(client, node) != node:
            raise SteppeError(f"it claims to be client {client}, which is node {self.who[client]}")

    def _refuse(self, node: int, error: SteppeError) -> None:
        if self.refused.get(node, ("", 0.0))[0] != str(error):
            log.warning(f"node {node} does not take part: {error}")
        self.refused[node] = str(error), time.monotonic()
        self.who = {client: other for client, other in self.who.items() if other != node}

    def _replies(self, messages: dict[int, Message]) -> Iterator[tuple[int, int, Message | SteppeError]]:
        """Yield (client, node, reply) as replies arrive, until all are here or time is up; ignore later ones."""
        ids = self.grid.push_messages(list(messages.values()))
        waiting = {text: (client, message.metadata.dst_node_id)
                   for text, (client, message) in zip(ids, messages.items(), strict=True) if text}  # fmt: skip
        until = time.monotonic() + self.settings.deadline
        greeted = time.monotonic()
        while waiting and time.monotonic() < until:
            for question, reply in self.inbox.pull(list(waiting)):
                yield *waiting.pop(question), reply
            if waiting:
                time.sleep(POLL)
            if time.monotonic() - greeted > GREET:
                self._greet()
                greeted = time.monotonic()
        self.inbox.forget(list(waiting))

    def _read(self, message: Message | SteppeError, client: int, node: int, round_: int) -> Answer:
        """Return a good reply; raise SteppeError for a bad one."""
        expected = {"federation": self.settings.name, "client": client, "round": round_,
                    "fingerprint": self.fingerprint, "samples": self.store.sizes[client]}  # fmt: skip
        try:
            message = check_origin(message, node)
            arrays, told = check_reply(message, expected, self.like)
            reply = build_reply(arrays, told, self.built.algorithm)
            why = find_faults(stack([reply]), self.built.config.refuse_above)[0]
        except SteppeError:
            raise
        except Exception as error:
            raise Unreadable(error) from error
        if why:
            raise SteppeError(f"its update {why}")
        return Answer(reply, told["seconds"], count_bytes(message.content))


class Gone(SteppeError):
    """Flower reports that a node has not answered: it is absent, or could not run the app."""

    def __init__(self, code: int) -> None:
        named = next((name for name, value in vars(ErrorCode).items() if value == code), "an unknown error")
        pinned = (
            "; the node is pinned to a different app: run steppe federate pin" if code == ErrorCode.INVALID_FAB else ""
        )
        super().__init__(f"Flower reports: {named.lower().replace('_', ' ')}{pinned}")
        self.away = code in AWAY


def check_origin(message: Message | SteppeError, node: int) -> Message:
    """Return the message from this node, or raise an error without Flower's text, which may quote the node's files."""
    if isinstance(message, SteppeError):
        raise message
    if message.has_error():
        raise Gone(message.error.code)
    if message.metadata.src_node_id != node:
        raise SteppeError("it came from another node")
    return message


def _listed(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids)) if ids else "nobody"
