"""A user-defined local optimiser: a function on flat vectors, the outermost part.

    d = clip_c(g(w)) + λ w              as in `sgd.py`
    direction = rule(d, w, M, k)        k = 0, 1, …, the number of the step in its round; M is `memory`

The memory is a dict of vectors that the rule reads and writes, such as memory["m"]; they are 0 at the start of every
round, are never uploaded, and are found by calling the rule once. Under an executor that batches clients the rule runs
under vmap: it must not read values (`if`, `.item()`) and must not write in place.

`function`   the name of the rule, for the records.
`memory`     the names of the vectors that the rule remembers.
`decay`      λ, the weight decay.
`clip`       c, the largest norm of the direction before decay; none if not set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from steppe.core.errors import SettingError
from steppe.core.part import Part, make_placeholder, object_to_readers
from steppe.core.ranges import Amount, Positive
from steppe.core.scopes import LocalStep, Oracle

Rule = Callable[[Tensor, Tensor, dict[str, Tensor], Tensor], Tensor]


class _Zeros(dict[str, Tensor]):
    """A memory in which everything is 0 before it is written."""

    def __init__(self, like: Tensor) -> None:
        super().__init__()
        self.like = like

    def __missing__(self, name: str) -> Tensor:
        self[name] = torch.zeros_like(self.like)
        return self[name]


@dataclass(frozen=True)
class OwnOptimiser(Part):
    name = "own_optimiser"
    once = True
    function: str = ""  # its name; the function itself is not a setting
    memory: tuple[str, ...] = ()
    decay: Amount = 0.0
    clip: Positive | None = None

    @staticmethod
    def of(rule: Rule, function: str, decay: float, clip: float | None) -> OwnOptimiser:
        """Return the part of a rule; refuse one that does not work on vectors."""
        g, memory = torch.linspace(-1, 1, 1009), _Zeros(torch.zeros(1009))  # not the length of anything
        try:
            found = rule(g, g.clone(), memory, torch.tensor(0.0))
        except Exception as error:
            raise SettingError(f"optimiser {function} fails on vectors: {error}. It is called as rule(gradient, w, "
                               "memory, k) and returns a direction", "optimiser") from error  # fmt: skip
        vectors = {"its result": found, **memory}
        like = g.shape, g.dtype
        wrong = next((k for k, v in vectors.items() if not isinstance(v, Tensor) or (v.shape, v.dtype) != like), None)
        if wrong is not None:
            raise SettingError(f"optimiser {function}: {wrong} must be a vector like the gradient, of its length and "
                               "type", "optimiser")  # fmt: skip
        part = OwnOptimiser(function, tuple(sorted(memory)), decay, clip)
        object.__setattr__(part, "rule", rule)
        return part

    def objection(self, others: tuple[Part, ...]) -> str:
        return object_to_readers(others, "the steps of your own optimiser need not be along gradients")

    def round_state(self, x: Tensor) -> dict[str, Tensor]:
        return {name: make_placeholder(x) for name in self.memory}

    def gradient(self, grad: Oracle, w: Tensor, s: LocalStep) -> Tensor:
        d = grad(w)
        if self.clip is not None:
            d = d * (self.clip / (torch.linalg.vector_norm(d) + 1e-6)).clamp(max=1)
        memory = {name: s.state[name] for name in self.memory}
        rule: Rule = self.rule  # type: ignore[attr-defined]
        found = rule(d + (self.decay + sum(s.decay.values())) * s.w, s.w, memory, s.index)
        s.state.update(memory)
        return found
