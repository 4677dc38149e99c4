"""Read a node's own data, which its config names, and check them against federation.toml. They are never sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from steppe.core.errors import SteppeError
from steppe.data import image_folder
from steppe.data.arrays import as_inputs, as_tensor
from steppe.data.npz import read_npz
from steppe.flower.federation_file import Sample, find_named
from steppe.flower.refusals import Refusal


def read_data(place: str, sample: Sample, whose: str) -> tuple[Tensor, Tensor]:
    """Read inputs and targets from a folder of images by class, an .npz with x and y, or a function "module:name"."""
    path = Path(place).expanduser()
    try:
        if path.is_dir():
            x, y = _read_images(path, sample)
        elif path.suffix == ".npz":
            x, y = _read_npz(path)
        elif ":" in place:
            x, y = _read_pair(find_named(place, f"{whose}: the function")())
        else:
            raise SteppeError(
                f"{whose}: {place} is neither a folder, nor an .npz file, nor written as module:function."
            )
        inputs, targets = as_inputs(x), as_tensor(y, "targets")
        if not isinstance(inputs, Tensor):
            raise SteppeError(f"{whose} ({place}) has several inputs per sample; a federation takes one tensor.")
    except SteppeError as error:
        raise error if isinstance(error, Refusal) else Refusal("data", str(error)) from error
    return _check(inputs, targets, sample, f"{whose} ({place})")


def _read_images(path: Path, sample: Sample) -> tuple[Any, Any]:
    if sample.class_names is None:
        raise Refusal("classes", f"{path} is a folder of images, but federation.toml has no class_names under [data], "
                                 "so the classes cannot be numbered.")  # fmt: skip
    images, names = image_folder.by_class(path)
    if odd := sorted(set(names) - set(sample.class_names)):
        raise Refusal("classes", f"{path} has the class {odd[0]!r}, which is not among federation.toml's class_names.")
    return images, np.array([sample.class_names.index(name) for name in names], np.int64)


def _read_npz(path: Path) -> tuple[Any, Any]:
    arrays = read_npz(path, ("x", "y"))
    if missing := [k for k in ("x", "y") if k not in arrays]:
        raise SteppeError(f"{path} has no array {missing[0]!r}: it must contain x and y.")
    return arrays["x"], arrays["y"]


def _read_pair(pair: Any) -> tuple[Any, Any]:
    if isinstance(pair, tuple | list) and len(pair) == 2:
        return pair[0], pair[1]
    if hasattr(pair, "__getitem__") and hasattr(pair, "__len__"):  # a map-style torch data set
        both = [pair[i] for i in range(len(pair))]
        inputs = [torch.as_tensor(np.array(x)) if not isinstance(x, Tensor) else x for x, _ in both]
        return (torch.stack(inputs) if both else torch.zeros(0)), torch.tensor([int(y) for _, y in both])
    raise SteppeError("the function for a node's data must return a pair (x, y) or a map-style data set of such pairs.")


def _check(x: Tensor, y: Tensor, sample: Sample, what: str) -> tuple[Tensor, Tensor]:
    y = y.to(getattr(torch, sample.targets)) if y.is_floating_point() == (sample.targets == "float32") else y
    if len(x) == 0 or len(y) == 0:
        raise Refusal("empty", f"{what} has no samples, so this node cannot take part.")
    if len(x) != len(y):
        raise Refusal("samples", f"{what} has {len(x)} inputs but {len(y)} targets.")
    for name, tensor, shape, kind in (("inputs", x, sample.shape, sample.inputs),
                                      ("targets", y, sample.target_shape, sample.targets)):  # fmt: skip
        mine = str(tensor.dtype).removeprefix("torch.")
        if list(tensor.shape[1:]) != list(shape) or mine != kind:
            raise Refusal("samples", f"{what} has {name} of shape {list(tensor.shape[1:])} and type {mine}, but "
                                     f"federation.toml says {list(shape)} and {kind}.")  # fmt: skip
    if sample.classes is not None and not 0 <= int(y.min()) <= int(y.max()) < sample.classes:
        raise Refusal("classes", f"{what} has labels from {int(y.min())} to {int(y.max())}, but federation.toml's "
                                 f"{sample.classes} classes are 0 to {sample.classes - 1}.")  # fmt: skip
    for name, tensor in (("inputs", x), ("targets", y)):
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise Refusal("finite", f"{what} has {name} that are not finite.")
    return x, y
