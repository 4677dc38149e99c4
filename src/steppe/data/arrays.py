"""The user's arrays as tensors: NumPy, lists, frames' columns, images. Anything else is refused with a clear error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from steppe.core.errors import SteppeError, quote
from steppe.core.inputs import Inputs

MANY_CLASSES = 100  # text with more different values than samples / 2 and this is hardly a label


def as_tensor(given: Any, what: str) -> Tensor:
    """Return a tensor with one row per sample; `what` names it in a sentence, such as "train inputs"."""
    if isinstance(given, Tensor):
        found = given.detach()
    elif given is None:
        raise SteppeError(f"The {what} are None; give an array, or an empty one if there are none.")
    elif isinstance(given, Iterator) or not hasattr(given, "__len__"):
        raise SteppeError(f"The {what} are {quote(given)}, which cannot be read twice or has no length; make a list or "
                          "an array of it.")  # fmt: skip
    else:
        found = _make_tensor(_as_numeric(given, what))
    if kind := _name_unusable(found):
        raise SteppeError(f"The {what} are {kind}; give dense real numbers.")
    if found.is_meta:
        raise SteppeError(f"The {what} are on the meta device and have no numbers; load them.")
    if found.ndim == 0:
        raise SteppeError(f"The {what} are a single number; give one value per sample.")
    return found


def _name_unusable(given: Tensor) -> str:
    """Return what kind of tensor this is, if it is of one that PyTorch cannot compute with as with others."""
    if given.is_nested or given.layout != torch.strided:
        return "nested" if given.is_nested else "sparse"
    narrow = given.is_floating_point() and given.itemsize == 1
    return "complex" if given.is_complex() else "quantized" if given.is_quantized else "8-bit floats" if narrow else ""


def _as_numeric(given: Any, what: str) -> np.ndarray:
    if isinstance(given, Sequence) and len(given) and not isinstance(given, str | bytes):
        given = _stack_items(given, what)
    if isinstance(given, np.ma.MaskedArray) and np.ma.is_masked(given):
        raise SteppeError(f"The {what} have masked values, which a tensor cannot have: fill or drop them.")
    try:
        array = np.asarray(given)
    except (ValueError, TypeError) as error:
        raise SteppeError(
            f"The {what} are not an array of numbers; pad lists of different lengths ({error})."
        ) from error
    if array.dtype == object:
        array = _convert_objects(array, what)
    if array.dtype.kind not in "biuf" and array.dtype.kind != "c":
        kinds = {"U": "text", "S": "bytes", "M": "dates", "m": "durations", "V": "records"}
        raise SteppeError(f"The {what} are {kinds.get(array.dtype.kind, array.dtype)}, but must be numbers; convert "
                          "them first, text into token ids for instance.")  # fmt: skip
    return array


def _stack_items(given: Sequence[Any], what: str) -> Any:
    """Stack a list of arrays, tensors or images; leave numbers and text to NumPy."""
    if not (hasattr(given[0], "shape") or hasattr(given[0], "getbands")):  # a PIL image has bands
        return given
    rows = [np.asarray(one.detach().cpu() if isinstance(one, Tensor) else one) for one in given]
    if odd := next((i for i, row in enumerate(rows) if row.shape != rows[0].shape), None):
        raise SteppeError(f"The {what} have different shapes: sample 0 has {rows[0].shape}, sample {odd} has "
                          f"{rows[odd].shape}; pad, crop or resize them to one shape.")  # fmt: skip
    return np.stack(rows)


def _convert_objects(array: np.ndarray, what: str) -> np.ndarray:
    values = array.reshape(-1).tolist()
    if all(isinstance(v, str) for v in values):
        return array.astype(str)
    if all(isinstance(v, bool | int | float | np.number) for v in values):
        return array.astype(np.int64 if all(isinstance(v, int | np.integer) for v in values) else np.float64)
    if array.ndim == 1 and len(array) and hasattr(array[0], "shape"):
        return _as_numeric(array.tolist(), what)
    if (lost := next((i for i, v in enumerate(values) if _is_missing(v)), None)) is not None:
        row = lost // max(array[:1].size, 1)
        raise SteppeError(f"The {what} have no value at sample {row} ({values[lost]}): fill such values, or drop the "
                          "samples.")  # fmt: skip
    place = next(i for i, v in enumerate(values) if not isinstance(v, bool | int | float | np.number))
    kind = type(values[place]).__name__
    where = f" (sample {place} is {quote(values[place])}, a {kind})" if array.ndim == 1 else f" (a {kind} among them)"
    raise SteppeError(f"The {what} are Python objects{where}, but must be numbers of one shape; pad lists of different "
                      "lengths, and fill what is missing.")  # fmt: skip


def _is_missing(value: Any) -> bool:
    """Return whether this is None, nan, or what pandas has for a missing value."""
    nan = isinstance(value, float) and value != value
    return nan or value is None or type(value).__name__ in ("NAType", "NaTType")


def _make_tensor(array: np.ndarray) -> Tensor:
    """Return a tensor of its own type where PyTorch has it."""
    kind = array.dtype.newbyteorder("=")
    if kind in (np.uint16, np.uint32, np.uint64):
        kind = np.dtype(np.int64)
    if kind.kind == "f" and kind.itemsize > 8:
        kind = np.dtype(np.float64)
    array = np.ascontiguousarray(array, dtype=kind)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def as_inputs(given: Any, what: str = "inputs", alone: bool = True) -> Inputs:
    """Return tensors: uint8 images with the channel axis first, doubles as floats; a tuple or dict keeps its form."""
    if isinstance(given, dict):
        if not given:
            raise SteppeError(f"The {what} are an empty dict; give at least one array.")
        return {str(name): as_inputs(one, f"{what}.{name}", alone=False) for name, one in given.items()}
    if isinstance(given, tuple) and _is_structure(given):
        return tuple(as_inputs(one, f"{what}.{i}", alone=False) for i, one in enumerate(given))
    x = as_tensor(given, what)
    if x.dtype == torch.uint8:
        if x.ndim == 3:
            x = x[:, None]
        elif x.ndim == 4 and x.shape[1] not in (1, 3) and _has_channels_last(x):
            x = x.permute(0, 3, 1, 2).contiguous()
        elif x.ndim < 3 and not alone:
            x = x.long()  # a mask, or ids
    if x.dtype == torch.bool and alone:
        return x.float()  # next to other inputs it is a mask, which keeps its type
    return x.float() if x.dtype == torch.float64 else x


def _is_structure(given: Any) -> bool:
    """Return whether these are several inputs and not the rows of one: a tuple of columns, which may be nested."""
    return bool(given) and all(
        hasattr(one, "shape")
        or isinstance(one, dict)
        or _holds_rows(one)
        or (isinstance(one, tuple) and _is_structure(one))
        for one in given
    )


def _holds_rows(given: Any) -> bool:
    """Return whether this is a list of arrays or of images, one per sample."""
    return isinstance(given, list) and bool(given) and bool(
        getattr(given[0], "shape", ()) or hasattr(given[0], "getbands")
    )  # fmt: skip


def _has_channels_last(images: Tensor) -> bool:
    """Return whether the last axis is that of the channels; two or four, with alpha, if pictures are larger."""
    return images.shape[-1] in (1, 3) or (images.shape[-1] in (2, 4) and min(images.shape[1:3]) > 4)


def find_kind(x: Tensor) -> str:
    """Return what the values of a tensor are to a model: bytes of images, masks, whole numbers, or numbers."""
    if x.dtype in (torch.uint8, torch.bool):
        return str(x.dtype)
    return "float" if x.is_floating_point() else "whole"


def check_columns(first: Any, second: Any, *names: str) -> None:
    """Refuse two frames whose columns have other names, or another order."""
    one, two = ([str(c) for c in given.columns] if hasattr(given, "columns") else [] for given in (first, second))
    if one and two and one != two:
        raise SteppeError(f"The {names[1]} have the columns {', '.join(two)}, but the {names[0]} have "
                          f"{', '.join(one)}; give the same columns in one order.")  # fmt: skip


def check_rows(inputs: Any, targets: Any, part: str) -> None:
    """Refuse a frame and a series with the same rows in another order: they are joined by place, not by their index."""
    one: Any = getattr(inputs, "index", None)
    two: Any = getattr(targets, "index", None)
    if not (hasattr(one, "equals") and hasattr(two, "equals")) or one.equals(two):
        return
    if len(one) == len(two) and one.is_unique and set(one) == set(two):
        raise SteppeError(f"The {part} inputs and targets have the same index in another order, but are joined row by "
                          "row: sort them alike, or reset both indexes.")  # fmt: skip


def as_targets(train: Any, test: Any, class_names: tuple[str, ...] | None = None) -> tuple[Tensor, Tensor, Any]:
    """Return the targets of training and test, and the names of the classes if there are some.

    Text is numbered in the order of its values. Labels of shape (n, 1) lose that axis. Bools are labels if there is one
    per sample, and otherwise the numbers 0 and 1.
    """
    words = as_words(train)
    if words is not None:
        return _number_labels(words, test, class_names)
    both = [as_tensor(train, "train targets"), as_tensor(test, "test targets")]
    if both[1].numel() == 0:  # an empty test set has the type of the training data
        both[1] = both[0].new_zeros((0, *both[0].shape[1:]))
    if any(t.is_floating_point() for t in both):
        if not both[0].is_floating_point() and bool((both[1] != both[1].round()).any()):
            raise SteppeError("The test targets are fractions, but the train targets are whole numbers; give both in "
                              "the same form.")  # fmt: skip
        both = [t.float() if both[0].is_floating_point() else t.long() for t in both]
    elif both[0].dtype == torch.bool and both[0].ndim > 1:
        both = [t.float() for t in both]
    else:
        both = [t.long() for t in both]
        if both[0].ndim == 2 and both[0].shape[1] == 1:
            both = [t.reshape(-1) for t in both]
        _refuse_one_hot(both[0])
    return both[0], both[1], class_names


def _refuse_one_hot(targets: Tensor) -> None:
    if targets.ndim != 2 or not len(targets):
        return
    if bool(((targets == 0) | (targets == 1)).all()) and bool((targets.sum(1) == 1).all()):
        raise SteppeError("Every row of the targets has a single 1, as one-hot labels have: give the labels, "
                          "y.argmax(1); for several labels per sample, give floats.")  # fmt: skip


def as_words(given: Any) -> np.ndarray | None:
    """Return labels that are text as an array, or None for anything else."""
    if isinstance(given, Tensor) or given is None or isinstance(given, Iterator) or not hasattr(given, "__len__"):
        return None
    if isinstance(given, Sequence) and not (len(given) and isinstance(given[0], str)):
        return None
    array = np.asarray(given)
    if array.dtype.kind == "U":
        return array
    text = array.ndim == 1 and len(array) and all(isinstance(v, str) for v in array.tolist())
    return array.astype(str) if text else None


def _number_labels(
    words: np.ndarray, test: Any, names: tuple[str, ...] | None
) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    if words.ndim != 1:
        raise SteppeError(f"The train targets are text of shape {words.shape}; give one label per sample, or numbers.")
    known = tuple(np.unique(words).tolist()) if names is None else names
    if len(known) > max(MANY_CLASSES, len(words) // 2):
        raise SteppeError(f"The train targets are text with {len(known)} different values in {len(words)} samples, "
                          "too many for labels; give numbers.")  # fmt: skip
    found = []
    for part, given in (("train", words), ("test", test)):
        those = as_words(given) if len(given) else np.array([], str)
        if those is None:
            raise SteppeError("The train targets are text, but the test targets are not; give both in the same form.")
        if odd := sorted(set(those.tolist()) - set(known)):
            raise SteppeError(f"The {part} targets have the label {odd[0]!r}, which is none of the classes "
                              f"{quote(known)}.")  # fmt: skip
        place = {name: i for i, name in enumerate(known)}
        found.append(torch.tensor([place[word] for word in those.tolist()], dtype=torch.int64))
    return found[0], found[1], known
