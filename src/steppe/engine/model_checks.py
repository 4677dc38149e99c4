"""Checks before a run starts: does the model fit its data, its algorithm and vmap?"""

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
from steppe.core.inputs import Inputs, count, show_shape, take
from steppe.core.losses import find_loss_name, find_loss_settings, is_ambiguous
from steppe.core.metric import SHARES, Metric
from steppe.core.named_metrics import is_named
from steppe.core.stacking import stack
from steppe.core.task import Task
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
        raise SteppeError(
            f"The model cannot take inputs of shape {show_shape(x)}: {error}."
            + (" Is its table of tokens large enough?" if isinstance(error, IndexError) else explain_types(data))
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
        each = task.loss_each(logits, targets)
    except Exception as error:
        raise SteppeError(f"The loss fails on outputs {tuple(logits.shape)} and targets {tuple(targets.shape)}: "
                          f"{error}.{explain_labels(data)}") from error  # fmt: skip
    problem = _no_values(each, count(x))
    if problem is not None:
        raise SteppeError(f"The loss must return one value per sample, because clients' last batches differ in "
                          f"size: use reduction='none'. {problem}".strip())  # fmt: skip
    for metric in task.metrics:
        _check_metric(metric, logits, targets)
    check_ranges(task, federation, logits, targets)
    by_class = find_loss_name(task.loss_each) in ("cross_entropy", "dice")
    chosen = "axis" in find_loss_settings(task.loss_each)
    if by_class and not chosen and not targets.is_floating_point() and is_ambiguous(logits, targets):
        shape = tuple(logits.shape[1:])
        notes.append(f"outputs of shape {shape} may have their classes first or last; they are taken to be first, as "
                     f"in PyTorch: if they are last, say loss={find_loss_name(task.loss_each)}:axis=-1")  # fmt: skip
    return {"x": x, "y": targets}


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
            each = function(outputs, targets)
    except Exception as error:
        raise SteppeError(f"The metric {metric.name} fails on outputs {tuple(outputs.shape)} and targets "
                          f"{tuple(targets.shape)}: {error}") from error  # fmt: skip
    if (problem := _no_values(each, len(targets))) is not None:
        raise SteppeError(f'The metric {metric.name} must return one value per sample; for a number of all predictions '
                          f'at once, write steppe.Metric("{metric.name}", on_all=f). {problem}'.strip())  # fmt: skip


def _are_shares(targets: Tensor) -> bool:
    return bool(((targets >= 0) & (targets <= 1)).all())


def _no_values(each: Any, samples: int) -> str | None:
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
        with task.holding():
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


def not_batchable(task: Task, federation: Federation) -> str:
    """Return why vmap cannot differentiate this model over clients (some layers have no rule), or an empty string."""
    if task.recomputes:
        return "it recomputes activations; without gradient checkpointing, they could be batched"
    if task.pieces > 1:
        return "accumulate splits its passes; chunk, the number of clients at once, saves memory too"
    x = federation.plain(take(federation.data.train_inputs, slice(2)))
    y = federation.targets(federation.data.train_targets[:2])

    def loss(w: Tensor, inputs: Inputs, targets: Tensor) -> Tensor:
        return task.loss(task.forward(w, inputs, task.buffers).logits, {"y": targets})

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            two = stack([(task.x0, x, y)] * 2)
            torch.func.vmap(torch.func.grad(loss), randomness="different")(*two)
    except Exception as error:  # a user's model may raise anything
        return _explain((str(error) or type(error).__name__).strip().partition("\n")[0].partition(". ")[0])
    return ""


CURES = {
    ("item()", "data-dependent", "value of a Tensor", "control flow"): "use torch.where instead of branches on values",
    ("in-place", "inplace"): "write to new tensors instead of in place",
    ("rnn", "gru", "lstm"): "vmap has no rule for this recurrent layer",
    ("batching rule", "not implemented", "not possible"): "replace the operation that it names",
}


def _explain(why: str) -> str:
    """Return vmap's complaint with what to change, where that is known.

    >>> _explain("vmap: It looks like you're calling .item() on a Tensor")
    "vmap: It looks like you're calling .item() on a Tensor: use torch.where instead of branches on values"
    """
    cure = next((c for words, c in CURES.items() if any(w.lower() in why.lower() for w in words)), None)
    return why if cure is None else f"{why}: {cure}"
