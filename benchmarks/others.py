"""FedAvg on the same job in two other frameworks, if they are installed: Flower's simulation and pfl-research.

Both get the plain loop's initial model, data, optimiser and clients of each round. After the same number of rounds,
their accuracy equals the loop's up to the order of the batches. Nothing in their settings slows them down: there is no
evaluation on clients, and Flower uses one thread per actor. On a GPU they have the same conditions as our executors:
TF32, and images as bytes on the GPU. Flower's actors share the GPU; pfl trains one client after the other, and does not
shuffle between epochs.

`make setup` installs neither. To install them into the same environment:

    .venv/bin/pip install 'ray==2.55.1' 'multiprocess<0.71' 'prv-accountant<0.3'
    .venv/bin/pip install --no-deps 'pfl==0.6.0'

Flower (extra `flower`) uses Ray for its simulation. pfl is installed separately because it requires dp-accounting below
0.6, but the extra `dp` is tested with 0.6. FedAvg does not use dp-accounting, so it works nevertheless; `pip check`
reports the conflict.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain, count
from typing import Protocol

import torch
from torch import Tensor, nn

from benchmarks import gpu_hand_loop, hand_loop, jobs
from steppe.models import build

Answer = Callable[[float | None], None]
ON_A_CARD = int(os.environ.get("FLOWER_ACTORS", "10"))  # Flower's clients that share a GPU at the same time


class Loop(Protocol):
    """What the other frameworks use of a plain loop."""

    model: nn.Module
    images: Tensor
    labels: Tensor
    clients: list[Tensor] | tuple[Tensor, ...]  # the samples of each client

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor: ...

    def train(self, samples: Tensor) -> dict[str, Tensor]: ...

    def evaluate(self) -> float: ...


Make = Callable[[], Loop]  # a function that other processes can import


def on_cpu() -> Loop:
    """Return the plain loop of the CPU job."""
    return hand_loop.HandLoop("fedavg", jobs.data()[0], tuned=False)


def on_gpu() -> Loop:
    """Return the plain loop of the GPU job."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return gpu_hand_loop.HandLoop(build("cnn", 10, (3, 32, 32)), jobs.cifar()[0], tuned=False, device=device)


JOBS: dict[str, tuple[jobs.Job, Make]] = {"fedavg": (jobs.CPU, on_cpu), "gpu": (jobs.GPU, on_gpu)}


@cache
def made(make: Make) -> Loop:
    """Return the plain loop, created once per process."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    return make()


def flower(job: jobs.Job, make: Make, rounds: int, answer: Answer, actors: int) -> None:
    """Run the job in Flower's simulation."""
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    client, server = ClientApp(), ServerApp()

    class SameClients(FedAvg):
        """FedAvg with its own messages and nodes; each message names the client that the node simulates."""

        def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid):  # type: ignore[no-untyped-def]
            messages = list(super().configure_train(server_round, arrays, config, grid))
            for message, one in zip(messages, job.active(server_round - 1), strict=True):
                message.content = RecordDict({"arrays": arrays, "config": ConfigRecord({**config, "client": one})})
            return messages

    @client.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        mine = made(make)
        mine.model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        state = mine.train(mine.clients[message.content["config"]["client"]])
        content = {"arrays": ArrayRecord(state), "metrics": MetricRecord({"num-examples": job.samples})}
        return Message(content=RecordDict(content), reply_to=message)

    judged = made(make)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        def after(number: int, arrays: ArrayRecord) -> MetricRecord:
            if number:  # 0 is the initial model
                judged.model.load_state_dict(arrays.to_torch_state_dict())
                answer(judged.evaluate() if job.evaluated or number == rounds else None)
            return MetricRecord({})

        strategy = SameClients(fraction_train=job.per_round / job.clients, fraction_evaluate=0.0)
        strategy.start(grid, ArrayRecord(judged.model.state_dict()), num_rounds=rounds, evaluate_fn=after)

    gpus = int(judged.images.is_cuda)
    run_simulation(server, client, job.clients, backend_config={
        "client_resources": {"num_cpus": 1, "num_gpus": gpus / ON_A_CARD},
        "init_args": {"num_cpus": actors, "num_gpus": gpus}})  # fmt: skip


def pfl(job: jobs.Job, make: Make, rounds: int, answer: Answer) -> None:
    """Run the job in pfl-research."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.internal.ops import pytorch_ops
    from pfl.internal.ops.selector import set_framework_module
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    mine = made(make)
    os.environ["PFL_PYTORCH_DEVICE"] = str(mine.images.device)  # avoids copies of tensors that are already there

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = mine.model

        def loss(self, x: Tensor, y: Tensor) -> Tensor:
            return mine.loss(self.model, x, y)

        def metrics(self, x: Tensor, y: Tensor) -> dict[str, object]:
            return {}

    class Clock(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):  # type: ignore[no-untyped-def]
            answer(mine.evaluate() if job.evaluated or central_iteration + 1 == rounds else None)
            return False, Metrics()

    set_framework_module(pytorch_ops)
    net = Net()
    drawn = chain.from_iterable(job.active(number) for number in count())

    def client(i: int) -> Dataset:
        return Dataset((mine.images[mine.clients[i]], mine.labels[mine.clients[i]]))

    users = FederatedDataset(client, lambda: next(drawn))

    def optimiser(parameters: Iterator[nn.Parameter], lr: float) -> torch.optim.SGD:
        return torch.optim.SGD(parameters, lr, job.momentum, weight_decay=job.decay)

    model = PyTorchModel(net, optimiser, torch.optim.SGD(net.parameters(), lr=1.0))
    recipe = NNAlgorithmParams(rounds, 10 * rounds, train_cohort_size=job.per_round, val_cohort_size=0)
    local = NNTrainHyperParams(job.batch, job.epochs, job.lr)
    FederatedAveraging().run(recipe, SimulatedBackend(users, users), model, local, None, [Clock()])
