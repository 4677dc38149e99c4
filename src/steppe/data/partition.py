"""Partitions: which client holds which training samples.

A partition is made from a rule, a short text such as `lda(0.1)`. The rules are in rules.py.

    >>> split = make("dirichlet(0.5)", np.arange(100) % 4, clients=5, seed=0)
    >>> len(split.clients), int(split.sizes.sum())
    (5, 100)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.random import RandomState
from torch import Tensor

from steppe.core.atomic_write import save_figure, write_atomically
from steppe.core.errors import SettingError, SteppeError, quote
from steppe.core.ordinary_files import check_ordinary
from steppe.data.draw_clients import DrawnClients
from steppe.data.rules import OFFICIAL_SEEDS, PARTITIONS
from steppe.settings import parse_rule

# The rules of partitions that no rule made: indices or groups from the user, the samples of a federation's node.
BY_INDICES, BY_GROUPS, ON_NODE = "own indices", "own groups", "own"


@dataclass(frozen=True, eq=False)
class Partition:
    """Training indices (int64) of each client, with the rule and the seed that they come from.

    The indices refer to so many training samples (`samples`), of which those for validation were taken out before
    (`held_out`, indices into the data as given), if any.
    """

    clients: Sequence[np.ndarray]  # indices of each client's training samples
    rule: str  # the rule with its numbers
    seed: int  # of the rule
    samples: int | None = None  # number of training samples that were divided
    held_out: np.ndarray | None = None  # those that were taken out for validation before

    @property
    def given(self) -> bool:
        """Return whether the user gave it, as indices or as groups."""
        return self.rule in (BY_INDICES, BY_GROUPS)

    @property
    def title(self) -> str:
        """Return the rule, and the seed if it has one."""
        return self.rule if self.given else f"{self.rule}, seed {self.seed}"

    @property
    def sizes(self) -> np.ndarray:
        """Return the number of samples of each client."""
        if isinstance(self.clients, DrawnClients):
            return np.full(len(self.clients), self.clients.each)
        return np.array([len(indices) for indices in self.clients])

    @property
    def hash(self) -> str:
        """Return sixteen hexadecimal digits that depend on all indices and on the borders between clients."""
        if isinstance(self.clients, DrawnClients):
            return hashlib.sha256(self.clients.content).hexdigest()[:16]
        content = np.concatenate([self.sizes, *self.clients]).astype("<i8")
        return hashlib.sha256(content.tobytes()).hexdigest()[:16]

    def counts(self, targets: Any, classes: int) -> np.ndarray:
        """Return the number of samples per client and class: (clients, classes)."""
        labels = as_array(targets)
        return np.stack([np.bincount(labels[indices], minlength=classes) for indices in self.clients])

    def as_json(self) -> str:
        """Return the partition as JSON."""
        content: dict[str, Any] = {"rule": self.rule, "seed": self.seed, "hash": self.hash}
        if self.samples is not None:
            content["samples"] = self.samples
        if self.held_out is not None:
            content["held_out"] = self.held_out.tolist()
        if isinstance(drawn := self.clients, DrawnClients):  # what the samples follow from, not the samples
            labels = {} if drawn.kinds is None else {"labels": drawn.labels.tolist()}
            return json.dumps(content | {"clients": len(drawn), **labels})
        return json.dumps(content | {"clients": [c.tolist() for c in self.clients]})

    def save(self, path: str | Path) -> None:
        """Write the partition as JSON."""
        write_atomically(Path(path), lambda aside: aside.write_text(self.as_json()))

    @staticmethod
    def load(path: str | Path) -> Partition:
        """Read a partition from JSON: one that was saved, whose hash is checked, or one written by hand.

        By hand, `[[0, 1], [2, 3]]` and `{"clients": [[0, 1], [2, 3]]}` are the indices of each client, and
        `{"groups": ["a", "a", "b", "b"]}` is the client of each training sample.
        """
        from steppe.data.given_partition import number_clients, split_indices

        try:
            content = json.loads(check_ordinary(Path(path)).read_text("utf-8-sig"))  # some editors write a BOM
            content = {"clients": content} if isinstance(content, list) else content
            if "groups" in content and "clients" in content:
                raise SteppeError("it has both clients and groups; give one of them.")
            if "groups" in content:
                groups = number_clients(content["groups"])[0]
                return replace(make("natural", groups, int(groups.max()) + 1), rule=BY_GROUPS)
            held_out = np.array(content["held_out"], np.int64) if "held_out" in content else None
            if "hash" not in content:
                split = split_indices(content["clients"])
                return replace(split, samples=content.get("samples", split.samples), held_out=held_out)
            if isinstance(count := content["clients"], int):
                labels = np.array(content.get("labels", np.zeros(content["samples"])), np.int64)
                loaded = replace(make(content["rule"], labels, count, content["seed"]), held_out=held_out)
            else:
                clients = tuple(np.array(indices, np.int64) for indices in count)
                loaded = Partition(clients, content["rule"], content["seed"], content.get("samples"), held_out)
            intact = loaded.hash == content["hash"]
        except FileNotFoundError as error:
            raise SteppeError(f"The partition file {path} does not exist.") from error
        except SteppeError as error:
            raise SteppeError(f"{path}: {error}") from error
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise SteppeError(f"{path} is not a saved partition ({type(error).__name__}: {error}); save it again, or "
                              'write {"clients": [[0, 1], [2, 3]]}.') from error  # fmt: skip
        if not intact:
            raise SteppeError(f"{path} does not match its own hash: it was edited or damaged; save it again.")
        return loaded

    def plot(self, targets: Any, classes: int, path: str | Path | None = None) -> Any:
        """Plot clients × classes, and return the axes; the area of a dot is proportional to the number of samples.

        With a path, write a picture; otherwise it is left to pyplot, and a notebook shows it.
        """
        counts = self.counts(targets, classes)
        client, label = np.nonzero(counts)
        area = counts[client, label]
        size = (max(4, 0.12 * len(self.clients) + 1.5), max(2.5, 0.25 * classes + 1))
        if path is None:
            from matplotlib import pyplot

            figure = pyplot.figure(figsize=size, layout="constrained")
        else:
            from matplotlib.figure import Figure

            figure = Figure(figsize=size)
        axes = figure.subplots()
        axes.scatter(client, label, s=120 * area / area.max(), color="#2a6f97", linewidths=0)
        axes.set(xlabel="client", ylabel="class", title=self.title)
        axes.set(xlim=(-1, len(self.clients)), ylim=(-1, classes))
        if path is not None:
            save_figure(figure, path, bbox_inches="tight", dpi=150)
        return axes


def make(rule: str, targets: Any, clients: int, seed: int | None = None, *, classes: int | None = None) -> Partition:
    """Divide training samples among clients by a rule such as `iid` or `lda(0.1)`.

    Without a seed, that of the rule's original recipe is used. `classes` is needed only to notice trailing classes
    without samples. Floating-point targets (regression) allow only `iid` and `drawn(n)`. For `natural`, the targets are
    a client's number per sample.
    """
    function, arguments = parse(rule)
    name = function.__name__
    labels = as_array(targets)
    seed = OFFICIAL_SEEDS[name] if seed is None else int(seed)
    if not 0 <= seed < 2**32:
        raise SteppeError(f"The partition seed {seed} must lie between 0 and 2**32 - 1.")
    if clients < 1:
        raise SteppeError(f"A partition over {clients} clients is impossible; ask for at least 1.")
    shares = name == "drawn"  # clients share samples
    if len(labels) < clients and not shares:
        raise SteppeError(f"{len(labels)} samples are too few for {clients} clients; ask for fewer clients.")
    if name not in ("iid", "natural") and not (shares and len(arguments) == 1):
        _check_labels(rule, labels, classes)
    parts = _divide(name, tuple(arguments), seed, clients, labels.dtype.str, labels.shape, labels.tobytes())
    rule = rule.replace(" ", "")
    if isinstance(parts, DrawnClients):
        return Partition(parts, rule, seed, len(labels))
    if empty := sum(len(part) == 0 for part in parts):
        raise SteppeError(f"{rule} leaves {empty} of {clients} clients empty; ask for fewer clients.")
    return Partition(tuple(part.astype(np.int64) for part in parts), rule, seed, len(labels))


@lru_cache(maxsize=8)
def _divide(
    name: str, arguments: tuple[float, ...], seed: int, clients: int, dtype: str, shape: tuple[int, ...], labels: bytes
) -> Sequence[np.ndarray]:
    """Apply a rule. Cached, because runs in one process often share a partition, and retries may take seconds."""
    function, _ = PARTITIONS[name]
    return function(RandomState(seed), np.frombuffer(labels, dtype).reshape(shape), clients, *arguments)


def replay(partition: Partition, targets: Any) -> RandomState:
    """Return the generator as the partition left it, for recipes that continue to draw from it."""
    rng = RandomState(partition.seed)
    function, arguments = parse(partition.rule)
    function(rng, as_array(targets), len(partition.clients), *arguments)
    return rng


def parse(rule: str) -> tuple[Callable[..., Sequence[np.ndarray]], list[float]]:
    """Parse a rule such as `lda(0.1)` into its function and its numbers."""
    if Path(rule).suffix == ".json":  # a path that exists is not asked here
        raise SettingError(f"there is no file {quote(rule)}", "partition")
    function, numbers = parse_rule(rule, "partition", PARTITIONS, given=3)
    if not all(numbers):
        raise SettingError(f"partition is {quote(rule)}: its numbers must be positive", "partition")
    return function, numbers


def is_rule(text: str) -> bool:
    """Return whether a partition is given as a rule, and not as a file or by the user's own indices."""
    try:
        return bool(parse(text))
    except SteppeError:
        return False


def as_array(targets: Any) -> np.ndarray:
    """Return targets as a numpy array, from any device."""
    if not isinstance(targets, Tensor):
        return np.asarray(targets)
    values = targets.detach().cpu()
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()


def _check_labels(rule: str, labels: np.ndarray, classes: int | None) -> None:
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise SteppeError(f"{rule} divides by class, but these targets are not class labels; use iid, or say what to "
                          "divide by (in Python, by=…).")  # fmt: skip
    if labels.min() < 0:
        raise SteppeError(f"A label is {labels.min()}; labels must be numbered from 0.")
    present = np.bincount(labels, minlength=classes or 0)
    if not present.all():
        raise SteppeError(
            f"Class {int(np.argmin(present))} has no training samples, so {rule} cannot divide it; "
            "renumber the labels 0, 1, 2, … without gaps, or use iid."
        )
