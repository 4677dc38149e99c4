"""The generic ClientApp: a node introduces itself, and trains its own client with its own data.

A node's config (`--node-config`) says: client=<its number>  data="<folder, .npz or module:function>"
state="<folder for its client's state>"  and, if wanted, device="cpu".
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

import steppe
from steppe.core.errors import SteppeError
from steppe.engine.experiment import Experiment, find_device
from steppe.executors.sequential import train as train_client
from steppe.flower.build import build_node, check_same
from steppe.flower.federation_file import FederationFile, read_terms
from steppe.flower.messages import ARRAYS, TERMS, TOLD, list_reply, pack, pack_refusal, read_work
from steppe.flower.node_data import read_data
from steppe.flower.node_state import NodeState

app = ClientApp()


@app.query()
def introduce(message: Message, context: Context) -> Message:
    """Who this node is, after everything that could be wrong with it has been looked at."""

    def told() -> RecordDict:
        terms = message.content.config_records[TERMS]
        settings, built, client = _node(str(terms["terms"]), context.node_config)
        check_same(built, str(terms["fingerprint"]))
        record = {"federation": settings.name, "client": client, "samples": built.federation.sizes[client],
                  "steppe": steppe.__version__, "torch": torch.__version__}  # fmt: skip
        return RecordDict({TOLD: ConfigRecord(record)})  # type: ignore[arg-type]

    return _answer(message, told)


@app.train()
def train(message: Message, context: Context) -> Message:
    """One client's round."""

    def trained() -> RecordDict:
        device = find_device(str(context.node_config.get("device", "auto")))
        work = read_work(message.content, device)
        settings, built, client = _node(work.terms, context.node_config)
        check_same(built, work.fingerprint)
        task, round_ = built.task, int(work.sent.round)
        place = context.node_config.get("state")
        if place is None:
            raise SteppeError("the node's config has no state=\"<folder>\", where its client's state is kept.")
        states = NodeState(Path(str(place)).expanduser(), settings.name, client)
        # The first state is made of the federation's first model, which only the server is sure to have; it is sent
        # along where the model of the round is another one.
        first = built.algorithm.client_state(work.sent.x if work.x0 is None else work.x0)
        state = states.read(work.counted, first, settings.lost_state)
        state = {part: {k: v.to(device) for k, v in tensors.items()} for part, tensors in state.items()}
        if built.small and device.type == "cpu":
            torch.set_num_threads(1)
        began = time.perf_counter()
        reply = train_client(built.algorithm, task, built.federation, work.sent, client, state)
        seconds = time.perf_counter() - began
        states.write(round_, work.counted, reply.state)
        told = {"federation": settings.name, "client": client, "round": round_, "fingerprint": work.fingerprint,
                "samples": built.federation.sizes[client], "loss": float(reply.loss), "drift": float(reply.drift),
                "seconds": seconds}  # fmt: skip
        arrays_ = pack(list_reply(reply, work.mirrored))
        return RecordDict({ARRAYS: arrays_, TOLD: ConfigRecord(told)})  # type: ignore[arg-type]

    return _answer(message, trained)


def _node(terms: str, node_config: Any) -> tuple[FederationFile, Experiment, int]:
    settings, config, sample, cost = read_terms(terms)
    client, place = node_config.get("client"), node_config.get("data")
    if not isinstance(client, int) or not 0 <= client < config.clients:
        raise SteppeError(f"the node's config says client={client!r}, but this federation's clients are 0 to "
                          f"{config.clients - 1}.")  # fmt: skip
    if place is None:
        raise SteppeError(f'the config of client {client}\'s node has no data="<folder, .npz or module:function>".')
    pair = read_data(str(place), sample, f"client {client}")
    config = config.model_copy(update={"device": str(node_config.get("device", "auto"))})
    return settings, build_node(settings, config, sample, cost, pair, client), client


def _answer(message: Message, work: Callable[[], RecordDict]) -> Message:
    """The reply; what goes wrong goes to the operator as a sentence.

    Of what was not foreseen only the kind is told, because an exception's text may quote data.
    """
    try:
        return Message(work(), reply_to=message)
    except SteppeError as error:
        print(f"steppe: {error}", flush=True)
        return Message(pack_refusal(str(error)), reply_to=message)
    except Exception as error:
        traceback.print_exc()
        reason = f"{type(error).__name__} on the node, which its own log explains"
        return Message(pack_refusal(reason), reply_to=message)
