"""A model with its loss, as a pure function of a flat parameter vector."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils.checkpoint import checkpoint

from steppe.core.errors import SteppeError
from steppe.core.inputs import Inputs, cast, count, split, split_arguments
from steppe.core.layout import Layout, Tensors
from steppe.core.losses import LOSSES, average_loss, find_loss_name
from steppe.core.metric import Each, Metric
from steppe.core.named_metrics import choose_usual_metric, make_metric
from steppe.core.prediction import Predict, find_prediction
from steppe.core.shared_copies import NARROW, choose_frozen_type, copy_sharing, hash_tensors


class Outputs(NamedTuple):
    """Outputs of one forward pass: the prediction, and the intermediate values that parts need."""

    logits: Tensor  # the prediction
    features: Tensor | None  # the inputs of the head
    activations: tuple[Tensor, ...]  # of the model's taps, of every call
    buffers: Tensors  # running statistics after the pass


class Task:
    """A module, split into what is trained (a flat vector), what is frozen, and running statistics.

    Parameters with `requires_grad=False` are constants: no vector of the algorithm contains them, so
    decay never touches them and costs leave them out. They are not copied: the user's module, this task and the
    modules that it exports share them. Integer buffers (batch norm's counters) stay as they were, because
    averaging them has no meaning.
    """

    def __init__(self, model: nn.Module, loss: str | Each = "cross_entropy",
                 metric: str | Metric | Sequence[Metric] | None = None, head: str | None = None,
                 taps: Sequence[str] | None = None, predict: Predict | None = None) -> None:  # fmt: skip
        self.loss_each = LOSSES[loss] if isinstance(loss, str) else loss
        self.own_loss = find_loss_name(self.loss_each) is None
        self.own_head = head is not None
        self.predict: Predict = predict or find_prediction
        self.metrics = _metrics(metric, self.loss_each)
        self.head = head or getattr(model, "head", None) or _find_last_module_with_parameters(model)
        self.head = self.head if isinstance(self.head, str) else _find_last_module_with_parameters(model)
        self.taps = tuple(getattr(model, "taps", _list_activations(model)) if taps is None else taps)
        named = dict(model.named_parameters())
        trained = {k: p.detach() for k, p in named.items() if p.requires_grad}
        self.layout = Layout({k: p.shape for k, p in trained.items()}, self.head)
        self.x0 = self.layout.flatten(trained).clone()
        buffers = {k: b.detach().clone() for k, b in model.named_buffers()}
        self.buffers = {k: b for k, b in buffers.items() if b.is_floating_point()}
        self.frozen = [k for k in named if k not in trained]
        self.constants: Tensors = {k: named[k] for k in self.frozen}
        self.constants |= {k: b for k, b in buffers.items() if not b.is_floating_point()}
        self.types = {k: p.dtype for k, p in named.items()}  # of the user's module
        self.mixed: torch.dtype | None = None  # the type of a narrow frozen base, in which the base computes
        self.learner = copy_sharing(model).train()
        every = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
        self.tied = len({id(t) for _, t in every}) < len(every)  # looked up once, not in every pass
        self.judge = copy_sharing(model).eval()  # dropout off, running statistics fixed: for teachers and tests
        self.fast: torch.dtype | None = None  # a lower precision for the student's passes; parameters keep theirs
        self.quick: Tensors = {}  # the constants in that precision
        self.pieces = 1  # number of pieces into which a differentiated pass is split, to save memory
        # Whether the model uses activation checkpointing; models of transformers have this attribute.
        self.recomputes = any(getattr(m, "gradient_checkpointing", False) is True for m in model.modules())
        self._held: ExitStack | None = None
        # Batch statistics would include padding, so the batches of such a model cannot be padded.
        self.uses_batch_statistics = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())

    @property
    def metric(self) -> Metric:
        """Return the main metric, which is the first."""
        return self.metrics[0]

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Task:
        """Return the task on another device or in another precision. Frozen matrices of a narrow type keep it."""
        moved, meta = copy.copy(self), torch.device(device).type == "meta"
        x0 = self.x0.to(device, dtype)
        # Tensors without data use no memory, and with one type no rules for mixed types apply to them.
        wide = x0.dtype if meta else dtype
        constants: Tensors = {}
        for k, c in self.constants.items():
            kind = wide if meta or k not in self.types else choose_frozen_type(c, wide)
            constants[k] = c.to(device, kind if c.is_floating_point() else None)
        trained = {k: p.detach().to(device, dtype) for k, p in self.learner.named_parameters() if p.requires_grad}
        buffers = {k: b.to(device, dtype) for k, b in self.buffers.items()}
        moved.learner = copy_sharing(self.learner, {**trained, **constants, **buffers})
        moved.judge = copy_sharing(self.judge, {**trained, **constants, **buffers})
        moved.x0, moved.buffers, moved.constants = x0, buffers, constants
        narrow = {c.dtype for k, c in constants.items() if k in self.types and c.dtype in NARROW}
        moved.mixed = min(narrow, key=NARROW.index) if narrow and x0.dtype not in NARROW else None
        moved.pieces = 1 if meta else self.pieces
        if self.fast is not None:
            moved.hasten(self.fast)
        return moved

    @cached_property
    def base_hash(self) -> str:
        """Return sixteen digits of the hash of everything frozen."""
        return hash_tensors({k: self.constants[k] for k in self.frozen})

    def hasten(self, dtype: torch.dtype) -> None:
        """Let the student's passes use a lower precision. Frozen tensors are cast now, not in every pass."""
        self.fast = dtype
        self.quick = {k: c.to(dtype) if c.is_floating_point() else c for k, c in self.constants.items()}

    def forward(self, w: Tensor, inputs: Inputs, buffers: Tensors, see: frozenset[str] = frozenset(),
                learning: bool = True, fast: bool = False) -> Outputs:  # fmt: skip
        """Run the model at w. Only the intermediate values in `see` (features, activations) are kept.

        `fast` allows the task's lower precision; a gradient that is normalised (a proximal one near zero) must
        not use it, because its direction would be that of rounding errors.
        """
        if self.pieces > 1 and learning and torch.is_grad_enabled():
            return self._run_in_pieces(w, inputs, buffers, see, fast)
        low = self.fast if fast else None
        if low is None and self.mixed is None:
            return self._run(w, inputs, buffers, see, learning)
        if low is not None:
            inputs = cast(inputs, low)
        out, high = self._run(w, inputs, buffers, see, learning, low), w.dtype
        shown = None if out.features is None else out.features.to(high)
        return Outputs(out.logits.to(high), shown, tuple(a.to(high) for a in out.activations), out.buffers)

    def _run(self, w: Tensor, inputs: Inputs, buffers: Tensors, see: frozenset[str], learning: bool,
             low: torch.dtype | None = None) -> Outputs:  # fmt: skip
        model = self.learner if learning else self.judge
        features: list[Tensor] = []
        caught: dict[str, list[Tensor]] = {name: [] for name in self.taps}  # a module may be called several times
        hooks = []
        if "features" in see:
            module = model.get_submodule(self.head)
            hooks.append(module.register_forward_pre_hook(
                lambda _, args, named: features.append(next(iter((*args, *named.values())))), with_kwargs=True
            ))  # fmt: skip
        if "activations" in see:
            for name in self.taps:
                module = model.get_submodule(name)
                hooks.append(module.register_forward_hook(lambda _, __, out, name=name: caught[name].append(out)))
        after = {k: b.clone() for k, b in buffers.items()} if learning else buffers  # batch norm writes in place
        dtype = w.dtype if low is None else low
        fixed = self._collect_fixed(w.dtype, low)
        try:
            # Cast tensor by tensor, not as one vector: matrix units need operands at aligned addresses.
            trained = {k: p.to(dtype) for k, p in self.layout.unflatten(w).items()}
            state = {**trained, **fixed, **after}
            with self._use_narrow_types(w, low):
                outputs = self._call(model, state, *split_arguments(inputs))
            if learning:
                after = {k: self._read_buffer(model, k, state, b) for k, b in after.items()}
        finally:
            for hook in hooks:
                hook.remove()
        activations = tuple(out for name in self.taps for out in caught[name])
        return Outputs(self.predict(outputs), features[-1] if features else None, activations, after)

    def _read_buffer(self, model: nn.Module, name: str, state: Tensors, before: Tensor) -> Tensor:
        """Return a buffer after a pass, which may have written to it or put another tensor in its place."""
        now = (state[name] if self._held is None else model.get_buffer(name)).detach()
        if now.shape != before.shape:
            raise SteppeError(f"The model's buffer {name} has the shape {tuple(now.shape)} after a pass and "
                              f"{tuple(before.shape)} before: keep its shape, for the mean over clients.")  # fmt: skip
        return now.to(before.dtype)

    def _call(self, model: nn.Module, state: Tensors, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if self._held is None:
            return functional_call(model, state, args, named, tie_weights=self.tied)
        self._held.enter_context(_reparametrize_module(model, state, tie_weights=self.tied))
        return model(*args, **named)

    @contextmanager
    def hold_parameters(self) -> Iterator[None]:
        """Leave a pass's parameters in the module until its gradient has been taken.

        Activation checkpointing runs the module again during the backward pass, and must find the same parameters.
        """
        if not self.recomputes:
            yield
            return
        try:
            with ExitStack() as self._held:
                yield
        finally:
            self._held = None

    def _run_in_pieces(self, w: Tensor, inputs: Inputs, buffers: Tensors, see: frozenset[str], fast: bool) -> Outputs:
        """Run the batch piece by piece; each is run again when it is differentiated, so only one keeps activations."""

        def run(v: Tensor, x: Inputs) -> Outputs:
            return Task.forward(self._whole, v, x, buffers, see, True, fast)

        pieces = split(inputs, min(self.pieces, count(inputs)))
        outs = [checkpoint(run, w, x, use_reentrant=False) for x in pieces]
        features = None if outs[0].features is None else torch.cat([o.features for o in outs])
        activations = tuple(torch.cat(each) for each in zip(*(o.activations for o in outs), strict=True))
        return Outputs(torch.cat([o.logits for o in outs]), features, activations, outs[0].buffers)

    @property
    def _whole(self) -> Task:
        """Return the same task, without splitting batches into pieces."""
        whole = copy.copy(self)
        whole.pieces = 1
        return whole

    def _collect_fixed(self, dtype: torch.dtype, low: torch.dtype | None) -> Tensors:
        """Return all that is not trained, for one pass; counters are copied, because the pass may write to them."""
        wanted = None if self.mixed is not None or low is not None else dtype
        return {
            k: c.to(wanted) if c.is_floating_point() else c if k in self.types else c.clone()
            for k, c in (self.constants if low is None else self.quick).items()
        }

    def _use_narrow_types(self, w: Tensor, low: torch.dtype | None) -> AbstractContextManager[Any]:
        """Let a narrow base compute in its own type, whatever the types of the trained parameters and the inputs."""
        if self.mixed is None or low is not None:
            return nullcontext()
        return torch.autocast(w.device.type, self.mixed, cache_enabled=False)

    def head_forward(self, w: Tensor, features: Tensor) -> Tensor:
        """Run only the head, on features that the body has already computed."""
        params = {**self.layout.unflatten(w), **self._collect_fixed(w.dtype, None)}
        prefix = self.head + "."
        mine = {k.removeprefix(prefix): v for k, v in params.items() if k.startswith(prefix)}
        with self._use_narrow_types(w, None):
            logits: Tensor = functional_call(self.learner.get_submodule(self.head), mine, (features,))
        return logits.to(w.dtype)

    def loss(self, outputs: Tensor, batch: Tensors) -> Tensor:
        return average_loss(self.loss_each(outputs, batch["y"]), batch)

    def module(self, w: Tensor, buffers: Tensors | None = None) -> nn.Module:
        """Return a trained copy of the user's module, ready to predict or to export as a plain state dict.

        It shares frozen tensors with the user's module. If these have a narrow type, all types are as in that module.
        """
        state = {**self.layout.unflatten(w), **self.constants, **(buffers or self.buffers)}
        for k, t in state.items():
            dtype = self.types.get(k, t.dtype) if self.mixed is not None else None
            if k in self.frozen:
                state[k] = t.to(dtype)
            else:
                state[k] = t.detach().to(dtype).clone(memory_format=torch.contiguous_format)
        return copy_sharing(self.judge, state)

    def state_dict(self, w: Tensor, buffers: Tensors | None = None) -> Tensors:
        """Return the trained module's state dict without frozen tensors; trained ones have the type of w."""
        module, trained = self.module(w, buffers), self.layout.unflatten(w)
        frozen = {
            module.get_parameter(k).data_ptr() for k in self.frozen
        }  # by address, because a tied parameter has two names
        return {k: trained.get(k, v) for k, v in module.state_dict().items() if v.data_ptr() not in frozen}


def _metrics(given: str | Metric | Sequence[Metric] | None, loss: Each) -> tuple[Metric, ...]:
    if given is None:
        return (choose_usual_metric(loss),)
    if isinstance(given, str):
        return (make_metric(given, loss),)
    return (given,) if isinstance(given, Metric) else tuple(given)


def _find_last_module_with_parameters(model: nn.Module) -> str:
    names = [n for n, m in model.named_modules() if n and any(True for _ in m.parameters(recurse=False))]
    return names[-1] if names else ""


def _list_activations(model: nn.Module) -> list[str]:
    kinds = (nn.ReLU, nn.GELU, nn.LeakyReLU, nn.SiLU, nn.ELU, nn.Tanh)
    return [name for name, module in model.named_modules() if isinstance(module, kinds)]
