"""An algorithm is a tuple of parts, innermost first."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from steppe.core.errors import CompositionError
from steppe.core.layout import Tensors
from steppe.core.part import Part

States = dict[str, Tensors]  # part name -> its tensors


@dataclass(frozen=True)
class Algorithm:
    """Parts, innermost first: each wraps the gradient oracle of those before it, so their order matters."""

    parts: tuple[Part, ...]  # the local optimiser is the last
    name: str = "custom"  # for records and errors

    def __post_init__(self) -> None:
        names = [p.name for p in self.parts]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            self._refuse(
                f"two parts are named {', '.join(map(repr, twice))}, so they would share one state: "
                "keep one of them, or rename your own part"
            )
        for i, inner in enumerate(self.parts):
            # A part around the optimiser that calls it twice repeats the optimiser's step on purpose.
            outer = [p.name for p in self.parts[i + 1 :] if p.asks > 1 and not p.around_optimiser]
            if inner.once and outer:
                self._refuse(
                    f"'{inner.name}' updates its state inside the gradient, and '{outer[0]}' outside it would compute "
                    f"that gradient more than once per step: put '{outer[0]}' inside '{inner.name}', or leave one out"
                )
        if len({p.frozen for p in self.parts if p.frozen}) > 1:
            self._refuse("one part freezes the head and another the body: nothing would be trained")
        reducing = [p.name for p in self.using("reduce")]
        if len(reducing) > 1:
            self._refuse(f"'{reducing[0]}' and '{reducing[1]}' both define how the clients' uploads are combined: "
                         "keep one of them")  # fmt: skip
        judging = [p.name for p in self.using("evaluated")]
        if len(judging) > 1:
            self._refuse(f"'{judging[0]}' and '{judging[1]}' both define which model is evaluated: "
                         "keep one of them")  # fmt: skip
        if self.guards and self.alone:
            self._refuse(f"clients that train alone upload nothing for '{self.guards[0].name}' to act on: leave it out")
        if self.alone and (served := [p.name for p in self.parts if p.down or p.has("server")]):
            self._refuse(f"clients that train alone have no server for '{served[0]}' to act on: leave it out, or use "
                         "fedavg")  # fmt: skip
        for p in self.parts:
            if why := p.objection(tuple(other for other in self.parts if other is not p)):
                self._refuse(why)

    def _refuse(self, why: str) -> None:
        raise CompositionError(f"{self.name}: {why}")

    def plus(self, *parts: Part, outermost: bool = False) -> Algorithm:
        """Return the algorithm with these parts added: closest to the loss, or around everything."""
        together = self.parts + parts if outermost else parts + self.parts
        return Algorithm(together, self.name)

    def using(self, hook: str) -> tuple[Part, ...]:
        """Return the parts that implement this hook."""
        if hook not in self._using:
            self._using[hook] = tuple(p for p in self.parts if p.has(hook))
        return self._using[hook]

    @cached_property
    def _using(self) -> dict[str, tuple[Part, ...]]:
        return {}

    @cached_property
    def needs(self) -> frozenset[str]:
        return frozenset().union(*(p.needs for p in self.parts))

    @cached_property
    def frozen(self) -> str:
        return next((p.frozen for p in self.parts if p.frozen), "")

    @cached_property
    def alone(self) -> bool:
        return any(p.alone for p in self.parts)

    def update_differs(self, part: Part) -> bool:
        """Return whether a client's update is not w − x, or a part other than this one moves its start."""
        return any(p is not part for p in self.using("start")) or any(p.alters_update for p in self.parts)

    @cached_property
    def guards(self) -> tuple[Part, ...]:
        """Return the parts that act on single clients' uploads before the server's rules do."""
        return (*self.using("reduce"), *self.using("screen"))

    @cached_property
    def repeats_optimiser(self) -> bool:
        """Return whether a part takes the local optimiser's step more than once per step of its own."""
        return any(p.around_optimiser and p.asks > 1 for p in self.parts)

    @cached_property
    def batches_per_step(self) -> int:
        return max((p.batches_per_step for p in self.parts), default=1)

    def server_state(self, x: Tensor) -> States:
        return {p.name: p.server_state(x) for p in self.parts}

    def client_state(self, x: Tensor) -> States:
        return {p.name: {**p.client_state(x), **(p.round_state(x) if self.alone else {})} for p in self.parts}

    def local_steps(self, epochs: int, batches: int) -> int:
        chosen = self.using("local_steps")
        return chosen[-1].local_steps(epochs, batches) if chosen else epochs * batches

    def counted(self, replies: int) -> int:
        for p in self.using("counted"):
            replies = p.counted(replies)
        return replies
