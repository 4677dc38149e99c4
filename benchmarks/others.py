"""FedAvg on the same job in two other frameworks, where they are installed: Flower's simulation and pfl-research.

Both get the loop's own model, data and optimiser, and are told nothing that would slow them: no evaluation on
clients, one thread an actor for Flower.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import jobs
from benchmarks.hand_loop import CNN, HandLoop

Answer = Callable[[float | None], None]


@cache
def loop() -> HandLoop:
    """The plain loop's data and clients; made once in each process."""
    return HandLoop("fedavg", jobs.data()[0], tuned=False)


def flower(rounds: int, answer: Answer, actors: int) -> None:
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    client, server = ClientApp(), ServerApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        mine = loop()
        mine.model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        state = mine._train(mine.clients[context.node_config["partition-id"]])
        told = {"arrays": ArrayRecord(state), "metrics": MetricRecord({"num-examples": jobs.SAMPLES})}
        return Message(content=RecordDict(told), reply_to=message)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        def after(number: int, arrays: ArrayRecord) -> MetricRecord:
            if number:  # 0 is the initial model
                judged = loop()
                judged.model.load_state_dict(arrays.to_torch_state_dict())
                answer(judged.evaluate() if number == rounds else None)
            return MetricRecord({})

        strategy = FedAvg(fraction_train=jobs.PER_ROUND / jobs.CLIENTS, fraction_evaluate=0.0)
        strategy.start(grid, ArrayRecord(loop().model.state_dict()), num_rounds=rounds, evaluate_fn=after)

    run_simulation(server, client, jobs.CLIENTS, backend_config={
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": actors}})  # fmt: skip


def pfl(rounds: int, answer: Answer) -> None:
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

    class Net(CNN):
        def loss(self, x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(self(x), y)

        def metrics(self, x: Tensor, y: Tensor) -> dict[str, object]:
            return {}

    class Clock(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):  # type: ignore[no-untyped-def]
            mine.model.load_state_dict(model.pytorch_model.state_dict())
            answer(mine.evaluate() if central_iteration + 1 == rounds else None)
            return False, Metrics()

    set_framework_module(pytorch_ops)
    mine, net = loop(), Net()
    rng = np.random.default_rng(0)

    def client(i: int) -> Dataset:
        return Dataset((mine.images[mine.clients[i]], mine.labels[mine.clients[i]]))

    users = FederatedDataset(client, lambda: int(rng.integers(jobs.CLIENTS)))
    model = PyTorchModel(net, lambda parameters, lr: torch.optim.SGD(parameters, lr, jobs.MOMENTUM),
                         torch.optim.SGD(net.parameters(), lr=1.0))  # fmt: skip
    recipe = NNAlgorithmParams(rounds, 10 * rounds, train_cohort_size=jobs.PER_ROUND, val_cohort_size=0)
    local = NNTrainHyperParams(jobs.BATCH, jobs.EPOCHS, jobs.LR)
    FederatedAveraging().run(recipe, SimulatedBackend(users, users), model, local, None, [Clock()])
