"""The generic ClientApp: a node reports which client it is, and trains that client on its own data.

The keys of a node's config (`--node-config`): client=<its number>  data="<folder, .npz or module:function>"
state="<folder for its client's state>"  and, optionally, device="cpu".
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
from steppe.core.errors import SteppeError, show_codes
from steppe.core.wire import list_reply
from steppe.engine.devices import find_device
from steppe.executors.sequential import train as train_client
from steppe.experiment import Experiment
from steppe.flower.build_server_and_node import build_node, check_same
from steppe.flower.federation_file import Own, Terms, read_federation_file, read_terms
from steppe.flower.messages import ARRAYS, FACTS, TERMS, pack, pack_refusal, read_work
from steppe.flower.node_data import read_data
from steppe.flower.node_state import NodeState
from steppe.flower.refusals import Refusal
from steppe.references import look_in
from steppe.runs.full_disk import is_full


def make(app_folder: Path) -> ClientApp:
    """Return the ClientApp of the app in this folder. The node has checked the app's hash before loading it.

    Names to import come from the app's own federation.toml, never from a message.
    """
    look_in(app_folder)
    return make_app(read_federation_file(app_folder)[0].own)


def make_app(own: Own) -> ClientApp:
    app = ClientApp()

    @app.query()
    def introduce(message: Message, context: Context) -> Message:
        return _answer(message, lambda: _introduce(message, context, own))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return _answer(message, lambda: _train(message, context, own))

    return app


def _introduce(message: Message, context: Context, own: Own) -> RecordDict:
    """Check the node's config, data and model, and report which client it is."""
    asked = message.content.config_records[TERMS]
    terms, built, client = _build(str(asked["terms"]), context.node_config, own)
    check_same(built, str(asked["fingerprint"]))
    record = {"federation": terms.name, "client": client, "samples": built.federation.sizes[client],
              "steppe": steppe.__version__, "torch": torch.__version__}  # fmt: skip
    return RecordDict({FACTS: ConfigRecord(record)})  # type: ignore[arg-type]


def _train(message: Message, context: Context, own: Own) -> RecordDict:
    """Run one client's round."""
    device = find_device(str(context.node_config.get("device", "auto")))
    work = read_work(message.content, device)
    terms, built, client = _build(work.terms, context.node_config, own)
    check_same(built, work.fingerprint)
    task, round_ = built.task, int(work.sent.round)
    place = context.node_config.get("state")
    if place is None:
        raise Refusal("config", "the node's config has no state=\"<folder>\", where its client's state is kept.")
    states = NodeState(Path(str(place)).expanduser(), terms.name, client)
    # The first state is made from the federation's initial model, which only the server is sure to have. The server
    # sends it if the round's model is a different one.
    first = built.algorithm.client_state(work.sent.x if work.x0 is None else work.x0)
    state = states.read(work.counted, first, terms.lost_state)
    state = {part: {k: v.to(device) for k, v in tensors.items()} for part, tensors in state.items()}
    if built.small and device.type == "cpu":
        torch.set_num_threads(1)
    began = time.perf_counter()
    reply = train_client(built.algorithm, task, built.federation, work.sent, client, state)
    seconds = time.perf_counter() - began
    states.write(round_, work.counted, reply.state)
    told = {"federation": terms.name, "client": client, "round": round_, "fingerprint": work.fingerprint,
            "samples": built.federation.sizes[client], "loss": float(reply.loss), "drift": float(reply.drift),
            "seconds": seconds}  # fmt: skip
    arrays = pack(list_reply(reply, work.mirrored))
    return RecordDict({ARRAYS: arrays, FACTS: ConfigRecord(told)})  # type: ignore[arg-type]


def _build(text: str, node_config: Any, own: Own) -> tuple[Terms, Experiment, int]:
    try:
        terms = read_terms(text)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Refusal("terms", f"the server's terms cannot be read: {error}") from error
    config = terms.config
    client, place = node_config.get("client"), node_config.get("data")
    if not isinstance(client, int) or not 0 <= client < config.clients:
        raise Refusal("client", f"the node's config says client={client!r}, but this federation's clients are 0 to "
                                f"{config.clients - 1}.")  # fmt: skip
    if place is None:
        raise Refusal(
            "config", f'the config of client {client}\'s node has no data="<folder, .npz or module:function>".'
        )
    pair = read_data(str(place), terms.sample, f"client {client}")
    config = config.model_copy(update={"device": str(node_config.get("device", "auto"))})
    try:
        return terms, build_node(own, config, terms.sample, terms.cost, pair, client), client
    except Refusal:
        raise
    except SteppeError as error:
        raise Refusal("build", str(error)) from error


def _answer(message: Message, work: Callable[[], RecordDict]) -> Message:
    """Return the reply. Errors are explained in this node's log; the server receives only a code."""
    try:
        return Message(work(), reply_to=message)
    except SteppeError as error:
        print(f"steppe: {show_codes(str(error))}", flush=True)  # it may quote the server
        code = error.code if isinstance(error, Refusal) else "other"
    except Exception as error:
        traceback.print_exc()
        code = "disk" if is_full(error) else "other"
    return Message(pack_refusal(code), reply_to=message)
