"""A loop by hand with steppe.client and steppe.server is the simulator, to the last bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load, save
from torch import Tensor

import steppe
from steppe.core.errors import SteppeError
from tests.scene import blobs, seeded

KEYS: dict[str, Any] = {"clients": 4, "per_round": 2, "rounds": 3, "epochs": 1, "batch": 16, "partition": "iid",
                        "workers": 0, "dtype": "float64", "momentum": 0.5, "clip": 10.0}  # fmt: skip


def by_hand(name: str, result: steppe.Result, one_object: bool) -> tuple[Tensor, Any]:
    """The run's rounds once more, with its batches and clients, in a loop that knows only dicts of tensors."""
    federation, algorithm = result.experiment.federation, result.experiment.algorithm
    server = steppe.server(name, seeded(), samples=federation.samples, **KEYS)
    states: dict[int, dict[str, Tensor]] = {}
    for record in result.history:
        t, message, replies = record["round"] - 1, server.send(), []
        message = {k: v.clone() for k, v in message.items()}
        assert all(isinstance(v, Tensor) for v in message.values())
        for i in record["participants"]:
            client = steppe.client(name, seeded(seed=7), state=states.get(i), **KEYS)  # another initial model: not used
            plan = federation.plan([i], t, algorithm.local_steps, algorithm.batches_per_step)
            batches = [federation.batch(ix[m], k)
                       for ix, m, k in zip(plan.index[0], plan.mask[0], plan.keys[0], strict=True)]  # fmt: skip
            client.begin(message, steps=plan.steps[0])
            for k in range(0, len(batches), algorithm.batches_per_step):
                several = batches[k : k + algorithm.batches_per_step]
                if len(several) == 1 and one_object:
                    client.step(several[0]["x"], several[0]["y"])
                else:
                    client.step(*several)
            replies.append({k: v.clone() for k, v in client.end(samples=federation.sizes[i]).items()})
            states[i] = client.state
        server.aggregate(replies)
        saved = {k: v.clone() for k, v in server.state.items()}  # and from here in another process, perhaps
        server = steppe.server(name, seeded(), samples=federation.samples, **KEYS)
        server.state = saved
    return server.state["x"], server.model


@pytest.mark.parametrize("name", ["fedavg", "fedsam", "scaffold", "fedsmoo", "fedlesam", "mofedsam", "moon", "fedadam",
                                  "fedsam+ema", "perfedavg"])  # fmt: skip
def test_the_same_numbers_as_the_simulator(name: str) -> None:
    result = steppe.run(name, seeded(), blobs(), **KEYS)
    x, model = by_hand(name, result, one_object=name == "fedsam")
    assert torch.equal(x, result.server.x)
    for key, value in model.state_dict().items():
        assert torch.equal(value, result.model.state_dict()[key])


class Sends(steppe.Part):
    """What it sends and keeps is the update itself."""

    name = "sends"

    def client_state(self, x: Tensor) -> dict[str, Tensor]:
        return {"last": x, "first": x}

    def finish(self, delta: Tensor, s: steppe.ClientRound) -> Tensor:
        s.up["delta"] = s.state["last"] = s.state["first"] = delta
        return delta


def test_messages_and_states_share_no_memory_as_safetensors_asks() -> None:
    server, client = steppe.server(Sends(), seeded(), clients=2), steppe.client(Sends(), seeded())
    client.begin(load(save(server.send())), steps=1)
    client.step(torch.randn(4, 6), torch.arange(4) % 3)
    reply = client.end()
    assert load(save(reply)).keys() == reply.keys()
    client.state = load(save(client.state))
    server.aggregate([reply])
    server.state = load(save(server.state))


def test_a_narrow_model_is_trained_in_float32_as_in_a_run() -> None:
    server, client = (make("fedavg", seeded().bfloat16(), **more)
                      for make, more in ((steppe.server, {"clients": 2}), (steppe.client, {})))  # fmt: skip
    client.begin(server.send(), steps=301)  # a number of steps that bfloat16 rounds
    for _ in range(301):
        client.step(torch.ones(1, 6), torch.zeros(1, dtype=torch.int64))
    assert {v.dtype for v in client.end().values()} == {torch.float32}


def test_a_batch_is_run_in_pieces_if_asked() -> None:
    calls: list[int] = []
    model = seeded()
    model.register_forward_hook(lambda *_: calls.append(0))
    client = steppe.client("fedavg", model, accumulate=2)
    client.begin(steppe.server("fedavg", seeded(), clients=2).send(), steps=1)
    client.step(torch.randn(4, 6), torch.arange(4) % 3)
    assert len(calls) == 2


def test_wrong_use_is_a_sentence() -> None:
    x, y = torch.randn(8, 6), torch.zeros(8, dtype=torch.int64)
    server, client = steppe.server("scaffold", seeded(), clients=4), steppe.client("scaffold", seeded())
    with pytest.raises(SteppeError, match="not in a round: call begin"):
        client.step(x, y)
    with pytest.raises(SteppeError, match="nothing to aggregate yet: call send"):
        server.aggregate([])
    message = server.send()
    with pytest.raises(SteppeError, match="The message is None: give what"):
        client.begin(None, steps=1)  # type: ignore[arg-type]
    with pytest.raises(SteppeError, match="message lacks lr, round"):
        client.begin({"x": message["x"]}, steps=1)
    with pytest.raises(SteppeError, match="lacks what control_variates needs: use the same algorithm"):
        client.begin({k: v for k, v in message.items() if not k.startswith("down/")}, steps=1)
    with pytest.raises(SteppeError, match="message's model has 3 parameters"):
        client.begin({**message, "x": torch.zeros(3)}, steps=1)
    with pytest.raises(SteppeError, match="message is for control_variates, which fedavg does not have"):
        steppe.client("fedavg", seeded()).begin(message, steps=1)
    for steps in (0, -1, 1.5, "a"):
        with pytest.raises(SteppeError, match=f"steps is {steps!r}, but must be a whole number"):
            client.begin(message, steps=steps)
    client.begin(message, steps=1)
    with pytest.raises(SteppeError, match="given 1 steps, but 0 were taken"):
        client.end()
    with pytest.raises(SteppeError, match="takes 1 batches, each a pair"):
        client.step((x, y), (x, y))
    for wrong, sentence in (((x[:, :3], y), r"fails on inputs of shape \(3,\) and targets \(8,\): RuntimeError: mat1"),
                            ((x, y + 7), "fails on inputs .* Target 7 is out of bounds"),
                            ((x, ["a"] * 8), "a pair .* this one is not"), ((x,), "a pair")):  # fmt: skip
        with pytest.raises(SteppeError, match=sentence):
            client.step(*wrong)
    assert client.step(x, y) == pytest.approx(F.cross_entropy(seeded()(x), y).item())  # none of these was a step
    with pytest.raises(SteppeError, match="all of them were taken: call end"):
        client.step(x, y)
    for few in (-3, "many"):
        with pytest.raises(SteppeError, match=f"samples is {few!r}, but it is a client's weight"):
            client.end(samples=few)  # type: ignore[arg-type]
        with pytest.raises(SteppeError, match=f"samples is {few!r}, but it is"):
            steppe.server("fedavg", seeded(), clients=4, samples=few)  # type: ignore[arg-type]
    reply = client.end(samples=torch.tensor(1))  # type: ignore[arg-type]  # a number of any kind
    for samples in (0.0, -3.0, float("nan")):
        with pytest.raises(SteppeError, match=r"Reply 1 has samples \S+, but it is a client's weight"):
            server.aggregate([reply, {**reply, "samples": torch.tensor(samples)}])
    for one in (reply, None):
        with pytest.raises(SteppeError, match="takes a list of replies"):
            server.aggregate(one)  # type: ignore[arg-type]
    with pytest.raises(SteppeError, match="Reply 1 is None: give what"):
        server.aggregate([reply, None])  # type: ignore[list-item]
    with pytest.raises(SteppeError, match="Reply 0 lacks loss"):
        server.aggregate([{k: v for k, v in reply.items() if k != "loss"}])
    with pytest.raises(SteppeError, match="does not fit scaffold and this model: its update has shape"):
        server.aggregate([{**reply, "update": torch.zeros(3)}])
    with pytest.raises(SteppeError, match="Reply 1 is not finite"):
        server.aggregate([reply, {**reply, "update": reply["update"] * float("nan")}])
    server.aggregate([{k: v.numpy() for k, v in reply.items()}])  # arrays do, too
    assert server.round == 1
    with pytest.raises(SteppeError, match="holds control_variates/c, but this one nonsense"):
        client.state = {"nonsense": x}
    client.state = {k: v.numpy() for k, v in client.state.items()}  # type: ignore[misc]
    for mine in (client, server):
        name, kept = next(iter(mine.state.items()))
        for other, sentence in ((kept[:3], "of shape"), (kept.double(), "float64"), (kept * torch.nan, "not finite")):
            with pytest.raises(SteppeError, match=rf"state .*{name}.*{sentence}"):
                mine.state = {**mine.state, name: other}
    for rate in (-1, float("nan"), "fast"):
        with pytest.raises(SteppeError, match=f"lr is {rate!r}, but must be a number, at least 0"):
            server.send(lr=rate)  # type: ignore[arg-type]
    for wrong in ("cnn", None, torch.nn.Linear):
        with pytest.raises(SteppeError, match=r"give an nn\.Module"):
            steppe.client("fedavg", wrong)  # type: ignore[arg-type]
    with pytest.raises(SteppeError, match="did you mean 'fedsam'"):
        steppe.client("fedsamm", seeded())


def test_a_step_takes_several_inputs_by_name() -> None:
    class Both(torch.nn.Linear):
        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return super().forward(torch.cat([left, right], 1))

    model, (x, y, *_) = Both(6, 3), blobs()
    message = steppe.server("fedavg", model, clients=2).send()
    losses = []
    for inputs in ({"left": x[:, :2], "right": x[:, 2:]}, (x[:, :2], x[:, 2:])):
        client = steppe.client("fedavg", model)
        client.begin(message, steps=1)
        losses.append(client.step(inputs, y))
    assert losses == pytest.approx([F.cross_entropy(model(x[:, :2], x[:, 2:]), y).item()] * 2)


def test_without_replies_nothing_changes() -> None:
    server = steppe.server("feddyn", seeded(), clients=4)
    before = {k: v.clone() for k, v in server.state.items()}
    server.send()
    server.aggregate([])
    after = server.state
    assert int(after.pop("round")) == 1
    assert all(torch.equal(before[k], v) for k, v in after.items())


# --- optimisers


@pytest.mark.parametrize(("name", "make"), [
    ("fedsam:rho=0.2", lambda p: steppe.optim.SAM(p, 0.1, rho=0.2, momentum=0.5, weight_decay=0.01)),
    ("fedasam:rho=0.3", lambda p: steppe.optimiser("fedasam:rho=0.3", p, 0.1, momentum=0.5, weight_decay=0.01)),
    ("fedavg", lambda p: steppe.optimiser("fedavg", p, 0.1, momentum=0.5, weight_decay=0.01)),
])  # fmt: skip
def test_an_optimiser_takes_the_clients_steps(name: str, make: Any) -> None:
    x, y = torch.randn(5, 8, 6, dtype=torch.float64), torch.randint(0, 3, (5, 8))
    options = {"lr": 0.1, "momentum": 0.5, "weight_decay": 0.01}
    server = steppe.server(name, seeded().double(), clients=2, **options)
    client = steppe.client(name, seeded().double(), **options)
    client.begin(server.send(), steps=5)
    model = seeded().double()
    optimiser = make(model.named_parameters())
    at = 0

    def closure() -> Tensor:
        loss = F.cross_entropy(model(x[at]), y[at])
        loss.backward()
        return loss

    schedule = torch.optim.lr_scheduler.ConstantLR(optimiser, factor=1.0)
    for at in range(5):
        assert optimiser.step(closure).item() == pytest.approx(client.step(x[at], y[at]), abs=1e-12)
        schedule.step()
        if at == 2:  # as after a restart
            saved = optimiser.state_dict()
            optimiser = make(model.named_parameters())
            optimiser.load_state_dict(saved)
    for key, value in client.model.state_dict().items():
        torch.testing.assert_close(model.state_dict()[key], value, rtol=0, atol=1e-12)


def test_what_is_no_local_optimiser_is_refused() -> None:
    parameters = list(seeded().parameters())
    for name in ("scaffold", "fedlesam", "moon", "fedavg+man", "fedadam", "perfedavg"):
        with pytest.raises(SteppeError, match=r"steppe\.client"):
            steppe.optimiser(name, parameters, 0.1)
    for rate in (-0.1, float("nan"), "fast"):
        with pytest.raises(SteppeError, match=f"lr is {rate!r}, but must be a number, at least 0"):
            steppe.optim.SAM(parameters, rate)  # type: ignore[arg-type]
    for wrong in (["a"], 3, [None]):
        with pytest.raises(SteppeError, match=r"params has .*: give model\.parameters\(\)"):
            steppe.optim.SAM(wrong, 0.1)
    with pytest.raises(SteppeError, match=r"give model\.parameters\(\)"):
        steppe.optim.SAM(seeded(), 0.1)
    for closure in (
        lambda: None,
        lambda: sum(p.sum() for p in parameters),
        lambda: sum(p.sum() for p in parameters).backward(),
    ):
        with pytest.raises(SteppeError, match="must call backward on the loss, and return the loss"):
            steppe.optim.SAM(parameters, 0.1).step(closure)
    with pytest.raises(SteppeError, match="step needs a closure"):
        steppe.optim.SAM(parameters, 0.1).step()
    with pytest.raises(SteppeError, match="rho of part 'sam' is -1"):
        steppe.optim.SAM(parameters, 0.1, rho=-1)
    with pytest.raises(SteppeError, match="one list of parameters"):
        steppe.optim.ASAM([{"params": parameters}], 0.1)


def test_an_optimiser_leaves_frozen_parameters_alone() -> None:
    """As those of torch.optim do: weight decay would otherwise shrink them."""
    model = seeded()
    first = next(model.parameters()).requires_grad_(False)
    before = first.clone()
    optimiser = steppe.optim.SAM(model.parameters(), 0.1, weight_decay=0.5)

    def closure() -> Tensor:
        loss = model(torch.ones(4, 6)).square().sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    assert torch.equal(first, before)
    with pytest.raises(SteppeError, match="no parameters to optimise"):
        steppe.optim.SAM([first], 0.1)
