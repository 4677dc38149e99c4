"""The nodes of a Flower federation as an executor of the round loop: it sends a round's work and collects the replies.

A node reports which client it is; clients are sampled by their numbers, so a run does not depend on Flower's random
node ids. Absent clients, late replies and bad replies are logged, and the round continues with the others.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from flwr.app import ArrayRecord, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from torch.utils._pytree import tree_map

from steppe.core.algorithm import States
from steppe.core.client import Reply, Sent, make_empty_replies
from steppe.core.errors import RunFailed, SteppeError
from steppe.core.layout import Tensors
from steppe.core.stacking import stack
from steppe.core.validate import find_faults
from steppe.core.wire import flatten_states, list_reply, list_work
from steppe.executors.executor import Answers
from steppe.experiment import Experiment
from steppe.flower.build_server_and_node import compute_fingerprint, trace_reply
from steppe.flower.federation_file import FederationFile, Sample, Terms, write_terms
from steppe.flower.messages import ARRAYS, TERMS, build_reply, count_bytes, pack, pack_terms
from steppe.flower.node_store import NodeStore
from steppe.flower.refusals import Strikes
from steppe.flower.reply_checks import Gone, check_origin, check_reply, find_largest_size
from steppe.flower.reply_inbox import Inbox, Unreadable
from steppe.flower.roll_call import POLL, Roll, list_clients

log = logging.getLogger("steppe")
GREET = 2.0  # seconds between checks of present nodes, while replies arrive


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
        self.terms = write_terms(Terms(settings.name, settings.lost_state, built.config, sample, built.cost))
        self.fingerprint = compute_fingerprint(built)
        reply, self.mirrored = trace_reply(built.algorithm, built.task)
        self.like: Tensors = list_reply(reply, self.mirrored)
        self.stateful = bool(flatten_states(reply.state))
        self.inbox = Inbox(grid, find_largest_size(self.like))
        question = RecordDict({TERMS: pack_terms(self.terms, self.fingerprint)})  # which client a node is
        self.roll = Roll(grid, self.inbox, settings, built.config.clients, question, store, keys)
        self.strikes = Strikes(where and where / "refusals.json", settings.refusals, settings.leave_out)
        if self.mirrored:
            built.notes.append(f"{built.algorithm.name} needs its clients' states on the server, so they are uploaded "
                               "with every reply")  # fmt: skip

    def __call__(self, sent: Sent, ids: Sequence[int], states: Sequence[States]) -> Answers:
        """Run the round on the nodes that are present, and return the good replies.

        If nodes disconnect during the round and too few are left, the round is repeated for up to `wait` seconds.
        """
        if not self.roll.gathered:
            self.roll.gather()
        began = time.monotonic()
        round_, x0, least = int(sent.round), self.built.task.x0, min(self.settings.least, len(ids))
        self.store.round = round_
        while True:
            present = self._wait_for_present(ids, round_)
            messages, down = self._write(sent, present)
            good, refused = self._collect(messages, round_) if present else ({}, {})
            missing = [i for i in ids if i not in good and i not in refused]
            if missing:
                log.warning(f"round {round_ + 1}: no reply from client {list_clients(missing)}")
            if len(good) >= least:
                break
            why = "".join(f"; client {i}: {text.rstrip('.')}" for i, text in refused.items())
            short = (f"round {round_ + 1}: {len(good)} good replies, but at least {self.settings.least} are needed"
                     f"{f'; no reply from client {list_clients(missing)}' if missing else ''}{why}.")  # fmt: skip
            if not missing or not present or time.monotonic() - began > self.settings.wait:
                if self._can_skip(good, ids, least, round_):
                    log.warning(f"{short} The model stays as it was.")
                    break
                raise RunFailed(short)
            log.warning(f"{short} The round is repeated.")
        answered = [i for i in ids if i in good]
        sizes = [self.store.sizes[i] for i in answered]
        passed = time.monotonic() - began
        training = max((min(max(a.seconds, 0.0), passed) for a in good.values()), default=0.0)
        facts: dict[str, Any] = ({"dropped": missing} if missing else {}) | (
            {"refused": [{"client": i, "why": why} for i, why in refused.items()]} if refused else {}
        )  # fmt: skip
        facts |= {
            "samples": sizes,
            "nodes": {"asked": len(ids), "bytes_down": down // max(len(present), 1),
                      "bytes_up": sum(a.size for a in good.values()) // max(len(good), 1),
                      "training": round(training, 4), "overhead": round(passed - training, 4)},
        }  # fmt: skip
        if good:
            replies: Reply = tree_map(lambda v: v.to(x0.device), stack([good[i].reply for i in answered]))
        else:
            replies = make_empty_replies(self.built.algorithm, self.built.task, sent, self.store.fresh())
        known = [self.store.sizes.get(i, 0) for i in range(self.built.config.clients)]
        return Answers(answered, replies, sizes, sum(known), facts)

    def _write(self, sent: Sent, present: Sequence[int]) -> tuple[dict[int, Message], int]:
        """Write the messages with these clients' work; return them with their total size in bytes."""
        round_, x0 = int(sent.round), self.built.task.x0
        shared = pack(list_work(sent))
        # A client's first state is made from the initial model, which all clients receive in the first round.
        apart = self.stateful and not torch.equal(sent.x, x0)
        first = pack({"x0": x0}) if apart else {}
        messages, down = {}, 0
        for i in present:
            counted = self.store.counted.get(i, -1)
            terms = pack_terms(self.terms, self.fingerprint, round=round_, lr=float(sent.lr), counted=counted,
                               mirrored=self.mirrored)  # fmt: skip
            arrays = ArrayRecord({**shared, **(first if counted < 0 else {})})
            content = RecordDict({ARRAYS: arrays, TERMS: terms})
            down += count_bytes(content)
            messages[i] = Message(content, self.roll.who[i], MessageType.TRAIN, group_id=str(round_ + 1),
                                  ttl=self.settings.deadline + 60)  # fmt: skip
        return messages, down

    def _collect(self, messages: dict[int, Message], round_: int) -> tuple[dict[int, Answer], dict[int, str]]:
        """Send the work; return the good replies, and why others were refused."""
        refused: dict[int, str] = {}
        good: dict[int, Answer] = {}
        for client, node, message in self._receive_replies(messages):
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

    def _wait_for_present(self, ids: Sequence[int], round_: int) -> list[int]:
        """Return the round's clients whose nodes are present and not left out; wait while they are too few.

        Return none if the round can be skipped.
        """
        until = time.monotonic() + self.settings.wait
        least = min(self.settings.least, len(ids))
        out = [i for i in ids if self.strikes.is_out(i, round_)]
        while True:
            self.roll.greet()
            present = [i for i in ids if i in self.roll.who and i not in out]
            if len(present) >= least:
                return present
            if time.monotonic() > until or len(ids) - len(out) < least:
                if self._can_skip(present, ids, least, round_):
                    return []
                without = f", and client {list_clients(out)} is left out because of refused replies" if out else ""
                raise RunFailed(f"{least} of this round's clients ({list_clients(ids)}) are needed, but {len(present)} "
                                f"are connected after {self.settings.wait:g} s{without}.")  # fmt: skip
            time.sleep(POLL)

    def _can_skip(self, found: Collection[int], ids: Sequence[int], least: int, round_: int) -> bool:
        """Return whether a round without any reply may be skipped: other clients, for other rounds, are connected.

        Otherwise a bad or absent client that is sampled alone would end the run, and each time that it is resumed.
        """
        others = [i for i in self.roll.who if i not in ids and not self.strikes.is_out(i, round_)]
        return least == 1 and not found and bool(others)

    def _receive_replies(self, messages: dict[int, Message]) -> Iterator[tuple[int, int, Message | SteppeError]]:
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
                self.roll.greet()
                greeted = time.monotonic()
                # Flower reports that a node is gone only until the node has announced its reply.
                for question in [q for q, (_, node) in waiting.items()
                                 if q in self.inbox.arriving and node not in self.roll.online]:  # fmt: skip
                    self.inbox.forget([question])
                    yield *waiting.pop(question), Gone(ErrorCode.NODE_UNAVAILABLE)
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
