"""Check whole numbers before a run starts: tokens in the model's table, labels that it has outputs for."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from steppe.core.errors import SteppeError
from steppe.core.inputs import list_named_tensors, name_type, take
from steppe.core.losses import IGNORED, find_class_axis, find_loss_name, find_loss_settings
from steppe.core.task import Task
from steppe.data.dataset import Data
from steppe.data.federation import Federation

PARTS = ("train", "validation", "test")


def check_ranges(task: Task, federation: Federation, outputs: Tensor, targets: Tensor) -> None:
    """Refuse tokens and labels that would stop the run later; `outputs` are those for a batch with these targets."""
    for part in PARTS:
        _check_tokens(task, federation, part)
    name, settings = find_loss_name(task.loss_each), find_loss_settings(task.loss_each)
    ignored = settings.get("ignore_index", IGNORED)
    if name == "bce" or (name == "dice" and outputs.numel() == targets.numel()):
        if federation.partition is not None:  # a federation's server has stand-ins, which may be anything
            for part in PARTS:
                _check_shares(federation.data, part, name, None if name == "bce" else ignored)
    elif name in ("cross_entropy", "dice") and not targets.is_floating_point() and targets.ndim > 1:
        count = outputs.shape[find_class_axis(outputs, targets, settings.get("axis"))]
        for part in PARTS:
            _check_labels(federation.data, part, count, ignored)


def _check_tokens(task: Task, federation: Federation, part: str) -> None:
    """Run the model on the samples with the smallest and the largest whole number of each input."""
    samples = getattr(federation.data, f"{part}_inputs")
    for name, tensor in list_named_tensors(samples, f"{part} inputs") if samples is not None else ():
        if tensor.is_floating_point() or tensor.dtype in (torch.uint8, torch.bool) or not tensor.numel():
            continue
        flat = (tensor.flatten(1) if tensor.ndim > 1 else tensor[:, None]).long()  # narrow types have no amin
        for extreme in (flat.amin(1).argmin(), flat.amax(1).argmax()):
            some = int(extreme)
            try:
                with torch.no_grad():
                    task.forward(task.x0, federation.plain(take(samples, slice(some, some + 1))), task.buffers,
                                 learning=False)  # fmt: skip
            except (IndexError, RuntimeError) as error:
                low, high = int(flat[some].min()), int(flat[some].max())
                raise SteppeError(f"The model fails on sample {some} of the {name}, whose values are {low} to "
                                  f"{high}: {error}. Is its table of tokens large enough?") from error  # fmt: skip


def _check_labels(data: Data, part: str, count: int, ignored: int) -> None:
    targets = getattr(data, f"{part}_targets")
    if targets is not None:
        _refuse(data, part, (targets != ignored) & ((targets < 0) | (targets >= count)),
                f"the model has outputs for 0 to {count - 1}; {ignored} is ignored.")  # fmt: skip


def _check_shares(data: Data, part: str, loss: str, ignored: int | None) -> None:
    targets = getattr(data, f"{part}_targets")
    if targets is not None:
        _refuse(data, part, (targets != ignored) & ((targets < 0) | (targets > 1)) if ignored is not None
                else (targets < 0) | (targets > 1), f"{loss} needs targets from 0 to 1.")  # fmt: skip


def _refuse(data: Data, part: str, bad: Tensor, why: str) -> None:
    """Refuse targets of which some are bad, and name the first."""
    if bool(bad.any()):
        targets, place = getattr(data, f"{part}_targets"), torch.nonzero(bad)[0].tolist()
        where = f", place {tuple(place[1:])}" if len(place) > 1 else ""
        value = targets[tuple(place)].item()
        raise SteppeError(f"{data.name}: the {part} targets have {value:g} at sample {place[0]}{where}, but {why}")


def explain_types(data: Data, error: object) -> str:
    """Return a hint on inputs whose type a model does not take; empty if its error says something else."""
    if not re.search("type|Long|Int|Bool", str(error)):
        return ""
    whole = [(n, t) for n, t in list_named_tensors(data.train_inputs, "inputs") if not t.is_floating_point()
             and t.dtype != torch.uint8]  # fmt: skip
    if whole:
        return f" The {whole[0][0]} are {name_type(whole[0][1])}: tokens stay so, but numbers must be float32."
    return ""


def explain_labels(data: Data) -> str:
    """Return a hint if the targets look like labels of another kind than their type says."""
    y = data.train_targets
    if not y.is_floating_point() and y.ndim == 2 and bool(((y == 0) | (y == 1)).all()):
        return " For several yes-or-no labels per sample, choose loss='bce'."
    if y.is_floating_point() and y.ndim == 1 and bool((y == y.round()).all()) and bool((y >= 0).all()):
        return f" The targets are whole numbers stored as {name_type(y)}: if they are class "\
               "labels, give integers."  # fmt: skip
    return ""
