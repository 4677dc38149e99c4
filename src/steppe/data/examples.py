"""Columns of inputs and targets from the user's data sets: torch data sets and loaders, tables, lists of pairs.

An example is a pair (input, target), a tuple of several inputs and a target, or a dict. In a dict and in a table, the
target is found by its name, and all other columns are inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from steppe.core.errors import SteppeError, quote, suggest_name

TARGETS = ("label", "labels", "target", "targets", "y")  # usual names


class Columns(NamedTuple):
    """Inputs and targets of all examples, and what else is known of them."""

    inputs: Any
    targets: Any
    groups: Any = None  # the client of each example
    class_names: tuple[str, ...] | None = None


def is_array(given: Any) -> bool:
    """Return whether this is one array, and not a table or data set."""
    return hasattr(given, "dtype") and hasattr(given, "shape") and not hasattr(given, "columns")


def is_table(given: Any) -> bool:
    """Return whether this has columns by name: a frame, a Hugging Face data set, a dict of columns."""
    return hasattr(given, "columns") or hasattr(given, "column_names") or isinstance(given, Mapping)


def read_columns(source: Any, part: str, target: str | None = None, inputs: Any = None,
                 groups: str | None = None) -> Columns:  # fmt: skip
    """Read a data set into memory. `target`, `inputs` and `groups` are names of columns."""
    if isinstance(source, IterableDataset) or isinstance(getattr(source, "dataset", None), IterableDataset):
        raise SteppeError(f"The {part} data set is an IterableDataset, which has no length and no order: read it into "
                          f"a list, list({part}).")  # fmt: skip
    if isinstance(source, Iterator):
        raise SteppeError(f"The {part} data set is {quote(source)}, which can be read only once: make a list of it.")
    if isinstance(source, tuple) and len(source) == 2 and all(map(_is_column, source)):
        return Columns(*source)
    if is_table(source):
        return _read_table(source, part, target, inputs, groups)
    if isinstance(source, DataLoader):
        return _read_loader(source, part, target)
    if not hasattr(source, "__getitem__") or not hasattr(source, "__len__"):
        raise SteppeError(f"The {part} data set is {quote(source)}, but must be map-style, with len(d) and d[i].")
    if len(source) == 0:
        raise SteppeError(f"The {part} data set is empty; at least one sample is needed.")
    return _joined([_example(source[i], part, i, target) for i in range(len(source))])


def _is_column(given: Any) -> bool:
    return is_array(given) or isinstance(given, dict | list) or (
        isinstance(given, tuple) and bool(given) and all(map(is_array, given))
    )  # fmt: skip


def _example(given: Any, part: str, index: int, target: str | None) -> tuple[Any, Any]:
    if isinstance(given, Mapping):
        name = _find_target(given, target, f"sample {index} of the {part} data set")
        rest = {k: v for k, v in given.items() if k != name}
        return (next(iter(rest.values())) if len(rest) == 1 else rest), given[name]
    if not isinstance(given, tuple | list) or len(given) < 2:
        raise SteppeError(f"Sample {index} of the {part} data set is {quote(given)}, but must be a pair (input, "
                          "target), several inputs and a target, or a dict.")  # fmt: skip
    *several, y = given
    return (several[0] if len(several) == 1 else tuple(several)), y


def _joined(examples: list[tuple[Any, Any]]) -> Columns:
    """Return columns: every place of the inputs' structure as one list."""

    def column(values: list[Any]) -> Any:
        first = values[0]
        if isinstance(first, Mapping):
            return {k: column([v[k] for v in values]) for k in first}
        if isinstance(first, tuple):
            return tuple(np.stack([np.asarray(v[i]) for v in values]) for i in range(len(first)))
        return [np.asarray(v) if isinstance(v, list) else v for v in values]

    targets = [y for _, y in examples]
    scalars = all(isinstance(y, int | float | str | np.generic) for y in targets)
    return Columns(column([x for x, _ in examples]), np.array(targets) if scalars else column(targets))


def _read_loader(loader: DataLoader[Any], part: str, target: str | None, size: int = 256) -> Columns:
    """Read what a loader loads, in the data set's order, through its own collate function."""
    source: Any = loader.dataset
    pieces = []
    for begun in range(0, len(source), size):
        rows = [source[i] for i in range(begun, min(begun + size, len(source)))]
        together = loader.collate_fn(rows) if loader.batch_sampler is not None else None
        if together is None:
            return _joined([_example(source[i], part, i, target) for i in range(len(source))])
        x, y = _example(dict(together) if isinstance(together, Mapping) else together, part, begun, target)
        pieces.append((x, y))
    if not pieces:
        raise SteppeError(f"The {part} data set is empty; at least one sample is needed.")
    try:
        return Columns(*(_cat([piece[k] for piece in pieces]) for k in (0, 1)))
    except (RuntimeError, TypeError, ValueError) as error:
        raise SteppeError(f"The batches of the {part} loader cannot be joined ({error}); pad all samples to one "
                          "length.") from error  # fmt: skip


def _cat(pieces: list[Any]) -> Any:
    if isinstance(pieces[0], Mapping):
        return {k: _cat([p[k] for p in pieces]) for k in pieces[0]}
    if isinstance(pieces[0], tuple | list):
        return tuple(_cat([p[i] for p in pieces]) for i in range(len(pieces[0])))
    return torch.cat([torch.as_tensor(p) for p in pieces])


def _read_table(table: Any, part: str, target: str | None, inputs: Any, groups: str | None) -> Columns:
    listed: Any = table if isinstance(table, Mapping) else getattr(table, "column_names", None)
    names = [str(n) for n in (table.columns if listed is None else listed)]
    name = _find_target(names, target, f"the {part} data")
    frame = hasattr(table, "columns") and not hasattr(table, "column_names")
    wanted = [inputs] if isinstance(inputs, str) else list(inputs or [n for n in names if n not in (name, groups)])
    for column in [*wanted, *([groups] if groups else [])]:
        if column not in names:
            raise SteppeError(
                f"There is no column {quote(column)} in the {part} data{suggest_name(str(column), names)}"
            )
    if not wanted:
        raise SteppeError(f"The {part} data have no column but {name!r}, so there is no input.")
    read = {column: _column(table, column) for column in [*wanted, name, *([groups] if groups else [])]}
    rows = {column: read[column] for column in wanted}
    if len(wanted) == 1 and not (frame and np.asarray(rows[wanted[0]]).dtype.kind in "biuf"):
        x = rows[wanted[0]]
    elif frame:  # a frame's columns are the features of one input
        text = [c for c in wanted if np.asarray(rows[c]).dtype.kind not in "biuf"]
        if text:
            raise SteppeError(f"The column {text[0]!r} of the {part} data is not made of numbers: encode it, or leave "
                              "it out with inputs=[…].")  # fmt: skip
        x = np.stack([np.asarray(rows[c], np.float32) for c in wanted], 1)
    else:
        x = rows
    features = getattr(table, "features", None)
    classes = getattr(features.get(name), "names", None) if isinstance(features, Mapping) else None
    return Columns(x, read[name], read[groups] if groups else None, tuple(classes) if classes else None)


def _column(table: Any, name: str) -> Any:
    values = table[name]
    if hasattr(values, "to_numpy"):  # a frame's series
        return values.to_numpy()
    return values if is_array(values) else list(values)


def _find_target(names: Any, target: str | None, where: str) -> str:
    known = [str(n) for n in names]
    if target is not None:
        if target not in known:
            raise SteppeError(f"There is no target {quote(target)} in {where}{suggest_name(target, known)}")
        return target
    found = [n for n in TARGETS if n in known]
    if not found:
        raise SteppeError(f"No name in {where} ({', '.join(known)}) is usual for a target: say which one it is, with "
                          "steppe.from_dataset(train, test, target=…).")  # fmt: skip
    return found[0]
