"""One client's round and the server's functions for other loops: a Flower or NVFlare program, or your own.

    server = steppe.server("scaffold", model, clients=20, lr=0.05)
    client = steppe.client("scaffold", model)

    message = server.send()                                  # a dict of tensors
    client.begin(message, steps=len(batches))
    for x, y in batches:
        client.step(x, y)
    reply = client.end(samples=len(data))                    # a dict of tensors
    server.aggregate([reply, …])

These use the simulator's functions, so the numbers are the same. Messages and states are dicts of plain tensors, with
the names of `core/wire.py`, which do not change within a major version:

    message   x, down/<part>/<name>, buffers/<name>, lr, round; x0 if a client's first state depends on it
    reply     update, up/<part>/<name>, buffers/<name>, samples, loss, drift
    state     of a client: <part>/<name>; of the server: x, <part>/<name>, buffers/<name>, round
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from steppe.config import Config
from steppe.core import server as turn
from steppe.core.algorithm import Algorithm, States
from steppe.core.client import Live, Sent, begin, end, make_empty_replies, step
from steppe.core.errors import RunFailed, SteppeError, quote
from steppe.core.inputs import name_type, show_shape
from steppe.core.layout import Tensors
from steppe.core.metric import Each
from steppe.core.prediction import Predict, check_predict
from steppe.core.stacking import stack
from steppe.core.task import Task
from steppe.core.validate import find_faults, find_misfit
from steppe.core.wire import flatten_states, list_reply, list_work, nest_states, read_reply, read_sent
from steppe.engine.build import build_algorithm, check_head
from steppe.engine.objectives import read_loss
from steppe.engine.read_call import Added, Asked, read_call
from steppe.experiment import find_rate


def client(algorithm: Asked, model: nn.Module, *, add: Added = (), loss: str | Each = "cross_entropy",
           head: str | None = None, predict: Predict | None = None, state: Mapping[str, Tensor] | None = None,
           **options: Any) -> Client:  # fmt: skip
    """Make a client for your own loop.

    The arguments that are not listed are those of `steppe.run`, and the same as the server's; keys about data are not
    used.

    model  the module to train, the same as the server's
    state  `client.state` of an earlier object of the same client
    """
    return Client(*_build(algorithm, model, add, loss, head, predict, options), state)


def server(algorithm: Asked, model: nn.Module, *, clients: int, samples: float | None = None, add: Added = (),
           loss: str | Each = "cross_entropy", head: str | None = None, predict: Predict | None = None,
           **options: Any) -> Server:  # fmt: skip
    """Make the server for your own loop. The arguments that are not listed are those of `steppe.run`.

    clients  number of all clients, not per round
    samples  the number of training samples of all clients; without it, absent ones count as much as others
    """
    options = {"clients": clients, "per_round": 1, **options}
    return Server(*_build(algorithm, model, add, loss, head, predict, options), samples)


def _build(algorithm: Asked, model: nn.Module, add: Added, loss: str | Each, head: str | None,
           predict: Predict | None, options: dict[str, Any]) -> tuple[Config, Algorithm, Task]:  # fmt: skip
    if not isinstance(model, nn.Module):
        raise SteppeError(f"model is {quote(model)}: give an nn.Module.")
    first = next((p for p in model.parameters() if p.requires_grad), None)
    if first is None:
        raise SteppeError("The model has no trainable parameter: set requires_grad on the parameters to train.")
    check_head(model, head)
    check_predict(predict)
    call = read_call(algorithm, add, options)
    dtype = getattr(torch, call.config.dtype)
    if "dtype" not in options and first.dtype == torch.float64:
        dtype = first.dtype
    task = Task(model, read_loss(loss), None, head, predict=predict).to(first.device, dtype)
    task.pieces = call.config.accumulate
    if task.buffers and call.config.buffers != "average":
        raise SteppeError(f"buffers is {call.config.buffers}, but running statistics are averaged here: leave it out, "
                          "or use a model with group norm.")  # fmt: skip
    return call.config, build_algorithm(call.config, call.algorithm, call.add), task


class Client:
    """One client: `begin`, `step` as often as announced, `end`."""

    def __init__(self, config: Config, algorithm: Algorithm, task: Task, state: Mapping[str, Tensor] | None) -> None:
        self.config, self.algorithm, self.task = config, algorithm, task
        self._state: States | None = None
        self._round: tuple[Sent, Live, Tensor] | None = None
        self._taken = 0
        if state is not None:
            self.state = dict(state)

    @property
    def state(self) -> Tensors:
        """Return what the client keeps between rounds, as plain tensors. Save it, and assign it to continue from it.

        It is that of the last `end`. If that reply was lost or refused, assign the state from before the round.
        """
        return {} if self._state is None else _separate(flatten_states(self._state))

    @state.setter
    def state(self, tensors: Mapping[str, Tensor]) -> None:
        wanted = flatten_states(self.algorithm.client_state(self.task.x0))
        if not tensors:
            self._state = None
            return
        empty: States = {p.name: {} for p in self.algorithm.parts}
        self._state = empty | nest_states(_read_state(tensors, wanted, f"client of {self.algorithm.name}"))

    def begin(self, message: Mapping[str, Tensor], steps: int) -> None:
        """Start a round from the server's message. Several parts depend on the number of steps, so give it here."""
        if not (number := _as_number(steps)).is_integer() or number < 1:
            raise SteppeError(
                f"steps is {quote(steps)}, but must be a whole number, at least 1: leave out a client without data."
            )
        sent = _read_message(message, self.task, self.algorithm)
        x0 = torch.as_tensor(message.get("x0", sent.x))
        kept = self.algorithm.client_state(x0.to(sent.x)) if self._state is None else self._state
        count = sent.lr.new_tensor(float(steps))
        with torch.no_grad():
            self._round = sent, begin(self.algorithm, self.task, sent, kept, count), count
        self._taken = 0

    def step(self, *batches: Any) -> float:
        """Take one local step on a batch, `step(x, y)` or `step({"x": x, "y": y})`, and return its loss.

        Several inputs per sample are a tuple or a dict, `step({"ids": ids, "mask": mask}, y)`.

        An algorithm whose step takes several batches gets them as several pairs: `step((x, y), (x2, y2))`.
        """
        sent, live, count = self._get_round()
        pairs = [batches] if len(batches) == 2 and not isinstance(batches[1], tuple | dict) else list(batches)
        if len(pairs) != self.algorithm.batches_per_step:
            raise SteppeError(f"A step of {self.algorithm.name} takes {self.algorithm.batches_per_step} batches, each "
                              f"a pair (x, y), but got {len(pairs)}.")  # fmt: skip
        if self._taken == int(count):
            raise SteppeError(f"begin was given {int(count)} steps, and all of them were taken: call end.")
        try:
            several = tuple(_read_batch(pair, sent.x) for pair in pairs)
        except (TypeError, ValueError, RuntimeError) as error:
            raise SteppeError(f"A batch is a pair (x, y) of tensors or arrays; this one is not: {error}.") from error
        now = sent.lr.new_tensor(float(self._taken))
        try:
            with torch.no_grad():
                after = step(self.algorithm, self.task, sent, live, several, now, count)
        except SteppeError:
            raise
        except Exception as error:  # of the user's model, loss or part, which may raise anything
            x, y = several[0]["x"], several[0]["y"]
            raise SteppeError(f"The step fails on inputs of shape {show_shape(x)} and targets {tuple(y.shape)}: "
                              f"{type(error).__name__}: {str(error).rstrip('.')}.") from error  # fmt: skip
        self._round, self._taken = (sent, after, count), self._taken + 1
        return float(after.core["loss"] - live.core["loss"])

    def end(self, samples: float = 1) -> Tensors:
        """End the round, keep the client's new state, and return the reply. `samples` is the client's weight."""
        _check_samples(samples, "samples is")
        sent, live, count = self._get_round()
        if self._taken != int(count):
            raise SteppeError(f"begin was given {int(count)} steps, but {self._taken} were taken: parts such as "
                              "control variates divide by their number.")  # fmt: skip
        with torch.no_grad():
            reply = end(self.algorithm, self.task, sent, live, count)
        self._state, self._round = reply.state, None
        told = {"samples": torch.tensor(float(samples)), "loss": reply.loss, "drift": reply.drift}
        return _separate({**list_reply(reply), **told})

    @property
    def model(self) -> nn.Module:
        """Return the client's model during its round, as a separate module."""
        _, live, _ = self._get_round()
        return self.task.module(live.w, live.buffers)

    def _get_round(self) -> tuple[Sent, Live, Tensor]:
        if self._round is None:
            raise SteppeError("This client is not in a round: call begin with the server's message.")
        return self._round


class Server:
    """The server: `send`, then `aggregate` with the replies, round by round."""

    def __init__(self, config: Config, algorithm: Algorithm, task: Task, samples: float | None) -> None:
        if samples is not None:
            _check_samples(samples, "samples is")
        self.config, self.algorithm, self.task, self.samples = config, algorithm, task, samples
        self.round = 0
        self._held = turn.Server(task.x0, algorithm.server_state(task.x0), task.buffers)
        self._prepared: tuple[turn.Server, Sent] | None = None
        one, two = (flatten_states(algorithm.client_state(x)) for x in (task.x0, task.x0 + 1))
        self._needs_x0 = any(not torch.equal(one[k], two[k]) for k in one)

    def send(self, lr: float | None = None) -> Tensors:
        """Return the message of this round for every client. The rate is the schedule's, unless one is given."""
        rate = find_rate(self.config, self.round) if lr is None else lr
        if not 0 <= _as_number(rate) < torch.inf:
            raise SteppeError(f"lr is {quote(rate)}, but must be a number, at least 0.")
        x0 = self.task.x0
        self._prepared = turn.broadcast(self.algorithm, self.task.layout, self._held, x0.new_tensor(rate),
                                        x0.new_tensor(float(self.round)), None, self.config.clients)  # fmt: skip
        sent = self._prepared[1]
        first = {"x0": x0} if self._needs_x0 and self.round else {}
        return _separate({**list_work(sent), **first, "lr": sent.lr, "round": sent.round})

    def aggregate(self, replies: Iterable[Mapping[str, Tensor]]) -> None:
        """Take the clients' replies, and continue with the next round. Without any, the model stays as it is."""
        if self._prepared is None:
            raise SteppeError("There is nothing to aggregate yet: call send, and give its message to the clients.")
        prepared, sent = self._prepared
        if isinstance(replies, Mapping) or not isinstance(replies, Iterable):
            raise SteppeError("aggregate takes a list of replies, also of one: aggregate([reply]).")
        given = list(replies)
        if given:
            self._held = self._compute_next(prepared, sent, given)
        self._prepared, self.round = None, self.round + 1

    def _compute_next(self, prepared: turn.Server, sent: Sent, given: Sequence[Mapping[str, Tensor]]) -> turn.Server:
        like = make_empty_replies(self.algorithm, self.task, sent)
        read = []
        for place, tensors in enumerate(given):
            if not isinstance(tensors, Mapping):
                raise SteppeError(f"Reply {place} is {quote(tensors)}: give what client.end() returned.")
            if lost := {"update", "samples", "loss", "drift"} - tensors.keys():
                raise SteppeError(f"Reply {place} lacks {', '.join(sorted(lost))}: give what client.end() returned.")
            here = {k: torch.as_tensor(v, device=sent.x.device) for k, v in tensors.items()}
            _check_samples(float(here["samples"]), f"Reply {place} has samples")
            reply = read_reply(here, here["loss"].to(sent.x), here["drift"].to(sent.x), self.algorithm)
            if why := find_misfit(reply, like):
                raise SteppeError(f"Reply {place} does not fit {self.algorithm.name} and this model: {why}.")
            read.append(reply)
        stacked = stack(read)
        if refused := [k for k, why in enumerate(find_faults(stacked, self.config.refuse_above)) if why]:
            raise RunFailed(f"Reply {refused[0]} is not finite, or longer than refuse_above: leave it out, or lower "
                            "lr.")  # fmt: skip
        by_samples = self.config.weighting == "samples"
        weights = sent.x.new_tensor([float(one["samples"]) if by_samples else 1.0 for one in given])
        total = self.samples if by_samples else float(self.config.clients)
        return turn.aggregate(self.algorithm, self.task.layout, prepared, sent, stacked, weights, self.config.clients,
                              None, total)  # fmt: skip

    @property
    def model(self) -> nn.Module:
        """Return the global model, ready to predict, or the one to evaluate that a part such as EMA provides."""
        t = max(self.round, 1) - 1
        now, rate = self.task.x0.new_tensor(float(t)), self.task.x0.new_tensor(find_rate(self.config, t))
        x = turn.choose_evaluated(self.algorithm, self.task.layout, self._held, rate, now, self.config.clients)
        return self.task.module(x, self._held.buffers)

    @property
    def state(self) -> Tensors:
        """Return everything that the server keeps, as plain tensors. Save it, and assign it to continue from it."""
        held = self._held
        buffers = {f"buffers/{k}": v for k, v in held.buffers.items()}
        return _separate({"x": held.x, **flatten_states(held.state), **buffers, "round": torch.tensor(self.round)})

    @state.setter
    def state(self, tensors: Mapping[str, Tensor]) -> None:
        named = _read_state(tensors, self.state, f"server of {self.algorithm.name}")
        parts: States = {p.name: {} for p in self.algorithm.parts}
        parts |= {k: v for k, v in nest_states(named).items() if k in parts}
        buffers = {k: named[f"buffers/{k}"] for k in self.task.buffers}
        self._held, self._prepared = turn.Server(named["x"], parts, buffers), None
        self.round = int(named["round"])


def _read_message(message: Mapping[str, Tensor], task: Task, algorithm: Algorithm) -> Sent:
    if not isinstance(message, Mapping):
        raise SteppeError(f"The message is {quote(message)}: give what server.send() returned.")
    if lost := {"x", "lr", "round"} - message.keys():
        raise SteppeError(f"The message lacks {', '.join(sorted(lost))}: give what server.send() returned.")
    here = {k: torch.as_tensor(v, device=task.x0.device) for k, v in message.items()}
    if here["x"].shape != task.x0.shape:
        raise SteppeError(f"The message's model has {here['x'].numel()} parameters, but this client's has "
                          f"{task.x0.numel()}: build the same model on both sides.")  # fmt: skip
    sent = read_sent(here, here["lr"].to(task.x0), here["round"].to(task.x0))
    needed = {p.name for p in algorithm.parts if p.down}
    if lost := needed - sent.down.keys():
        raise SteppeError(f"The message lacks what {', '.join(sorted(lost))} needs: use the same algorithm on both "
                          "sides.")  # fmt: skip
    if strange := sent.down.keys() - needed:
        raise SteppeError(f"The message is for {', '.join(sorted(strange))}, which {algorithm.name} does not have: use "
                          "the same algorithm on both sides.")  # fmt: skip
    return sent


def _read_state(tensors: Mapping[str, Tensor], wanted: Tensors, whose: str) -> Tensors:
    """Return a saved state on the device of the present one; refuse other names, shapes, and numbers."""
    if tensors.keys() != wanted.keys():
        raise SteppeError(f"The state of a {whose} holds {', '.join(wanted) or 'nothing'}, but this one "
                          f"{', '.join(tensors)}.")  # fmt: skip
    read = {k: torch.as_tensor(v, device=wanted[k].device) for k, v in tensors.items()}
    for name, value in read.items():
        if value.shape != wanted[name].shape or value.dtype != wanted[name].dtype:
            raise SteppeError(f"The state of a {whose} has {name} of shape {tuple(wanted[name].shape)} and type "
                              f"{name_type(wanted[name])}, but this one of {tuple(value.shape)} and "
                              f"{name_type(value)}.")  # fmt: skip
        if not bool(value.isfinite().all()):
            raise SteppeError(f"The state has values in {name} that are not finite.")
    return read


def _separate(tensors: Tensors) -> Tensors:
    """Return tensors of which no two share memory, as safetensors needs them."""
    seen: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        shared = (place := tensor.untyped_storage().data_ptr()) in seen
        apart[name] = tensor.clone(memory_format=torch.contiguous_format) if shared else tensor.contiguous()
        seen.add(place)
    return apart


def _check_samples(samples: Any, whose: str) -> None:
    if not 0 < _as_number(samples) < torch.inf:
        raise SteppeError(f"{whose} {quote(samples)}, but it is a client's weight: give a number above 0.")


def _as_number(given: Any) -> float:
    """Return a number of any kind, also a tensor's; nan for anything else."""
    try:
        return float(given)
    except (TypeError, ValueError, RuntimeError):
        return torch.nan


def _read_batch(pair: Any, x: Tensor) -> dict[str, Any]:
    named = dict(pair) if isinstance(pair, dict) else dict(zip(("x", "y"), pair, strict=True))
    return {key: tree_map(lambda t: _move_like(torch.as_tensor(t), x), value)
            for key, value in named.items()}  # fmt: skip


def _move_like(tensor: Tensor, x: Tensor) -> Tensor:
    return tensor.to(x.device, x.dtype if tensor.is_floating_point() else None)
