"""A model with its loss, as a pure function of a flat parameter vector."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from steppe.core.inputs import Inputs, as_arguments, in_precision
from steppe.core.layout import Layout, Tensors
from steppe.core.metric import Each, Metric


class Outputs(NamedTuple):
    """What one forward pass shows: the prediction, and what parts asked to see on the way."""

    logits: Tensor
    features: Tensor | None  # what enters the head
    activations: tuple[Tensor, ...]  # of the model's taps, of every call
    buffers: Tensors  # running statistics after the pass


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    if outputs.ndim > 2:  # sequences come as (batch, time, classes)
        outputs = outputs.movedim(-1, 1)
    return F.cross_entropy(outputs, targets, reduction="none")


def mean_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.reshape(targets.shape) - targets).square()


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(-1) == targets).to(outputs.dtype)


LOSSES: dict[str, Each] = {"cross_entropy": cross_entropy, "mse": mean_squared_error}
METRICS: dict[str, Metric] = {
    "accuracy": Metric("accuracy", accuracy, percent=True),
    "mse": Metric("mse", mean_squared_error, lower=True),
}


class Task:
    """A module, split into what is trained (a flat vector), what is frozen, and running statistics.

    Parameters with `requires_grad=False` are constants: no vector of the algorithm contains them, so
    decay never touches them and costs leave them out. Integer buffers (batch norm's counters) stay as
    they were: no average of theirs means anything.
    """

    def __init__(self, model: nn.Module, loss: str | Each = "cross_entropy", metric: str | Each | Metric | None = None,
                 head: str | None = None, taps: Sequence[str] | None = None) -> None:  # fmt: skip
        self.loss_each = LOSSES[loss] if isinstance(loss, str) else loss
        self.own_loss = not isinstance(loss, str)
        self.own_head = head is not None
        self.metric = _metric(metric, loss)
        self.metric_each: Each = self.metric.each or self.loss_each
        self.head = head or getattr(model, "head", None) or _last_module_with_parameters(model)
        self.head = self.head if isinstance(self.head, str) else _last_module_with_parameters(model)
        self.taps = tuple(getattr(model, "taps", _activations(model)) if taps is None else taps)
        named = {k: p.detach() for k, p in model.named_parameters()}
        trained = {k for k, p in model.named_parameters() if p.requires_grad}
        self.layout = Layout({k: p.shape for k, p in named.items() if k in trained}, self.head)
        self.x0 = self.layout.flatten(named).clone()
        buffers = {k: b.detach().clone() for k, b in model.named_buffers()}
        self.buffers = {k: b for k, b in buffers.items() if b.is_floating_point()}
        self.constants = {k: p for k, p in named.items() if k not in trained}
        self.constants |= {k: b for k, b in buffers.items() if not b.is_floating_point()}
        self.learner = model.train()
        self.judge = copy.deepcopy(model).eval()  # dropout off, running statistics fixed: for teachers and tests
        self.fast: torch.dtype | None = None  # a lower precision for the student's passes; parameters keep theirs
        # Statistics over a batch see padding too, so such a model cannot be padded.
        self.uses_batch_statistics = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Task:
        """The same task elsewhere, or in another precision."""
        moved = copy.copy(self)
        moved.learner = copy.deepcopy(self.learner).to(device, dtype)
        moved.judge = copy.deepcopy(self.judge).to(device, dtype)
        moved.x0 = self.x0.to(device, dtype)
        moved.buffers = {k: b.to(device, dtype) for k, b in self.buffers.items()}
        moved.constants = {k: b.to(device, dtype if b.is_floating_point() else None) for k, b in self.constants.items()}
        return moved

    def forward(self, w: Tensor, inputs: Inputs, buffers: Tensors, see: frozenset[str] = frozenset(),
                learning: bool = True, fast: bool = False) -> Outputs:  # fmt: skip
        """Run the model at w. Only what is in `see` (features, activations) is caught on the way.

        `fast` allows the task's lower precision; a gradient that is normalised (a proximal one near its zero) must
        not take it, because rounding would become its direction.
        """
        if fast and self.fast is not None:
            low, high = self.fast, w.dtype
            out = self._run(w, in_precision(inputs, low), buffers, see, learning, low)
            shown = None if out.features is None else out.features.to(high)
            return Outputs(out.logits.to(high), shown, tuple(a.to(high) for a in out.activations), out.buffers)
        return self._run(w, inputs, buffers, see, learning)

    def _run(self, w: Tensor, inputs: Inputs, buffers: Tensors, see: frozenset[str], learning: bool,
             low: torch.dtype | None = None) -> Outputs:  # fmt: skip
        model = self.learner if learning else self.judge
        features: list[Tensor] = []
        caught: dict[str, list[Tensor]] = {name: [] for name in self.taps}  # a module may be called several times
        hooks = []
        if "features" in see:
            module = model.get_submodule(self.head)
            hooks.append(module.register_forward_pre_hook(lambda _, args: features.append(args[0])))
        if "activations" in see:
            for name in self.taps:
                module = model.get_submodule(name)
                hooks.append(module.register_forward_hook(lambda _, __, out, name=name: caught[name].append(out)))
        after = {k: b.clone() for k, b in buffers.items()} if learning else buffers  # batch norm writes in place
        dtype = w.dtype if low is None else low
        counters = {k: b.to(dtype) if b.is_floating_point() else b.clone() for k, b in self.constants.items()}
        try:
            # Cut tensor by tensor, not as one vector: matrix units want operands that begin at round addresses.
            trained = {k: p.to(dtype) for k, p in self.layout.unflatten(w).items()}
            state = {**trained, **counters, **after}
            logits = functional_call(model, state, *as_arguments(inputs))
        finally:
            for hook in hooks:
                hook.remove()
        activations = tuple(out for name in self.taps for out in caught[name])
        return Outputs(logits, features[-1] if features else None, activations, after)

    def head_forward(self, w: Tensor, features: Tensor) -> Tensor:
        """The head alone, on features that the body has already made."""
        params = {**self.layout.unflatten(w), **self.constants}
        prefix = self.head + "."
        mine = {k.removeprefix(prefix): v for k, v in params.items() if k.startswith(prefix)}
        logits: Tensor = functional_call(self.learner.get_submodule(self.head), mine, (features,))
        return logits

    def loss(self, outputs: Tensor, batch: Tensors) -> Tensor:
        return mean(self.loss_each(outputs, batch["y"]), batch)

    def module(self, w: Tensor, buffers: Tensors | None = None) -> nn.Module:
        """A trained copy of the user's module, ready to predict or to export as a plain state dict."""
        model = copy.deepcopy(self.judge)
        state = {**self.layout.unflatten(w), **self.constants, **(buffers or self.buffers)}
        own = model.state_dict()
        model.load_state_dict({k: v.contiguous().to(own[k]) for k, v in state.items() if k in own}, strict=False)
        return model


def _metric(metric: str | Each | Metric | None, loss: str | Each) -> Metric:
    """The metric itself; without one, accuracy for cross-entropy and otherwise the loss."""
    if metric is None:
        metric = "accuracy" if loss == "cross_entropy" else loss
    if isinstance(metric, str):
        return METRICS[metric]
    if isinstance(metric, Metric):
        return metric
    # A function that is the loss too is better when lower; of any other, higher is taken to be better.
    return Metric(getattr(metric, "__name__", type(metric).__name__), metric, lower=metric is loss)


def mean(each: Tensor, batch: Tensors) -> Tensor:
    """The mean over the real examples of a batch; a batch without a mask has no padding."""
    each = each.flatten(1).mean(1) if each.ndim > 1 else each
    if "mask" not in batch:
        return each.mean()
    mask = batch["mask"].to(each.dtype)
    # where, not a product: padding may hold anything, and 0 * inf is not 0
    return torch.where(batch["mask"], each, 0.0).sum() / mask.sum().clamp(min=1)


def _last_module_with_parameters(model: nn.Module) -> str:
    names = [n for n, m in model.named_modules() if n and any(True for _ in m.parameters(recurse=False))]
    return names[-1] if names else ""


def _activations(model: nn.Module) -> list[str]:
    kinds = (nn.ReLU, nn.GELU, nn.LeakyReLU, nn.SiLU, nn.ELU, nn.Tanh)
    return [name for name, module in model.named_modules() if isinstance(module, kinds)]
