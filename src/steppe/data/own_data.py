"""The user's own data, in any of these forms: arrays, data sets, tables, or one data set per client."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map

from steppe.core.errors import SteppeError, quote, suggest_name
from steppe.core.inputs import arrange, count, list_named_tensors, show_shape
from steppe.data.arrays import as_inputs, as_tensor, as_words, check_columns, check_rows
from steppe.data.dataset import Data, from_arrays
from steppe.data.examples import Columns, is_array, is_pair, is_table, read_columns
from steppe.data.given_partition import as_ids, number_clients

ARRAYS = ("x", "y", "test_x", "test_y")
FORMS = ("data must be a name, a steppe.Data, four arrays (x, y, test_x, test_y), two data sets or tables (train, "
         "test), a dict of splits {'train': …, 'test': …}, or steppe.from_clients([…])")  # fmt: skip


def as_data(given: Any) -> Data:
    """Return the data of a run from any of the forms that Python's `run` takes."""
    if isinstance(given, Data):
        return given
    if isinstance(given, Mapping):
        if set(ARRAYS) <= set(given):
            return from_arrays(*(given[name] for name in ARRAYS))
        return from_dataset(given)
    if isinstance(given, tuple | list) and len(given) == 4 and not isinstance(given[0], str):
        return from_arrays(*given)
    if isinstance(given, tuple | list) and len(given) == 2:
        if all(map(is_array, given)):
            raise SteppeError("data are two arrays, so there is no test set: give (x, y, test_x, test_y).")
        return from_dataset(*given)
    if is_table(given) or (hasattr(given, "__getitem__") and hasattr(given, "__len__") and not is_array(given)
                           and not isinstance(given, str | bytes | tuple | list)):  # fmt: skip
        raise SteppeError("data are one data set, so there is no test set: give two, (train, test).")
    raise SteppeError(f"{FORMS}, not {quote(type(given).__name__)}.")


def from_dataset(train: Any, test: Any = None, *, target: str | None = None, inputs: Any = None,
                 groups: Any = None, **options: Any) -> Data:  # fmt: skip
    """Create data from two data sets, read into memory once.

    A data set is a torch data set or loader, a list of pairs, a pandas frame, a Hugging Face data set, a dict of
    columns, or a pair of arrays.

    train    the training data, or a dict of splits, such as a Hugging Face DatasetDict
    test     the test data
    target   the column of the targets
    inputs   the column of the inputs, or several
    groups   the column that says to which client a sample belongs, or the client of each training sample
    options  those of `from_arrays`
    """
    _check_options("from_dataset", options)
    if test is None:
        train, test = _find_splits(train)
    column = groups if isinstance(groups, str) else None
    if column is None:
        options["groups"] = groups
    first = read_columns(train, "train", target, inputs, column)
    columns = [first, read_columns(test, "test", target, inputs, column, first)]
    options.setdefault("class_names", columns[0].class_names)
    return _add_groups(from_arrays(*columns[0][:2], *columns[1][:2], **options), columns)


def _check_options(function: str, options: dict[str, Any], own: str = "") -> None:
    """Refuse an option that `from_arrays` does not have, or that this function gives itself."""
    known = [k for k, p in inspect.signature(from_arrays).parameters.items() if p.kind == p.KEYWORD_ONLY and k != own]
    if odd := next((k for k in options if k not in known), None):
        raise SteppeError(f"{function} has no argument {odd}{suggest_name(odd, known)}")


def _find_splits(given: Any) -> tuple[Any, Any]:
    splits = set(given) if isinstance(given, Mapping) else set()
    test = next((name for name in ("test", "validation", "valid", "val", "dev") if name in splits), None)
    if "train" in splits and test is not None:
        return given["train"], given[test]
    if splits:
        raise SteppeError(f"data have the names {', '.join(map(str, sorted(splits, key=str)))}; the splits train and "
                          "test are needed, or x, y, test_x and test_y.")  # fmt: skip
    raise SteppeError("data are one data set, so there is no test set: give two, (train, test).")


def _add_groups(data: Data, columns: list[Columns]) -> Data:
    if columns[0].groups is None:
        return data
    numbers, names = number_clients(columns[0].groups, len(data.train_targets))
    tests = None
    if columns[1].groups is not None:
        place = {name: i for i, name in enumerate(names)}
        tests = np.array([place.get(str(g), -1) for g in as_ids(columns[1].groups).tolist()])
    return replace(data, groups=numbers, test_groups=tests, client_names=names)


def from_clients(clients: Any, test: Any = None, *, target: str | None = None, inputs: Any = None,
                 name: str = "clients", **options: Any) -> Data:  # fmt: skip
    """Create a natural federation from one data set per client, in a list or in a dict by name.

    clients  for each client (x, y), or (x, y, test_x, test_y) with its own test set, or a data set as
             `from_dataset` reads it, or two of them, or a dict of its splits
    test     a common test set; without one, those of all clients together are used
    target   the column of the targets, of tables
    inputs   the column of the inputs, or several
    name     the name in records
    options  those of `from_arrays`
    """
    _check_options("from_clients", options, own="groups")
    names = tuple(map(str, clients)) if isinstance(clients, Mapping) else None
    if names and {"train", "test"} <= set(names):
        raise SteppeError("from_clients needs the data of each client, but these are the splits train and test of one "
                          "data set: use steppe.from_dataset, with groups=… for its clients.")  # fmt: skip
    items = list(clients.values()) if isinstance(clients, Mapping) else clients
    if not isinstance(items, Sequence) or not len(items):
        raise SteppeError(f"from_clients needs a list with the data of each client, not {quote(items)}.")
    pairs = [_read_client(0, items[0], target, inputs)]
    first = pairs[0][0]
    pairs += [_read_client(i, one, target, inputs, first) for i, one in enumerate(items[1:], 1)]
    trains, tests = [p[0] for p in pairs], [p[1] for p in pairs]
    owners = [i for i, t in enumerate(tests) if t is not None]
    if test is not None:
        tests, owners = [read_columns(test, "test", target, inputs, like=first)], []
    elif not owners:
        raise SteppeError("No client has test samples: give each (x, y, test_x, test_y), or a common test set with "
                          "test=(x, y).")  # fmt: skip
    tested = [t for t in tests if t is not None]
    x, y, sizes = _concatenate(trains, "train", list(range(len(trains))))
    test_x, test_y, test_sizes = _concatenate(tested, "test", owners)
    data = from_arrays(x, y, test_x, test_y, name=name, **options)
    return replace(data, groups=np.repeat(np.arange(len(trains)), sizes), client_names=names,
                   test_groups=np.repeat(owners, test_sizes) if owners else None)  # fmt: skip


def _read_client(number: int, given: Any, target: str | None, inputs: Any,
                 like: Columns | None = None) -> tuple[Columns, Columns | None]:  # fmt: skip
    part = f"client {number}"
    if isinstance(given, Data):
        raise SteppeError(f"Client {number} is given as a steppe.Data, whose classes may be numbered otherwise than "
                          "another client's: give its arrays or its table, with target=… and inputs=….")  # fmt: skip
    if isinstance(given, Mapping) and "train" in given:
        given = _find_splits(given)
    elif isinstance(given, Mapping) and set(given) == set(ARRAYS):
        given = tuple(given[name] for name in ARRAYS)
    several = isinstance(given, tuple | list) and not _are_examples(given)
    if several and len(given) == 4:
        return Columns(*given[:2]), None if _is_empty(given[3]) else Columns(*given[2:])
    if several and len(given) == 2:
        if any(map(is_array, given)) or (isinstance(given[1], list) and isinstance(given[1][0], int | float | str)):
            return Columns(*given), None
        train = read_columns(given[0], part, target, inputs, like=like)
        empty = _is_empty(given[1][1] if is_pair(given[1]) else given[1])
        return train, None if empty else read_columns(given[1], part, target, inputs, like=like or train)
    return read_columns(given, part, target, inputs, like=like), None


def _is_empty(given: Any) -> bool:
    return hasattr(given, "__len__") and getattr(given, "ndim", 1) > 0 and not len(given)


def _are_examples(given: Any) -> bool:
    """Return whether this is a list of examples (input, label), and not of columns or of data sets."""
    first = given[0] if len(given) else None
    return isinstance(given, list) and isinstance(first, tuple | list) and len(first) > 1 and (
        isinstance(first[-1], int | float | str) or getattr(first[-1], "shape", None) == ()
    ) and not isinstance(first[0], int | float | str)  # fmt: skip


def _concatenate(columns: list[Columns], part: str, owners: list[int]) -> tuple[Any, Any, list[int]]:
    """Return inputs and targets of all clients one after the other, and their numbers of samples."""
    whose = [f"client {i}'s {part}" for i in owners] or [part]
    of = [f" of client {i}" for i in owners] or [""]
    read = [as_inputs(c.inputs, f"{part} inputs{who}") for c, who in zip(columns, of, strict=True)]
    read = [arrange(x, read[0]) for x in read]
    for x, c, who, client in zip(read, columns, whose, of, strict=True):
        check_rows(c.inputs, c.targets, f"{part}{client}")
        check_columns(columns[0].inputs, c.inputs, f"{part} inputs{of[0]}", f"{part} inputs{client}")
        if getattr(c.targets, "ndim", 1) == 0:
            raise SteppeError(f"The {part} targets{client} are a single number; give one value per sample.")
        if show_shape(x) != show_shape(read[0]):
            raise SteppeError(f"{who.capitalize()} inputs have the shape {show_shape(x)}, but {whose[0]} inputs have "
                              f"{show_shape(read[0])}; make them equal.")  # fmt: skip
        if count(x) != len(c.targets) or count(x) == 0:
            raise SteppeError(f"{who.capitalize()} data have {count(x)} inputs and {len(c.targets)} targets; at least "
                              "one sample is needed, with a target each.")  # fmt: skip
        kinds = [[t.dtype for _, t in list_named_tensors(one, "")] for one in (x, read[0])]
        if kinds[0] != kinds[1]:
            raise SteppeError(f"{who.capitalize()} inputs are of type {kinds[0][0]}, but {whose[0]} inputs are of type "
                              f"{kinds[1][0]}; make them equal.")  # fmt: skip
    inputs = tree_map(lambda *t: torch.cat(t), *read)
    words = [as_words(c.targets) for c in columns]
    if any(text := [one is not None for one in words]):
        if not all(text):
            raise SteppeError(f"{whose[text.index(True)].capitalize()} targets are text, but "
                              f"{whose[text.index(False)]} targets are numbers; make them equal.")  # fmt: skip
        targets: Any = np.concatenate(words)  # type: ignore[arg-type]
    else:
        rows = [as_tensor(c.targets, f"{part} targets{who}") for c, who in zip(columns, of, strict=True)]
        if odd := next((i for i, r in enumerate(rows) if r.shape[1:] != rows[0].shape[1:]), None):
            raise SteppeError(f"{whose[odd].capitalize()} targets have the shape {tuple(rows[odd].shape[1:])}, but "
                              f"{whose[0]} targets have {tuple(rows[0].shape[1:])}; make them equal.")  # fmt: skip
        floats = [r.is_floating_point() for r in rows]
        if any(floats) and not all(floats):
            raise SteppeError(f"{whose[floats.index(True)].capitalize()} targets are floats, but "
                              f"{whose[floats.index(False)]} targets are whole numbers; make them equal.")  # fmt: skip
        targets = torch.cat(rows)
    return inputs, targets, [count(x) for x in read]
