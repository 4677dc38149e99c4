"""Read a node's own data, which its config names, and check them against federation.toml. They are never sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from steppe.core.errors import SteppeError
from steppe.core.inputs import Inputs, name_type
from steppe.data import image_folder
from steppe.data.arrays import as_inputs, as_tensor
from steppe.data.examples import read_columns
from steppe.data.npz import read_npz
from steppe.flower.federation_file import Sample, find_named
from steppe.flower.refusals import Refusal


def read_data(place: str, sample: Sample, whose: str) -> tuple[Inputs, Tensor]:
    """Read inputs and targets from a folder of images by class, an .npz with x and y, or a function "module:name"."""
    path = Path(place).expanduser()
    try:
        if path.is_dir():
            x, y = _read_images(path, sample)
        elif path.suffix == ".npz":
            x, y = _read_npz(path, sample)
        elif ":" in place:
            x, y = _read_pair(find_named(place, f"{whose}: the function")(), whose)
        else:
            raise SteppeError(
                f"{whose}: {place} is neither a folder, nor an .npz file, nor written as module:function."
            )
        inputs, targets = as_inputs(x), as_tensor(y, "targets")
    except SteppeError as error:
        raise error if isinstance(error, Refusal) else Refusal("data", str(error)) from error
    return _check(inputs, targets, sample, f"{whose} ({place})")


def _read_images(path: Path, sample: Sample) -> tuple[Any, Any]:
    if sample.class_names is None:
        raise Refusal("classes", f"{path} is a folder of images, but federation.toml has no class_names under [data], "
                                 "so the classes cannot be numbered.")  # fmt: skip
    images, names = image_folder.load_by_class(path)
    if odd := sorted(set(names) - set(sample.class_names)):
        raise Refusal("classes", f"{path} has the class {odd[0]!r}, which is not among federation.toml's class_names.")
    return images, np.array([sample.class_names.index(name) for name in names], np.int64)


def _read_npz(path: Path, sample: Sample) -> tuple[Any, Any]:
    names = [*(sample.named or "x"), "y"]
    arrays = read_npz(path, names)
    if missing := [k for k in names if k not in arrays]:
        raise SteppeError(f"{path} has no array {missing[0]!r}: it must contain {', '.join(names[:-1])} and y.")
    y = arrays.pop("y")
    return (arrays if sample.named else arrays["x"]), y


def _read_pair(found: Any, whose: str) -> tuple[Any, Any]:
    """Return inputs and targets of a pair of arrays or of anything that `steppe.from_dataset` reads."""
    columns = read_columns(found, f"{whose}'s")
    return columns.inputs, columns.targets


def _check(x: Inputs, y: Tensor, sample: Sample, what: str) -> tuple[Inputs, Tensor]:
    y = y.to(getattr(torch, sample.targets)) if y.is_floating_point() == (sample.targets == "float32") else y
    form = sample.list_inputs()
    inputs: Any = {"": x} if isinstance(x, Tensor) else x
    by_name = isinstance(inputs, dict) and all(isinstance(t, Tensor) for t in inputs.values())
    if not by_name or set(inputs) != set(form):
        mine = ", ".join(sorted(inputs)) or "one tensor" if by_name else "several tensors without names"
        raise Refusal("samples", f"{what} has as inputs {mine}, but federation.toml says "
                                 f"{', '.join(sample.named or ['one tensor'])}.")  # fmt: skip
    if len(y) == 0 or not all(map(len, inputs.values())):
        raise Refusal("empty", f"{what} has no samples, so this node cannot take part.")
    if odd := [len(t) for t in inputs.values() if len(t) != len(y)]:
        raise Refusal("samples", f"{what} has {odd[0]} inputs but {len(y)} targets.")
    described = [(name or "inputs", inputs[name], one.shape, one.inputs) for name, one in form.items()]
    described.append(("targets", y, sample.target_shape, sample.targets))
    for name, tensor, shape, kind in described:
        mine = name_type(tensor)
        if list(tensor.shape[1:]) != list(shape) or mine != kind:
            raise Refusal("samples", f"{what} has {name} of shape {list(tensor.shape[1:])} and type {mine}, but "
                                     f"federation.toml says {list(shape)} and {kind}.")  # fmt: skip
    if sample.classes is not None and not 0 <= int(y.min()) <= int(y.max()) < sample.classes:
        raise Refusal("classes", f"{what} has labels from {int(y.min())} to {int(y.max())}, but federation.toml's "
                                 f"{sample.classes} classes are 0 to {sample.classes - 1}.")  # fmt: skip
    for name, tensor, _, _ in described:
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise Refusal("finite", f"{what} has {name} that are not finite.")
    return (x if isinstance(x, Tensor) else {name: inputs[name] for name in form}), y
