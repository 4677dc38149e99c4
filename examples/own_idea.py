"""Your own idea, compared with FedAvg over seeds.

A part of twenty lines, a table, its cost, and a report. The client remembers the direction of its last round, and takes
its gradients a little ahead in that direction.
"""

from dataclasses import dataclass

from torch import Tensor

import steppe


@dataclass(frozen=True)
class LookBack(steppe.Part):
    """Take gradients ahead, along the client's last update."""

    name = "look_back"
    rho: float = 0.05

    def client_state(self, x: Tensor) -> dict[str, Tensor]:
        return {"last": x * 0}  # kept by every client between its rounds

    def gradient(self, grad: steppe.Oracle, w: Tensor, s: steppe.LocalStep) -> Tensor:
        return grad(w + self.rho * steppe.unit(s.state["last"]))

    def finish(self, delta: Tensor, s: steppe.ClientRound) -> Tensor:
        s.state["last"] = delta
        return delta


def main(rounds: int = 5, seeds: int = 2, out: str = "runs/own_idea") -> None:
    found = steppe.compare(["fedavg", LookBack(0.05), "fedsam"], "mlp", seeds=seeds, rounds=rounds, out=out)
    print(found.table())
    print(steppe.cost(["fedavg", LookBack()]).table())
    print("wrote", found.report(f"{out}/report.md"))


if __name__ == "__main__":
    main()
