"""A data set: six tensors and a few constants, checked once, when it is created.

>>> from steppe.data import load
>>> data = load("digits")
>>> data.train_inputs.shape, data.classes
(torch.Size([1437, 1, 8, 8]), 10)
>>> held_out = data.with_validation(0.1, seed=0)
>>> len(held_out.train_targets), len(held_out.validation_targets)
(1293, 144)
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from steppe.core import keyed
from steppe.core.errors import SteppeError, quote
from steppe.core.inputs import Inputs, arrange, list_named_tensors, map_tensors, name_type, show_shape, take
from steppe.data.arrays import as_inputs, as_targets, check_columns, check_rows, find_kind

MOST_CLASSES = 10**6  # as many as a cost may be asked for


@dataclass(frozen=True, eq=False, repr=False)
class Data:
    """Training and test samples in memory; validation samples only after `with_validation`.

    Images are uint8 (n, channels, h, w). They are normalised when a batch is made, by mean and std (one number per
    channel, in units of 0..1). All other inputs are used as they are, whatever their shape. Several inputs per sample
    are a tuple or a dict of tensors (see core/inputs.py). `classes` is None for regression and for sequences; targets
    may then have any shape.
    """

    name: str  # the name in records
    train_inputs: Inputs  # one row per training sample
    train_targets: Tensor  # their labels, numbers or sequences
    test_inputs: Inputs  # one row per test sample
    test_targets: Tensor  # of the test samples
    classes: int | None  # number of classes; None for regression and sequences
    mean: tuple[float, ...] = ()  # of each channel, for images
    std: tuple[float, ...] = ()  # standard deviation of each channel
    class_names: tuple[str, ...] | None = None  # by label
    validation_inputs: Inputs | None = None  # samples that were held out
    validation_targets: Tensor | None = None  # and their targets
    groups: np.ndarray | None = None  # of a natural federation: each training sample's client, a number
    test_groups: np.ndarray | None = None  # and each test sample's
    client_names: tuple[str, ...] | None = None  # of a natural federation
    tokens: int | None = None  # of sequences: how many different tokens the targets are made of
    by: np.ndarray | None = None  # what label-skew rules divide by instead of the labels, one row per training sample

    def __post_init__(self) -> None:
        if len(self.train_targets) == 0:
            raise SteppeError(f"{self.name} has no training samples; at least one is needed.")
        for part in ("train", "test", "validation"):
            inputs, targets = getattr(self, f"{part}_inputs"), getattr(self, f"{part}_targets")
            if inputs is None and targets is None and part == "validation":
                continue
            for name, tensor in list_named_tensors(inputs, f"{part} inputs"):
                if len(tensor) != len(targets):
                    raise SteppeError(f"{self.name} has {len(tensor)} {name} but {len(targets)} targets.")
            if show_shape(inputs) != show_shape(self.train_inputs):
                raise SteppeError(
                    f"{self.name} has {part} inputs of shape {show_shape(inputs)}, but train inputs of shape "
                    f"{show_shape(self.train_inputs)}; make them equal."
                )
            self._check_types(part, inputs)
            if self.classes is not None:
                self._check_labels(part, targets)
        if len(self.mean) != len(self.std) or any(value <= 0 for value in self.std):
            raise SteppeError(f"{self.name}: mean and std need one number per channel, and std > 0.")
        for _, tensor in list_named_tensors(self.train_inputs, ""):
            if tensor.dtype == torch.uint8 and tensor.ndim != 4:
                raise SteppeError(f"{self.name}: uint8 inputs are images and need the shape (n, c, h, w); for other "
                                  "data use int64 or float32.")  # fmt: skip
            if tensor.dtype == torch.uint8 and self.mean and len(self.mean) != tensor.shape[1]:
                raise SteppeError(f"{self.name}: mean has {len(self.mean)} numbers, but images have another number of "
                                  "channels.")  # fmt: skip

    def __repr__(self) -> str:
        kind = "regression or sequences" if self.classes is None else f"{self.classes} classes"
        clients = "" if self.groups is None else f", {len(np.unique(self.groups))} clients"
        return (f"<Data {self.name}: {len(self.train_targets):,} training and {len(self.test_targets):,} test samples "
                f"of shape {show_shape(self.train_inputs)}, {kind}{clients}>")  # fmt: skip

    def _check_types(self, part: str, inputs: Inputs) -> None:
        """Refuse inputs of another kind than those of training: only uint8 images are normalised."""
        named = (list_named_tensors(one, "inputs") for one in (inputs, self.train_inputs))
        for (name, here), (_, there) in zip(*named, strict=True):
            if len(here) and find_kind(here) != find_kind(there):
                raise SteppeError(f"{self.name} has {part} {name} of type {name_type(here)}, but train {name} of type "
                                  f"{name_type(there)}; make them equal.")  # fmt: skip

    def _check_labels(self, part: str, labels: Tensor) -> None:
        if labels.dtype != torch.int64 or labels.ndim != 1:
            raise SteppeError(
                f"{self.name}: the {part} labels must be one int64 per sample; for regression, use classes=None."
            )
        low, high = (int(labels.min()), int(labels.max())) if len(labels) else (0, 0)
        if low < 0 or high >= self.classes:  # type: ignore[operator]
            raise SteppeError(
                f"{self.name} has {part} labels from {low} to {high}, but with {self.classes} classes they must be "
                f"0 to {self.classes - 1}; renumber the labels or set classes."  # type: ignore[operator]
            )

    def judged_by_validation(self) -> Data:
        """Return the same data with the validation samples in place of the test set, which is left out."""
        if self.validation_inputs is None or self.validation_targets is None:
            raise SteppeError("There are no validation samples to evaluate on: call with_validation first.")
        return replace(self, test_inputs=self.validation_inputs, test_targets=self.validation_targets, test_groups=None)

    def with_validation(self, fraction: float, seed: int) -> Data:
        """Return the same data with a share of the training samples set aside for validation, class by class."""
        return self.hold_out(self.choose_validation(fraction, seed))

    def choose_validation(self, fraction: float, seed: int) -> Tensor:
        """Return the indices of the training samples that `with_validation` sets aside."""
        count = round(fraction * len(self.train_targets))
        if not 0 < fraction < 1 or not 0 < count < len(self.train_targets):
            raise SteppeError(
                f"A validation share of {fraction} of {len(self.train_targets)} training samples leaves "
                "one side empty; choose a number between 0 and 1 such as 0.1."
            )
        labels = self.train_targets if self.classes else torch.zeros(len(self.train_targets))
        return choose_stratified(labels, count, seed)

    def hold_out(self, indices: Any) -> Data:
        """Return the same data with these training samples set aside for validation."""
        chosen = torch.as_tensor(indices).to(self.device)
        kept = torch.ones(len(self.train_targets), dtype=torch.bool, device=chosen.device)
        kept[chosen] = False
        here = kept.cpu().numpy()
        return replace(
            self,
            train_inputs=take(self.train_inputs, kept),
            train_targets=self.train_targets[kept],
            validation_inputs=take(self.train_inputs, chosen),
            validation_targets=self.train_targets[chosen],
            groups=None if self.groups is None else self.groups[here],
            by=None if self.by is None else self.by[here],
        )

    @property
    def device(self) -> torch.device:
        """Return where the samples are."""
        return self.train_targets.device

    @property
    def outputs(self) -> int | None:
        """Return how many outputs a built-in model needs: one per class or token; None for regression."""
        return self.tokens if self.classes is None else self.classes

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of one input; several inputs per sample have no single shape."""
        if not isinstance(self.train_inputs, Tensor):
            raise SteppeError(f"{self.name} has several inputs per sample ({show_shape(self.train_inputs)}), which no "
                              "built-in model takes: give your own nn.Module.")  # fmt: skip
        return tuple(self.train_inputs.shape[1:])

    @property
    def _samples(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k.endswith(("_inputs", "_targets")) and v is not None}

    def to(self, device: torch.device | str) -> Data:
        """Return the same data on a device."""
        moved = replace(self, **{k: map_tensors(lambda t: t.to(device), v) for k, v in self._samples.items()})
        if "hash" in vars(self):
            vars(moved)["hash"] = self.hash
        return moved

    @cached_property
    def hash(self) -> str:
        """Return a hash of all samples and constants, but not of the name."""
        digest = hashlib.sha256()
        for part, samples in self._samples.items():
            for name, value in list_named_tensors(samples, part):
                digest.update(repr((name, tuple(value.shape), str(value.dtype))).encode())
                digest.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        digest.update(repr((self.classes, self.mean, self.std)).encode())
        if self.test_groups is not None:
            digest.update(self.test_groups.astype("<i8").tobytes())
        return digest.hexdigest()[:16]


def choose_stratified(labels: Tensor, count: int, seed: int) -> Tensor:
    """Return sorted indices of exactly `count` samples, with each class as close to its share as possible."""
    _, labels = torch.unique(labels.cpu(), return_inverse=True)
    sizes = torch.bincount(labels)
    share = sizes * count  # in units of 1/n, so that the remainders are exact
    quota = share // len(labels)
    left = count - int(quota.sum())
    # The classes with the largest remainders get the samples that rounding down left over.
    quota[torch.argsort(share % len(labels), descending=True, stable=True)[:left]] += 1
    chosen = []
    for label, wanted in enumerate(quota.tolist()):
        members = torch.nonzero(labels == label).flatten()
        order = keyed.permutation(keyed.key(seed, label), len(members))
        chosen.append(members[order[:wanted]])
    return torch.cat(chosen).sort().values


def from_arrays(
    x: Any,
    y: Any,
    test_x: Any,
    test_y: Any,
    *,
    name: str = "arrays",
    classes: int | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    class_names: tuple[str, ...] | None = None,
    tokens: int | None = None,
    groups: Any = None,
    by: Any = None,
) -> Data:
    """Create data from numpy arrays or tensors. Labels may be text.

    x            inputs of the training samples: one array, a tuple of arrays (the model is called with `model(*x)`) or
                 a dict of them (`model(**x)`). Images are uint8, of shape (n, h, w), (n, h, w, c) or (n, c, h, w)
    y            their targets. Integers are class labels, 0 to classes − 1; integers with more axes are sequences of
                 tokens, and floating-point numbers a regression
    test_x       inputs of the test samples
    test_y       their targets
    name         the name in records
    classes      number of classes (default: counted; None for sequences and regressions)
    mean         of each channel, for images (default: that of the training images)
    std          standard deviation of each channel
    class_names  by label
    tokens       number of different tokens, for built-in models
    groups       the client of each training sample, which makes a natural federation
    by           what label rules divide by instead of the labels
    """
    _check_constants(name, classes, mean, std, class_names, tokens)
    check_columns(x, test_x, "train inputs", "test inputs")
    check_rows(x, y, "train")
    check_rows(test_x, test_y, "test")
    inputs = as_inputs(x, "train inputs")
    test_inputs = arrange(as_inputs(test_x, "test inputs"), inputs)
    targets, test_targets, class_names = as_targets(y, test_y, class_names)
    if targets.is_floating_point():
        classes = None
    elif classes is None and len(targets) and targets.ndim == 1:
        classes = len(class_names) if class_names else int(targets.max()) + 1
        if classes > MOST_CLASSES:
            raise SteppeError(f"{name} has labels up to {classes - 1}, which cannot be numbers of classes: "
                              "renumber the labels.")  # fmt: skip
    if not any(tensor.dtype == torch.uint8 for _, tensor in list_named_tensors(inputs, "")) and (mean or std):
        raise SteppeError(f"{name}: mean and std are for uint8 images, and other inputs are used as they are: leave "
                          "them out, and normalise the inputs.")  # fmt: skip
    if mean is None or std is None:
        images = isinstance(inputs, Tensor) and inputs.dtype == torch.uint8 and len(inputs)
        found = _compute_statistics(inputs) if images else ((), ())  # type: ignore[arg-type]
        mean, std = found[0] if mean is None else mean, found[1] if std is None else std
    return Data(name, inputs, targets, test_inputs, test_targets, classes, mean, std, class_names, tokens=tokens,
                **_read_division(groups, by, len(targets)))  # fmt: skip


def _check_constants(name: Any, classes: Any, mean: Any, std: Any, class_names: Any, tokens: Any) -> None:
    """Refuse constants of another type: they are used far from here."""
    if not isinstance(name, str):
        raise SteppeError(f"name is {quote(name)}, but must be text.")
    for key, number in (("classes", classes), ("tokens", tokens)):
        if number is not None and (not isinstance(number, Integral) or isinstance(number, bool) or number < 1):
            raise SteppeError(f"{key} is {quote(number)}, but must be a whole number of at least 1.")
    for key, values in (("mean", mean), ("std", std)):
        if values is not None and not (isinstance(values, tuple | list) and all(isinstance(v, Real) for v in values)):
            raise SteppeError(
                f"{key} is {quote(values)}, but must be a tuple with a number per channel, such as (0.5,)."
            )
    if class_names is not None and classes is not None and len(class_names) != classes:
        raise SteppeError(f"There are {len(class_names)} class_names, but classes is {classes}: make them equal.")


def _read_division(groups: Any, by: Any, samples: int) -> dict[str, Any]:
    from steppe.data.given_partition import as_labels, number_clients

    found: dict[str, Any] = {}
    if groups is not None:
        found["groups"], found["client_names"] = number_clients(groups, samples)
    if by is not None:
        as_labels(by, samples)  # a mistake is found here
        found["by"] = np.asarray(by.cpu() if isinstance(by, Tensor) else by)
    return found


def _compute_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the exact mean and std per channel, from the histogram of the 256 values."""
    values = torch.arange(256, dtype=torch.float64) / 255
    mean, std = [], []
    for channel in images.transpose(0, 1):
        weight = torch.bincount(channel.flatten(), minlength=256).double() / channel.numel()
        mean.append(float(weight @ values))
        # A constant channel has std 0; use 1 to avoid a division by zero.
        std.append(float((weight @ (values - mean[-1]) ** 2).sqrt()) or 1.0)
    return tuple(mean), tuple(std)
