"""Who holds which training samples, and which are set aside for validation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from steppe.core.errors import SettingError, SteppeError
from steppe.data.dataset import Data
from steppe.data.given_partition import as_labels, check_indices, choose_held_out, number_clients, split_indices
from steppe.data.named_datasets import load
from steppe.data.partition import BY_GROUPS, Partition, as_array, make

OWN = "own:"  # precedes the name of the user's own object, as in the configuration


def divide(data: Data, rule: str, clients: int, seed: int | None = None, validation: float | None = 0.0,
           validation_seed: int = 0, given: Partition | None = None) -> tuple[Data, Partition]:  # fmt: skip
    """Return the data without its validation samples, and their partition by a rule, a file or as given.

    A rule divides what validation leaves. Indices that the user gives, and the clients that the data name, refer to
    the data as they are; validation then takes its share of every client. Without a share, None, a file's is right.
    """
    fixed = given if given is not None else _find_fixed(data, rule, clients)
    if fixed is None:
        chosen = data.choose_validation(validation, validation_seed) if validation else None
        data = data if chosen is None else data.hold_out(chosen)
        targets = data.train_targets.cpu().numpy() if data.by is None else as_labels(data.by, len(data.train_targets))
        split = make(rule, targets, clients, seed, classes=data.classes if data.by is None else None)
        # The indices refer to what is left, so that the file of a partition is of no use without these.
        return data, split if chosen is None else replace(split, held_out=chosen.numpy())
    if len(fixed.clients) != clients:
        where = "partition" if fixed.given else rule
        raise SettingError(f"{where} has {len(fixed.clients)} clients, but clients is {clients}: set clients to "
                           f"{len(fixed.clients)}.", "clients")  # fmt: skip
    before, held = len(data.train_targets), 0 if fixed.held_out is None else len(fixed.held_out)
    if (fixed.given or held) and fixed.samples not in (None, before - held):
        left = f" and sets {held} of them aside" if held else ""
        raise SteppeError(f"partition has a client for {fixed.samples} samples{left}, but {data.name} has {before} "
                          "training samples.")  # fmt: skip
    if fixed.held_out is not None:  # a run's own file
        if odd := next((i for i in fixed.held_out.tolist() if not 0 <= i < before), None):
            raise SteppeError(
                f"partition: held_out has the index {odd}, but {data.name} has {before} training samples."
            )
        if validation is not None and abs(held - validation * before) > len(
            fixed.clients
        ):  # shares of clients are rounded
            raise SettingError(f"partition {rule} holds out {held} of {before} samples, but validation is "
                               f"{validation:g}: set validation to {held / before:.4g}", "validation")  # fmt: skip
        data = data.hold_out(fixed.held_out)
    elif validation and not fixed.given and fixed.samples != before:  # made from what validation had left
        data = data.with_validation(validation, validation_seed)
    check_indices(fixed, len(data.train_targets), data.name, repeats=not fixed.given)
    if validation and len(data.train_targets) == before:
        held_out = choose_held_out(fixed, validation, validation_seed)
        data, fixed = data.hold_out(held_out), _leave_out(fixed, held_out, before)
    return data, fixed


def take_division(data: Data | None, named: str, options: dict[str, Any]) -> tuple[Data | None, Partition | None]:
    """Take `groups`, `by` and a partition that is an object out of a run's options; set what follows from them.

    The user's own partition is `own:indices` or `own:groups` in the configuration.
    """
    groups, by, split = options.pop("groups", None), options.pop("by", None), None
    rule = options.get("partition")
    if groups is not None and (by is not None or rule is not None):
        raise SteppeError("groups says which client holds each sample, so there is nothing left to divide: leave out "
                          f"{'by' if by is not None else 'partition'}.")  # fmt: skip
    if groups is not None:
        numbers, _ = number_clients(groups, None if data is None else len(data.train_targets))
        split = replace(make("natural", numbers, int(numbers.max()) + 1), rule=BY_GROUPS)
        options["partition"] = f"{OWN}groups"
    elif rule is not None and not isinstance(rule, str | Path):
        split = rule if isinstance(rule, Partition) else split_indices(rule)
        if by is not None:
            raise SteppeError("by needs a rule, such as partition='lda(0.3)', and partition gives the indices.")
        if split.samples is None and data is not None:
            split = replace(split, samples=len(data.train_targets))
        options["partition"] = f"{OWN}indices"
    elif isinstance(rule, Path):
        options["partition"] = str(rule)
    if by is not None:
        if isinstance(rule, str | Path) and (str(rule).strip() in ("iid", "natural") or is_file(str(rule))):
            raise SteppeError(f"by is what a label rule divides by, such as partition='lda(0.3)'; {rule} does not "
                              "read it: leave it out.")  # fmt: skip
        data = data if data is not None else load(named, options.get("data_folder"))
        as_labels(by, len(data.train_targets))  # a mistake is found here
        data = replace(data, by=as_array(by))
    if data is not None and "partition" not in options:
        if data.groups is not None:
            options["partition"] = "natural"
        elif data.classes is None and data.by is None:
            options["partition"] = "iid"  # the only rule that needs no class labels
    clients = count_clients(rule) if split is None else len(split.clients)
    if options.get("partition") == "natural" and data is not None and data.groups is not None:
        clients = len(np.unique(data.groups))
    if clients is not None:
        options.setdefault("clients", clients)
    return data, split


def is_file(partition: str) -> bool:
    """Return whether this is the path of a file and not a rule."""
    try:
        return Path(partition).is_file()
    except OSError:  # too long for a name, for instance
        return False


def count_clients(partition: Any) -> int | None:
    """Return how many clients a partition's file has; None for a rule."""
    named = isinstance(partition, str | Path) and is_file(str(partition))
    return len(Partition.load(str(partition)).clients) if named else None


def _find_fixed(data: Data, rule: str, clients: int) -> Partition | None:
    """Return a partition that does not depend on labels: from a file, or by the clients that the data define."""
    if is_file(rule):
        return Partition.load(rule)
    if rule.strip() != "natural":
        return None
    if data.groups is None:
        raise SteppeError(f"partition = natural needs data that say whose each sample is, which {data.name} do not: "
                          "use steppe.from_clients or groups=, or a rule such as lda(0.3).")  # fmt: skip
    return make(rule, data.groups, clients)


def _leave_out(split: Partition, held_out: np.ndarray, samples: int) -> Partition:
    """Return the partition of what is left, with indices into that."""
    kept = np.ones(samples, bool)
    kept[held_out] = False
    place = np.cumsum(kept) - 1
    clients = tuple(place[own[kept[own]]] for own in split.clients)
    if any(len(own) == 0 for own in clients):  # only where clients share samples
        raise SteppeError("Validation would take all samples of a client: choose a smaller share.")
    return replace(split, clients=clients, samples=int(kept.sum()), held_out=held_out)
