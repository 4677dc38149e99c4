"""The local rules as optimisers for any PyTorch loop: SAM, ASAM, and all of the catalogue that need no server.

    optimiser = steppe.optim.SAM(model.parameters(), lr=0.1, rho=0.05, momentum=0.9)
    loss = optimiser.step(closure)      # the closure computes the loss and calls backward; it is called twice

A step is `core.client.step`, with the closure in place of the model, so it is the step that a simulated client takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from steppe.core.algorithm import Algorithm
from steppe.core.client import Live, Sent, step
from steppe.core.errors import CompositionError, SettingError, SteppeError, quote
from steppe.core.layout import Layout
from steppe.core.part_class_checks import HOOKS
from steppe.core.wire import list_states, read_states
from steppe.engine.build import build_algorithm
from steppe.engine.read_call import Added, Asked, read_call

LOCAL = {"gradient", "round_state", "stride", "local_steps", "objection"}  # hooks that a lone optimiser can run


def optimiser(algorithm: Asked, params: Any, lr: float, *, add: Added = (), **options: Any) -> Optimiser:
    """Make an optimiser from an algorithm that needs no server, such as "fedsam:rho=0.05" or your own part.

    params   as torch.optim takes them: tensors, or pairs of name and tensor
    options  settings of the algorithm, and the run's keys of the local optimiser: momentum, weight_decay, clip,
             optimiser ("sgd" or "adamw")
    """
    call = read_call(algorithm, add, {"weight_decay": 0.0, **options, "lr": lr})
    return Optimiser(params, build_algorithm(call.config, call.algorithm, call.add), lr)


class Optimiser(torch.optim.Optimizer):
    """A torch optimiser around an algorithm without a server. All parameters are one group."""

    def __init__(self, params: Any, algorithm: Algorithm, lr: float) -> None:
        for part in algorithm.parts:
            if foreign := [hook for hook in HOOKS if part.has(hook) and hook not in LOCAL] or part.needs:
                raise CompositionError(f"{algorithm.name}: '{part.name}' has more than a local step "
                                       f"({', '.join(sorted(foreign))}): use steppe.client, steppe.server")  # fmt: skip
        if algorithm.batches_per_step > 1 or algorithm.frozen or algorithm.alone:
            raise CompositionError(f"{algorithm.name} takes several batches per step, freezes parameters or keeps "
                                   "clients alone, which an optimiser cannot do: use steppe.client")  # fmt: skip
        if isinstance(lr, str) or not 0 <= lr < torch.inf:
            raise SettingError(f"lr is {quote(lr)}, but must be a number, at least 0", "lr")
        pairs = [p if isinstance(p, tuple) else (f"parameter{i}", p) for i, p in enumerate(_list_params(params))]
        pairs = [(name, p) for name, p in pairs if p.requires_grad]  # nothing decays what is frozen
        if not pairs:
            raise SteppeError("There are no parameters to optimise.")
        super().__init__([p for _, p in pairs], {"lr": lr})
        self.algorithm = algorithm
        self.layout = Layout({name: p.shape for name, p in pairs}, head="")
        self.params = [p for _, p in pairs]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step and return the loss at the parameters before it. The closure calls backward."""
        if closure is None:
            raise SteppeError("step needs a closure that computes the loss, calls backward and returns the loss, "
                              "because the gradient is taken at several points.")  # fmt: skip
        with torch.no_grad():
            w = self.layout.join(p.detach() for p in self.params)
            kept = self.state[self.params[0]]
            lr, index = w.new_tensor(self.param_groups[0]["lr"]), kept.get("index", w.new_zeros(()))
            fresh = {p.name: p.round_state(w) for p in self.algorithm.parts}
            held = read_states({k: v for k, v in kept.items() if k != "index"}, "parts")
            parts = {name: {**tensors, **held.get(name, {})} for name, tensors in fresh.items()}
            live = Live(w, parts, {}, {"loss": torch.zeros_like(lr)})
            sent = Sent(w, {}, {}, lr, torch.zeros_like(lr))
            losses: list[Any] = []

            def differentiate(_: Any, at: Tensor) -> tuple[Tensor, Tensor, Any]:
                """Differentiate the closure instead of a model, which the core does not have here."""
                with _place(self, at), torch.enable_grad():
                    loss = closure()
                    if loss is None or all(p.grad is None for p in self.params):
                        raise SteppeError("The closure must call backward on the loss, and return the loss.")
                    losses.append(loss)
                    zero = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.params]
                    return self.layout.join(zero), torch.as_tensor(loss).detach(), {}

            after = step(self.algorithm, _Bare(self.layout), sent, live, ({},) * self.algorithm.batches_per_step,  # type: ignore[arg-type]
                         index, index + 1, differentiate)  # fmt: skip
            self._put(after.w)
            kept.update(list_states(after.parts, "parts"), index=index + 1)
        return losses[0]

    def _put(self, w: Tensor) -> None:
        for p, piece in zip(self.params, self.layout.pieces(w), strict=True):
            p.copy_(piece)


class SAM(Optimiser):
    """Sharpness-aware minimisation (Foret et al., ICLR 2021), the local step of FedSAM."""

    def __init__(self, params: Any, lr: float, rho: float = 0.05, momentum: float = 0.0, weight_decay: float = 0.0,
                 clip: float | None = None) -> None:  # fmt: skip
        super().__init__(params, _make_algorithm("sam", rho, momentum, weight_decay, clip), lr)


class ASAM(Optimiser):
    """Adaptive SAM (Kwon et al., ICML 2021), the local step of FedASAM. Give named parameters for `on="weight"`."""

    def __init__(self, params: Any, lr: float, rho: float = 0.5, eta: float = 0.0, on: str = "all",
                 momentum: float = 0.0, weight_decay: float = 0.0, clip: float | None = None) -> None:  # fmt: skip
        super().__init__(params, _make_algorithm(f"asam:eta={eta},on={on}", rho, momentum, weight_decay, clip), lr)


def _make_algorithm(part: str, rho: float, momentum: float, weight_decay: float, clip: float | None) -> Algorithm:
    added = f"{part}{',' if ':' in part else ':'}rho={rho}"
    call = read_call("fedavg", added, {"momentum": momentum, "weight_decay": weight_decay, "clip": clip})
    return build_algorithm(call.config)


class _Bare:
    """A task with only a layout: the closure is the model and the loss."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def hold_parameters(self) -> AbstractContextManager[None]:
        return nullcontext()


@contextmanager
def _place(of: Optimiser, at: Tensor) -> Iterator[None]:
    """Put the parameters at a point, without gradients, and restore them afterwards."""
    before = [p.detach().clone() for p in of.params]
    of._put(at)
    for p in of.params:
        p.grad = None
    try:
        yield
    finally:
        with torch.no_grad():
            for p, old in zip(of.params, before, strict=True):
                p.copy_(old)


def _list_params(params: Any) -> Iterable[Any]:
    if isinstance(params, torch.nn.Module | Tensor):
        raise SteppeError("params must be several parameters: give model.parameters().")
    given = list(params) if isinstance(params, Iterable) else [params]
    if any(isinstance(p, dict) for p in given):
        raise SteppeError("Groups of parameters would each have their own norm: give one list of parameters.")
    odd = [p for p in given if not isinstance(p[1] if isinstance(p, tuple) and len(p) == 2 else p, Tensor)]
    if odd:
        raise SteppeError(f"params has {quote(odd[0])}: give model.parameters() or model.named_parameters().")
    return given
