"""A Flower ClientApp with Steppe's client inside.

A node needs only `train`; `main` acts as the server and two nodes in this process, without a network.
Needs the extra `flower`.
"""

import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor, nn

import steppe

ALGORITHM = "scaffold"
app = ClientApp()


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def load_data(client: int) -> tuple[Tensor, Tensor]:
    g, y = torch.Generator().manual_seed(client), torch.arange(60) % 3
    return torch.randn(60, 6, generator=g) + 2 * nn.functional.one_hot(y, 6), y


@app.train()
def train(message: Message, context: Context) -> Message:
    x, y = load_data(int(context.node_config["client"]))
    kept = context.state.array_records.get("steppe")  # what this client keeps between its rounds
    client = steppe.client(ALGORITHM, make_model(), state=kept and kept.to_torch_state_dict())
    batches = list(zip(x.split(20), y.split(20), strict=True))
    client.begin(message.content.array_records["message"].to_torch_state_dict(), steps=len(batches))
    for pair in batches:
        client.step(*pair)
    reply = client.end(samples=len(y))
    context.state["steppe"] = ArrayRecord(client.state)
    return Message(RecordDict({"reply": ArrayRecord(reply)}), reply_to=message)


def main(rounds: int = 10) -> float:
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # as Flower's processes do at their start
    server = steppe.server(ALGORITHM, make_model(), clients=2, lr=0.1)
    contexts = {i: Context(1, i + 1, {"client": i}, RecordDict(), {}) for i in range(2)}
    for _ in range(rounds):
        content = RecordDict({"message": ArrayRecord(server.send())})
        replies = [app(Message(content, dst_node_id=i + 1, message_type="train"), contexts[i]) for i in contexts]
        server.aggregate([r.content.array_records["reply"].to_torch_state_dict() for r in replies])
    x, y = load_data(2)
    score = (server.model(x).argmax(1) == y).float().mean().item()
    print(f"{ALGORITHM} on two ClientApps, {rounds} rounds: {score:.1%} of another client's samples")
    return score


if __name__ == "__main__":
    main()
