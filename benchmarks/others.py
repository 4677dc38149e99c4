"""FedAvg on the same job in two other frameworks, where they are installed: Flower's simulation and pfl-research.

Both get the plain loop's own first model, data, optimiser and clients of each round, so that after as many rounds their
accuracy is the loop's, up to the order of the batches. They are told nothing that would slow them: no evaluation on
clients, one thread an actor for Flower.

Neither is installed by `make setup`. Into the same environment:

    .venv/bin/pip install -c constraints.txt 'ray==2.55.1' 'multiprocess<0.71' 'prv-accountant<0.3'
    .venv/bin/pip install --no-deps 'pfl==0.6.0'

Ray is what Flower (extra `flower`) simulates with. pfl stands by itself because it asks for dp-accounting below 0.6,
and the extra `dp` is tested with 0.6. FedAvg does not use it, so it runs all the same; `pip check` names the clash.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import chain, count

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
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    client, server = ClientApp(), ServerApp()

    class SameClients(FedAvg):
        """FedAvg's own messages to nodes of its own choice, and in each the client that the node shall be."""

        def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid):  # type: ignore[no-untyped-def]
            messages = list(super().configure_train(server_round, arrays, config, grid))
            for message, one in zip(messages, jobs.active(server_round - 1), strict=True):
                message.content = RecordDict({"arrays": arrays, "config": ConfigRecord({**config, "client": one})})
            return messages

    @client.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        mine = loop()
        mine.model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        state = mine._train(mine.clients[message.content["config"]["client"]])
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

        strategy = SameClients(fraction_train=jobs.PER_ROUND / jobs.CLIENTS, fraction_evaluate=0.0)
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
            last = central_iteration + 1 == rounds
            if last:
                mine.model.load_state_dict(model.pytorch_model.state_dict())
            answer(mine.evaluate() if last else None)
            return False, Metrics()

    set_framework_module(pytorch_ops)
    mine, net = loop(), Net()
    net.load_state_dict(mine.model.state_dict())
    drawn = chain.from_iterable(jobs.active(number) for number in count())

    def client(i: int) -> Dataset:
        return Dataset((mine.images[mine.clients[i]], mine.labels[mine.clients[i]]))

    users = FederatedDataset(client, lambda: next(drawn))
    model = PyTorchModel(net, lambda parameters, lr: torch.optim.SGD(parameters, lr, jobs.MOMENTUM),
                         torch.optim.SGD(net.parameters(), lr=1.0))  # fmt: skip
    recipe = NNAlgorithmParams(rounds, 10 * rounds, train_cohort_size=jobs.PER_ROUND, val_cohort_size=0)
    local = NNTrainHyperParams(jobs.BATCH, jobs.EPOCHS, jobs.LR)
    FederatedAveraging().run(recipe, SimulatedBackend(users, users), model, local, None, [Clock()])
