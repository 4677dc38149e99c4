"""Find the clients that are present: ask nodes who they are, check their claims, and forget nodes that are gone."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from steppe.core.errors import RunFailed, SteppeError
from steppe.flower.federation_file import FederationFile
from steppe.flower.keys import take_fingerprint
from steppe.flower.messages import REFUSAL
from steppe.flower.node_store import NodeStore
from steppe.flower.reply_checks import Gone, check_origin, read_introduction
from steppe.flower.reply_inbox import Inbox, Unreadable

log = logging.getLogger("steppe")
POLL, AGAIN = 0.2, 60.0  # seconds between checks of replies, and between questions to a node


class Roll:
    """The clients that are present, by their nodes; the store gets the number of samples of each."""

    def __init__(self, grid: Grid, inbox: Inbox, settings: FederationFile, clients: int, question: RecordDict,
                 store: NodeStore, keys: dict[int, str] | None) -> None:  # fmt: skip
        self.grid, self.inbox, self.settings, self.clients = grid, inbox, settings, clients
        self.question, self.store = question, store
        self.keys = keys  # client -> its node's key; None if nodes have no keys
        self.who: dict[int, int] = {}  # client -> node
        self.online: set[int] = set()  # nodes
        self.asked: dict[str, tuple[int, float]] = {}  # question -> node, and when it was asked
        self.met: set[int] = set()  # nodes that have been asked which client they are
        self.gathered = False
        self.refused: dict[int, tuple[str, float]] = {}  # node -> why it does not take part, and since when
        self.declined: set[int] = set()  # those of them that gave the reason themselves
        self.excused: set[int] = set()  # nodes that were absent when they were asked

    def gather(self) -> None:
        """Wait for enough nodes; when time is up, raise an error that names the missing ones."""
        clients, enough = self.clients, self.settings.enough or self.clients
        until = time.monotonic() + self.settings.wait
        while True:
            self.greet()
            if len(self.who) >= enough:
                break
            away = [i for i in range(clients) if i not in self.who]
            why = "".join(f"; node {node}: {text.rstrip('.')}" for node, (text, _) in self.refused.items())
            if time.monotonic() > until or (not self.asked and len(self.who) + len(self.declined) >= enough):
                waited = f" after {self.settings.wait:g} s" if time.monotonic() > until else ""
                raise RunFailed(f"{enough} nodes are needed and {len(self.who)} can take part{waited}: no node for "
                                f"client {list_clients(away)}{why}. Start these nodes, or lower `enough`.")  # fmt: skip
            time.sleep(POLL)
        self.gathered = True
        log.info(f"{len(self.who)} of {clients} clients are connected: {list_clients(sorted(self.who))}")

    def greet(self) -> None:
        """Ask new nodes which client they are, read the answers of others, and forget nodes that are gone."""
        nodes = {node.node_id: node.public_key for node in self.grid.get_nodes()}
        self.online = online = set(nodes)
        now = time.monotonic()
        left = set(self.who.values()) - online
        self.who = {client: node for client, node in self.who.items() if node in online}
        self.refused = {node: (why, at) for node, (why, at) in self.refused.items() if node in online}
        self.declined &= online
        self.excused &= online
        # It may have died before it answered, its problem may have been fixed, or it is one that left and restarted.
        pending = dict(self.asked.values())
        again = {node for node, at in pending.items() if now - at > AGAIN}
        again |= {n for n, (_, at) in self.refused.items() if n not in pending and (left or now - at > AGAIN)}
        self.asked = {q: (node, at) for q, (node, at) in self.asked.items() if node in online - again}
        self.met = (self.met & online) - again
        new = sorted(online - self.met)
        if new:
            questions = [
                Message(self.question, node, MessageType.QUERY, ttl=self.settings.deadline + 60) for node in new
            ]
            self.asked |= {q: (n, now) for q, n in zip(self.grid.push_messages(questions), new, strict=True) if q}
            self.met |= set(new)
        for question, message in self.inbox.pull(list(self.asked)) if self.asked else ():
            node, _ = self.asked.pop(question)
            self._note_answer(node, nodes.get(node, b""), message)

    def _note_answer(self, node: int, key: bytes, message: Message | SteppeError) -> None:
        """Read which client a node is, or why it cannot take part. A bad answer never ends the run."""
        try:
            told = check_origin(message, node)
            client, samples = read_introduction(told, self.settings.name, self.clients,
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


def list_clients(ids: Sequence[int]) -> str:
    """Name clients in a sentence."""
    return ", ".join(map(str, ids)) if ids else "nobody"
