"""Checks before a run starts: does the model fit its data and its algorithm?"""

from __future__ import annotations

import warnings
from traceback import walk_tb
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from steppe.core.algorithm import Algorithm
from steppe.core.client import by_autograd
from steppe.core.errors import SettingError, SteppeError, quote
from steppe.core.inputs import Inputs, count, name_type, show_shape, take
from steppe.core.losses import IGNORED, find_loss_name, find_loss_settings, is_ambiguous
from steppe.core.metric import SHARES, Metric
from steppe.core.named_metrics import is_named
from steppe.core.task import Task
from steppe.data.dataset import Data
from steppe.data.federation import Federation
from steppe.engine.range_checks import check_ranges, explain_labels, explain_types


def check_batch(task: Task, federation: Federation, notes: list[str]) -> dict[str, Tensor]:
    """Run one small batch, refuse a model, loss or metric that does not fit the data, and return the batch."""
    data = federation.data
    few = slice(federation.batch_size)
    x, targets = federation.plain(take(data.train_inputs, few)), federation.targets(data.train_targets[few])
    given = tree_map(torch.clone, x)  # a mistake must not change the user's data
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            logits = task.forward(task.x0, given, task.buffers, learning=False).logits
    except SteppeError:
        raise
    except Exception as error:
        if any(frame.f_code is getattr(task.predict, "__code__", "") for frame, _ in walk_tb(error.__traceback__)):
            raise SteppeError(f"predict fails on the model's outputs, with {type(error).__name__}: {error}.") from error
        why = f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else str(error)
        raise SteppeError(
            f"The model cannot take inputs of shape {show_shape(x)}: {why}."
            + (" Is its table of tokens large enough?" if isinstance(error, IndexError) else explain_types(data, error))
            + (
                " A model that differentiates inside forward must do so with torch.func.grad."
                if "does not require grad" in why
                else ""
            )
        ) from error
    if not all(map(torch.equal, tree_leaves(given), tree_leaves(x))):
        raise SteppeError("The model changes its inputs in place, which are your data: let it write to new tensors, "
                          "such as x = x * 2 instead of x *= 2, and nn.ReLU() instead of nn.ReLU(inplace=True) as the "
                          "first layer.")  # fmt: skip
    if not isinstance(logits, Tensor):
        raise SteppeError(f"predict returns a {type(logits).__name__}, but must return one tensor: the predictions.")
    indexed = task.own_loss or find_loss_name(task.loss_each) == "cross_entropy"  # by the label
    if indexed and data.classes is not None and (logits.ndim != 2 or logits.shape[1] < data.classes):
        raise SteppeError(f"The model's output has shape {tuple(logits.shape)} for {count(x)} samples, but {data.name} "
                          f"has {data.classes} classes: its last layer needs {data.classes} outputs.")  # fmt: skip
    try:
        each = _call_on_copies(task.loss_each, "The loss", logits, targets)
    except SteppeError:
        raise
    except Exception as error:
        raise SteppeError(f"The loss fails on outputs {tuple(logits.shape)} and targets {tuple(targets.shape)}: "
                          f"{error}.{explain_labels(data)}") from error  # fmt: skip
    problem = _find_problem(each, count(x))
    if problem is not None:
        raise SteppeError(f"The loss must return one value per sample, because clients' last batches differ in "
                          f"size: use reduction='none'. {problem}".strip())  # fmt: skip
    made_up = federation.partition is None  # a federation's server has no data, and its stand-ins may be anything
    _check_loss_values(each[0] if isinstance(each, tuple) else each, made_up)
    for metric in task.metrics:
        _check_metric(metric, logits, targets)
    check_ranges(task, federation, logits, targets)
    by_class = find_loss_name(task.loss_each) in ("cross_entropy", "dice")
    chosen = "axis" in find_loss_settings(task.loss_each)
    if by_class and not chosen and not targets.is_floating_point() and is_ambiguous(logits, targets):
        shape = tuple(logits.shape[1:])
        notes.append(f"outputs of shape {shape} may have their classes first or last; they are taken to be first, as "
                     f"in PyTorch: if they are last, say loss={find_loss_name(task.loss_each)}:axis=-1")  # fmt: skip
    if not made_up and logits.ndim == targets.ndim + 1 and _are_inputs(targets, x):
        notes.append("the targets are the inputs: predictions are compared with the targets place by place, so a model "
                     "of the next token needs targets that are shifted by one place")  # fmt: skip
    return {"x": x, "y": targets}


def note_usual_loss(data: Data) -> list[str]:
    """Say what the usual loss makes of targets that are 0.0 and 1.0, as labels often are."""
    y = data.train_targets
    if not y.is_floating_point() or not bool(((y == 0) | (y == 1)).all()):
        return []
    return ["the targets are only 0 and 1, and the loss is mse, as for all floats: for yes-or-no labels choose "
            "loss=bce, for one-hot labels loss=cross_entropy"]  # fmt: skip


def _call_on_copies(function: Any, what: str, outputs: Tensor, targets: Tensor) -> Any:
    """Call a loss or metric on a copy of a batch, and refuse one that changes it: it would change the user's data."""
    mine = outputs.clone(), targets.clone()
    before = [t._version for t in mine]
    found = function(*mine)
    changed = [name for name, t, v in zip(("outputs", "targets"), mine, before, strict=True) if t._version != v]
    if changed:
        raise SteppeError(f"{what} changes its {' and '.join(changed)} in place: let it write to new tensors, such as "
                          "torch.where(targets == 255, -100, targets), because others read these.")  # fmt: skip
    return found


def _check_loss_values(values: Tensor, made_up: bool) -> None:
    """Refuse a loss that cannot be differentiated, or that has no finite value at the start."""
    if not values.is_floating_point():
        raise SteppeError(f"The loss returns values of type {name_type(values)}, so the loss has no gradient: return "
                          "floating-point numbers.")  # fmt: skip
    if not made_up and not bool(values.isfinite().any()):
        raise SteppeError(f"The loss is {float(values.flatten()[0]):g} for every sample of the first batch, before any "
                          "training: look for log(0), a division by 0, or outputs that are not finite.")  # fmt: skip


def _are_inputs(targets: Tensor, inputs: Inputs) -> bool:
    """Return whether targets are tokens that equal an input wherever they count."""
    counts = targets != IGNORED
    same = (t for t in tree_leaves(inputs) if t.shape == targets.shape and t.dtype == targets.dtype)
    return targets.dtype == torch.int64 and bool(counts.any()) and any(bool((t == targets)[counts].all()) for t in same)


def _check_metric(metric: Metric, outputs: Tensor, targets: Tensor) -> None:
    """Refuse a metric that fails on a batch; one on all predictions is called with them alone."""
    if targets.is_floating_point() and metric.name in SHARES and is_named(metric) and not _are_shares(targets):
        raise SettingError(f"{metric.name} needs labels, or targets between 0 and 1, but these are other numbers: "
                           "choose mse, rmse or mae", "metrics")  # fmt: skip
    function = metric.each or metric.tally
    if function is None:
        return
    try:
        with torch.no_grad():
            each = _call_on_copies(function, f"The metric {metric.name}", outputs, targets)
    except SteppeError:
        raise
    except Exception as error:
        raise SteppeError(f"The metric {metric.name} fails on outputs {tuple(outputs.shape)} and targets "
                          f"{tuple(targets.shape)}: {error}") from error  # fmt: skip
    if (problem := _find_problem(each, len(targets))) is not None:
        raise SteppeError(f'The metric {metric.name} must return one value per sample; for a number of all predictions '
                          f'at once, write steppe.Metric("{metric.name}", on_all=f). {problem}'.strip())  # fmt: skip


def _are_shares(targets: Tensor) -> bool:
    return bool(((targets >= 0) & (targets <= 1)).all())


def _find_problem(each: Any, samples: int) -> str | None:
    """Return what is wrong with the values of a loss or metric, or None."""
    several = each if isinstance(each, tuple) else (each,)
    if len(several) > 2 or not all(isinstance(v, Tensor) for v in several):
        return f"It returned {quote(each)}."
    if any(v.ndim == 0 or len(v) != samples for v in several):
        return ""
    if len({v.shape for v in several}) > 1:
        return "Values and weights must have one shape."
    return None


def check_statistics(task: Task, federation: Federation) -> None:
    """Separate running statistics from constant buffers, and refuse batches that batch norm cannot take.

    A forward pass changes running statistics. A buffer that it leaves unchanged (a table of positions, a mask of −∞)
    is neither averaged over clients nor checked for finite values.
    """
    if not task.buffers:
        return
    size = federation.batch_size
    odd = {n for n in set(federation.sizes) if 1 in federation.size_batches(n)}
    single = [i for i, n in enumerate(federation.sizes) if n in odd]
    x = federation.plain(take(federation.data.train_inputs, slice(max(size, 2))))
    with torch.no_grad():
        after = task.forward(task.x0, x, task.buffers).buffers
        constant = {k: b for k, b in task.buffers.items() if torch.equal(b, after[k])}
        task.buffers = {k: b for k, b in task.buffers.items() if k not in constant}
        task.constants = {**task.constants, **constant}
        if task.uses_batch_statistics and single:
            try:
                task.forward(task.x0, take(x, slice(1)), task.buffers)
            except ValueError as error:
                alone = size == 1 or federation.sizes[single[0]] == 1
                cure = ("raise batch" if size == 1 else "leave such clients out of the partition, or use group norm"
                        if alone else "set last_batch = join or drop")  # fmt: skip
                whose = "Client" if alone and size > 1 else "The last batch of client"
                raise SettingError(f"{whose} {single[0]} has one sample, but this model's batch norm needs more: "
                                   f"{cure}", "batch", "last_batch") from error  # fmt: skip


def check_passes(task: Task, federation: Federation, pieces: int) -> None:
    """Find out whether the model recomputes activations, and refuse what its passes cannot do.

    Such a model runs parts of itself again during the backward pass. They must find the parameters of the forward pass,
    and whether that matters is seen in the gradient away from the initial parameters.
    """
    if pieces > 1 and task.uses_batch_statistics:
        raise SettingError("accumulate splits batches, and this model's batch norm would see each piece alone: use "
                           "group norm, or a smaller batch", "accumulate")  # fmt: skip
    x = federation.plain(take(federation.data.train_inputs, slice(2)))
    y = federation.targets(federation.data.train_targets[:2])
    away, known = task.x0 + 0.01 * (1 + task.x0.abs()), task.recomputes

    def find_gradient(holds: bool) -> Tensor:
        torch.manual_seed(0)  # of dropout
        task.recomputes = holds
        with task.hold_parameters():
            return by_autograd(lambda v: (task.loss(task.forward(v, x, task.buffers).logits, {"y": y}), None), away)[0]

    try:
        devices = [task.x0.device] if task.x0.is_cuda else []
        with warnings.catch_warnings(), torch.random.fork_rng(devices):
            warnings.simplefilter("ignore")
            plain, held = find_gradient(False), find_gradient(True)
        differs = torch.linalg.vector_norm(plain - held) > 1e-3 * torch.linalg.vector_norm(held)
    except RuntimeError as error:
        if "use_reentrant" in str(error) or "Checkpointing is not compatible" in str(error):
            raise SteppeError("The model's activation checkpointing is of the kind that cannot be differentiated here: "
                              "choose use_reentrant=False, in transformers gradient_checkpointing_enable("
                              "gradient_checkpointing_kwargs={'use_reentrant': False}).") from error  # fmt: skip
        if "does not require grad" in str(error):
            raise SteppeError("The loss has no gradient with respect to the model's parameters: look for argmax, "
                              "comparisons, detach() or no_grad() in the loss or the model.") from error  # fmt: skip
        differs = torch.tensor(False)  # whatever it is, training will say it better
    task.recomputes = known or bool(differs)
    task.pieces = pieces


def check_taps(algorithm: Algorithm, task: Task) -> None:
    """Refuse an algorithm that needs hidden activations or a head if the model has none."""
    if "activations" in algorithm.needs and not task.taps:
        raise SteppeError(f"{algorithm.name} needs hidden activations, but none of this model's are modules: "
                          "use nn.ReLU modules, or name them in an attribute `taps` of the model.")  # fmt: skip
    if "features" in algorithm.needs and not task.head:
        raise SteppeError(f"{algorithm.name} needs the features that enter the head, but this model has no head: "
                          "give head=….")  # fmt: skip
