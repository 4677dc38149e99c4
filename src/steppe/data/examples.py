"""Columns of inputs and targets from the user's data sets: torch data sets and loaders, tables, lists of pairs.

An example is a pair (input, target), a tuple of several inputs and a target, or a dict. In a dict and in a table, the
target is found by its name, and all other columns are inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from steppe.core.errors import SteppeError, quote, suggest_name

TARGETS = ("label", "labels", "target", "targets", "y")  # usual names
SHOWN = 20  # names that an error lists


class Choice(NamedTuple):
    """Names of columns, as the user gives them."""

    target: str | None = None
    inputs: Any = None  # one or several; by default, all but the others
    groups: str | None = None

    def list_inputs(self, names: list[str], target: str) -> list[str]:
        """Return which of these columns are inputs."""
        if isinstance(self.inputs, str | int):
            return [str(self.inputs)]
        return list(map(str, self.inputs or [n for n in names if n not in (target, self.groups)]))


class Columns(NamedTuple):
    """Inputs and targets of all examples, and what else is known of them."""

    inputs: Any
    targets: Any
    groups: Any = None  # the client of each example
    class_names: tuple[str, ...] | None = None
    names: tuple[str, ...] = ()  # of a table: the columns that are inputs


def is_array(given: Any) -> bool:
    """Return whether this is one array, and not a table or data set."""
    return hasattr(given, "dtype") and hasattr(given, "shape") and not hasattr(given, "columns")


def is_table(given: Any) -> bool:
    """Return whether this has columns by name: a frame, a Hugging Face data set, a dict of columns."""
    return hasattr(given, "columns") or hasattr(given, "column_names") or isinstance(given, Mapping)


def read_columns(source: Any, part: str, target: str | None = None, inputs: Any = None,
                 groups: str | None = None, like: Columns | None = None) -> Columns:  # fmt: skip
    """Read a data set into memory. `target`, `inputs` and `groups` are names of columns.

    A table must have the inputs of the one before, `like`, and they are read in the order that they have there.
    """
    if isinstance(source, IterableDataset) or isinstance(getattr(source, "dataset", None), IterableDataset):
        raise SteppeError(f"The {part} data set is an IterableDataset, which has no length and no order: read it into "
                          f"a list, list({part}).")  # fmt: skip
    if isinstance(source, Iterator):
        raise SteppeError(f"The {part} data set is {quote(source)}, which can be read only once: make a list of it.")
    if isinstance(source, type):
        raise SteppeError(f"The {part} data set is the class {source.__name__}: give an instance, "
                          f"{source.__name__}(…).")  # fmt: skip
    if is_pair(source):
        return Columns(*source)
    choice = Choice(None if target is None else str(target), inputs, groups)
    if is_table(source):
        return _read_table(source, part, choice, like)
    if isinstance(source, DataLoader):
        return _read_loader(source, part, choice)
    if not hasattr(source, "__getitem__") or not hasattr(source, "__len__"):
        raise SteppeError(f"The {part} data set is {quote(source)}, but must be map-style, with len(d) and d[i].")
    if len(source) == 0:
        raise SteppeError(f"The {part} data set is empty; at least one sample is needed.")
    return _read_examples(source, part, choice)


def is_pair(given: Any) -> bool:
    """Return whether this is (x, y): two columns in a tuple, or two arrays in a list."""
    if not isinstance(given, tuple | list) or len(given) != 2:
        return False
    framed = hasattr(given[0], "columns") and is_array(given[1])
    return framed or all(map(_is_column if isinstance(given, tuple) else _is_rows, given))


def _is_rows(given: Any) -> bool:
    return is_array(given) and len(given.shape) > 0


def _is_column(given: Any) -> bool:
    return is_array(given) or isinstance(given, dict | list) or (
        isinstance(given, tuple) and bool(given) and all(map(is_array, given))
    )  # fmt: skip


def _get_item(source: Any, index: int, part: str) -> Any:
    try:
        return source[index]
    except Exception as error:  # the user's data set may raise anything
        raise SteppeError(f"Sample {index} of the {part} data set, which has the length {len(source)}, cannot be read: "
                          f"{type(error).__name__}: {error}.") from error  # fmt: skip


def _read_examples(source: Any, part: str, choice: Choice) -> Columns:
    examples = [_read_example(_get_item(source, i, part), part, i, choice) for i in range(len(source))]
    shape = _describe(examples[0].inputs)
    if odd := next((i for i, one in enumerate(examples) if _describe(one.inputs) != shape), None):
        raise SteppeError(f"Sample {odd} of the {part} data set has as inputs {_describe(examples[odd].inputs)}, but "
                          f"sample 0 has {shape}; give all samples the same.")  # fmt: skip
    return _join_examples(examples)


def _describe(inputs: Any) -> str:
    """Return the structure of one sample's inputs as text: a dict and a tuple with what they contain."""
    if isinstance(inputs, Mapping):
        return "{" + ", ".join(sorted(f"{name}: {_describe(one)}" for name, one in inputs.items())) + "}"
    return f"({', '.join(map(_describe, inputs))})" if isinstance(inputs, tuple) else "an array"


def _read_example(given: Any, part: str, index: int, choice: Choice) -> Columns:
    where = f"sample {index} of the {part} data set"
    if isinstance(given, Mapping):
        named = {str(name): value for name, value in given.items()}
        names = list(named)
        target = _find_target(names, choice.target, where)
        chosen = choice.list_inputs(names, target)
        _check_names([*chosen, *([choice.groups] if choice.groups else [])], names, where)
        rest = {k: named[k] for k in chosen}
        return Columns(next(iter(rest.values())) if len(rest) == 1 else rest, named[target],
                       named[choice.groups] if choice.groups else None)  # fmt: skip
    if choice.inputs is not None or choice.groups is not None:
        raise SteppeError(f"{where.capitalize()} has no names, so inputs and groups can choose nothing from it: return "
                          "dicts, or use steppe.from_arrays(…, groups=ids).")  # fmt: skip
    if not isinstance(given, tuple | list) or len(given) < 2:
        raise SteppeError(f"{where.capitalize()} is {quote(given)}, but must be a pair (input, target), several inputs "
                          "and a target, or a dict.")  # fmt: skip
    *several, y = given
    return Columns(several[0] if len(several) == 1 else tuple(several), y)


def _check_names(wanted: list[str], names: list[str], where: str) -> None:
    for column in wanted:
        if column not in names:
            raise SteppeError(f"There is no column {quote(column)} in {where}{suggest_name(column, names)}")


def _join_examples(examples: list[Columns]) -> Columns:
    """Return columns: every place of the inputs' structure as one list."""

    def column(values: list[Any]) -> Any:
        first = values[0]
        if isinstance(first, Mapping):
            return {k: column([v[k] for v in values]) for k in first}
        if isinstance(first, tuple):
            return tuple(column([v[i] for v in values]) for i in range(len(first)))
        return [_as_row(v) for v in values]

    targets = [list(one.targets) if isinstance(one.targets, tuple) else one.targets for one in examples]
    scalars = all(isinstance(y, int | float | str | np.generic) for y in targets)
    groups = None if examples[0].groups is None else [_as_id(one.groups) for one in examples]
    return Columns(column([one.inputs for one in examples]), np.array(targets) if scalars else column(targets), groups)


def _as_row(given: Any) -> Any:
    try:
        return np.asarray(given) if isinstance(given, list) else given
    except ValueError:  # of different lengths: refused where it is known whose inputs they are
        return given


def _as_id(given: Any) -> Any:
    return given.tolist() if is_array(given) else given


def _read_loader(loader: DataLoader[Any], part: str, choice: Choice, size: int = 256) -> Columns:
    """Read what a loader loads, in the data set's order, through its own collate function."""
    source: Any = loader.dataset
    _check_sampler(loader, part)
    pieces = []
    for begun in range(0, len(source), size):
        rows = [_get_item(source, i, part) for i in range(begun, min(begun + size, len(source)))]
        try:
            together = loader.collate_fn(rows) if loader.batch_sampler is not None else None
        except Exception as error:  # the user's function may raise anything
            raise SteppeError(f"The {part} loader cannot make a batch of its samples ({error}): pad them to one "
                              "length, or give the loader a collate_fn that does.") from error  # fmt: skip
        if together is None:
            return _read_examples(source, part, choice)
        pieces.append(_read_example(dict(together) if isinstance(together, Mapping) else together, part, begun, choice))
    if not pieces:
        raise SteppeError(f"The {part} data set is empty; at least one sample is needed.")
    try:
        groups = None if choice.groups is None else [one for piece in pieces for one in _as_id(piece.groups)]
        x, y = (_join_pieces([piece[k] for piece in pieces]) for k in (0, 1))
        return Columns(x, y, groups)
    except (RuntimeError, TypeError, ValueError) as error:
        raise SteppeError(f"The batches of the {part} loader cannot be joined ({error}); pad all samples to one "
                          "length.") from error  # fmt: skip


def _check_sampler(loader: DataLoader[Any], part: str) -> None:
    """Refuse a loader that does not load every sample once: its data set would be read whole."""
    batches: Any = loader.batch_sampler
    own_batches = batches is not None and type(batches) is not BatchSampler
    sampler: Any = batches if own_batches else loader.sampler if batches is None else batches.sampler
    count = len(loader.dataset)  # type: ignore[arg-type]
    if isinstance(sampler, SequentialSampler | RandomSampler) and not getattr(sampler, "replacement", False):
        whole = len(sampler) == count
    else:
        order = (one for several in sampler for one in (several if own_batches else [several]))
        whole = np.array_equal(np.sort(list(islice(order, count + 1))), np.arange(count))
    if not whole:
        raise SteppeError(f"The {part} loader chooses its samples by a {type(sampler).__name__}, but Steppe makes the "
                          "batches itself: give the data set, and for some of its samples "
                          "torch.utils.data.Subset(data, indices).")  # fmt: skip


def _join_pieces(pieces: list[Any]) -> Any:
    if isinstance(pieces[0], Mapping):
        return {k: _join_pieces([p[k] for p in pieces]) for k in pieces[0]}
    if isinstance(pieces[0], tuple | list):
        return tuple(_join_pieces([p[i] for p in pieces]) for i in range(len(pieces[0])))
    return torch.cat([torch.as_tensor(p) for p in pieces])


def _read_table(table: Any, part: str, choice: Choice, like: Columns | None) -> Columns:
    listed: Any = table if isinstance(table, Mapping) else getattr(table, "column_names", None)
    columns = list(table.columns if listed is None else listed)
    place = {str(column): column for column in columns}  # pandas numbers columns that have no names
    names = list(map(str, columns))
    if len(place) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise SteppeError(f"The {part} data have two columns {quote(twice)}: rename one of them.")
    name = _find_target(names, choice.target, f"the {part} data")
    frame = hasattr(table, "columns") and not hasattr(table, "column_names")
    wanted, owners = _order_inputs(choice.list_inputs(names, name), name, part, like), choice.groups
    _check_names([*wanted, *([owners] if owners else [])], names, f"the {part} data")
    if not wanted:
        raise SteppeError(f"The {part} data have no column but {name!r}, so there is no input.")
    read = {column: _read_column(table, place[column]) for column in [*wanted, name, *([owners] if owners else [])]}
    if part != "test" and len(read[name]) == 0:
        raise SteppeError(f"The {part} data set is empty; at least one sample is needed.")
    rows = {column: read[column] for column in wanted}
    if len(wanted) == 1 and not (frame and np.asarray(rows[wanted[0]]).dtype.kind in "biuf"):
        x = rows[wanted[0]]
    elif frame:  # a frame's columns are the features of one input
        text = [c for c in wanted if np.asarray(rows[c]).dtype.kind not in "biuf"]
        if text:
            raise SteppeError(f"The column {text[0]!r} of the {part} data does not hold numbers: encode it, or leave "
                              "it out with inputs=[…].")  # fmt: skip
        x = np.stack([np.asarray(rows[c], np.float32) for c in wanted], 1)
    else:
        x = rows
    features = getattr(table, "features", None)
    classes = getattr(features.get(name), "names", None) if isinstance(features, Mapping) else None
    return Columns(x, read[name], read[owners] if owners else None, tuple(classes) if classes else None, tuple(wanted))


def _order_inputs(wanted: list[str], target: str, part: str, like: Columns | None) -> list[str]:
    """Return the columns of the inputs, in the order of the table before."""
    if target in wanted:
        raise SteppeError(f"The column {target!r} is the target of the {part} data, so it cannot be an input: leave it "
                          "out of inputs=[…].")  # fmt: skip
    if like is None or not like.names:
        return wanted
    if set(wanted) != set(like.names):
        raise SteppeError(f"The {part} data have the inputs {', '.join(wanted)}, but the data before have "
                          f"{', '.join(like.names)}: give the same columns, or choose with inputs=[…].")  # fmt: skip
    return list(like.names)


def _read_column(table: Any, name: Any) -> Any:
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
        listed = ", ".join(known if len(known) <= SHOWN else [*known[:SHOWN], "…"])
        raise SteppeError(f"No name in {where} ({listed}) is usual for a target: call it label, or say which one it "
                          "is, with steppe.from_dataset(train, test, target=…).")  # fmt: skip
    return found[0]
