"""Read a node's own data, which its config names, and check them against federation.toml. They are never sent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from steppe.core.errors import SteppeError
from steppe.core.inputs import Inputs, name_type
from steppe.data import image_folder
from steppe.data.arrays import as_inputs, as_tensor, as_words
from steppe.data.examples import is_array, is_pair, is_table, read_columns
from steppe.data.npz import read_npz
from steppe.flower.federation_file import Sample
from steppe.flower.refusals import Refusal
from steppe.references import explain_failure, load
from steppe.runs.full_disk import is_full


def read_data(place: str, sample: Sample, whose: str) -> tuple[Inputs, Tensor]:
    """Read inputs and targets from a folder of images by class, an .npz with x and y, or a function "module:name"."""
    path = Path(place).expanduser()
    try:
        if path.is_dir():
            x, y = _read_images(path, sample)
        elif path.suffix == ".npz":
            x, y = _read_npz(path, sample)
        elif ":" in place:
            x, y = _read_pair(load(place)(), sample, place)
        else:
            raise SteppeError(
                f"{whose}: {place} is neither a folder, nor an .npz file, nor written as module:function."
            )
        words = as_words(y)
        inputs = as_inputs(x)
        targets = as_tensor(y if words is None else _number(words.tolist(), sample, place), "targets")
    except SteppeError as error:
        raise error if isinstance(error, Refusal) else Refusal("data", str(error)) from error
    except Exception as error:  # the user's function and data set may raise anything
        raise Refusal(
            "disk" if is_full(error) else "data", f"{explain_failure(f'{whose}: {place}', error)}."
        ) from error
    return _check(inputs, targets, sample, f"{whose} ({place})")


def _read_images(path: Path, sample: Sample) -> tuple[Any, Any]:
    _number([], sample, path)  # before the images are read
    images, names = image_folder.load_by_class(path)
    return images, _number(names, sample, path)


def _number(names: Sequence[str], sample: Sample, where: Path | str) -> np.ndarray:
    """Return classes by name as the numbers that all nodes give them."""
    if sample.class_names is None:
        raise Refusal("classes", f"{where} has classes by name, but federation.toml has no class_names under [data], "
                                 "so they cannot be numbered.")  # fmt: skip
    if odd := sorted(set(names) - set(sample.class_names)):
        raise Refusal("classes", f"{where} has the class {odd[0]!r}, which is not among federation.toml's class_names.")
    return np.array([sample.class_names.index(name) for name in names], np.int64)


def _read_npz(path: Path, sample: Sample) -> tuple[Any, Any]:
    names = [*(sample.named or "x"), "y"]
    arrays = read_npz(path, names)
    if missing := [k for k in names if k not in arrays]:
        raise SteppeError(f"{path} has no array {missing[0]!r}: it must contain {', '.join(names[:-1])} and y.")
    y = arrays.pop("y")
    return (arrays if sample.named else arrays["x"]), y


def _read_pair(found: Any, sample: Sample, place: str) -> tuple[Any, Any]:
    """Return inputs and targets of a pair of arrays or of anything that `steppe.from_dataset` reads."""
    if is_pair(found) and hasattr(found[0], "columns"):
        found = found[0].assign(label=found[1])
    columns = read_columns(found, place, inputs=sample.columns if is_table(found) else None)
    if len(columns.names) > 1 and is_array(columns.inputs) and sample.columns is None:
        raise Refusal("samples", f"{place} returns a table with {len(columns.names)} columns, whose order may differ "
                                 "at other nodes: list them under [data] in federation.toml, as columns.")  # fmt: skip
    if not columns.class_names or not sample.class_names:
        return columns.inputs, columns.targets
    known = dict(enumerate(columns.class_names))  # a data set of Hugging Face numbers them in an order of its own
    return columns.inputs, np.array([known.get(int(label), f"number {label}") for label in columns.targets])


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
