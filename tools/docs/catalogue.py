"""Methods and parts for their pages: read from the catalogue, built, and traced."""

from __future__ import annotations

import inspect
import pkgutil
import re
import warnings
from dataclasses import dataclass, fields
from functools import cache
from importlib import import_module
from typing import Any, Literal, get_args, get_origin

import torch
from tools.docs.bibliography import Paper, read_papers
from tools.docs.docstrings import Document, describe

from steppe import parts as ideas
from steppe.algorithms import CATALOGUE, Parts
from steppe.citations import cite
from steppe.core.cost import Cost, Traced, trace_round
from steppe.core.part import Part
from steppe.core.ranges import read_hints
from steppe.core.task import Task
from steppe.engine.optimisers import NAMED
from steppe.models import build
from steppe.parts.own_optimiser import OwnOptimiser
from steppe.parts.sgd import SGD
from steppe.registry import assemble, list_settings

MODEL, SHAPE, CLASSES, BATCH = "cnn", (3, 32, 32), 10, 50  # what is traced: the FedAvg paper's CNN on CIFAR-10


@dataclass(frozen=True)
class Method:
    """A catalogue entry."""

    name: str
    title: str
    source: str  # as its docstring cites it
    idea: str
    document: Document

    @property
    def function(self) -> Any:
        return CATALOGUE[self.name]

    @property
    def year(self) -> str:
        return (re.findall(r"\b(?:19|20)\d\d\b", self.source) or [""])[0]

    @property
    def choices(self) -> dict[str, tuple[str, ...]]:
        """Return the settings that choose between named rules."""
        hints = read_hints(self.function)
        return {
            key: get_args(hints[key]) for key in list_settings(self.function) if get_origin(hints.get(key)) is Literal
        }

    def make(self, **given: Any) -> Parts:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a rule that diverges says so
            return self.function(**given)

    def papers(self) -> tuple[list[Paper], list[Paper]]:
        """Return its own papers, and those of its parts: its docstring names the first authors and the year."""
        papers = read_papers(cite(self.name))
        own = [p for p in papers if p.fields["year"] in self.source and all(a in self.source for a in p.authors[:1])]
        return own, [p for p in papers if p not in own]


@cache
def list_methods() -> dict[str, Method]:
    """Return all entries, in the catalogue's order."""
    found = {}
    for name, function in CATALOGUE.items():
        document = describe(function)
        head, _, idea = document.idea.partition(": ")
        title, _, source = head.partition(" (")
        found[name] = Method(name, title, source.rstrip(")"), idea, document)
    return found


@cache
def list_parts() -> dict[str, type[Part]]:
    """Return every class of a part by the name of its page: its own name, or its class's where it inherits that."""
    found = {}
    for module in pkgutil.iter_modules(ideas.__path__):
        for one in vars(import_module(f"{ideas.__name__}.{module.name}")).values():
            if isinstance(one, type) and issubclass(one, Part) and one.__module__.endswith(f".{module.name}"):
                found[page_of(one)] = one
    return dict(sorted(found.items()))


def page_of(part: type[Part]) -> str:
    """
    >>> from steppe.parts.printed_bias import PrintedBias
    >>> page_of(SGD), page_of(PrintedBias)
    ('sgd', 'printed_bias')
    """
    return part.name if "name" in vars(part) else re.sub(r"(?<!^)(?=[A-Z])", "_", part.__name__).lower()


@cache
def list_uses() -> dict[type[Part], list[tuple[str, Part]]]:
    """Return for each class of part the entries that use it, in any of their choices, with the part as they make it."""
    found: dict[type[Part], dict[str, Part]] = {}
    for name, method in list_methods().items():
        made = [method.make(), *(_try(method, key, c) for key, several in method.choices.items() for c in several)]
        for part in (one for parts in made for one in open_up(parts)):
            found.setdefault(type(part), {}).setdefault(name, part)
    return {kind: list(uses.items()) for kind, uses in found.items()}


def open_up(parts: Parts) -> list[Part]:
    """Return parts, and after each the part that it contains, if there is one."""
    return [one for p in parts for one in (p, getattr(p, "of", None)) if isinstance(one, Part)]


def _try(method: Method, key: str, choice: str) -> Parts:
    try:
        return method.make(**{key: choice})
    except ValueError:  # a choice that needs another one
        return ()


@cache
def make_example(kind: type[Part]) -> Part:
    """Return an instance: as a catalogue entry has it if something must be set, otherwise with its defaults."""
    if kind is OwnOptimiser:
        return OwnOptimiser.of(lambda d, w, memory, k: d, "rule", 0.0, None)
    needed = [f.name for f in fields(kind) if list_settings(kind).get(f.name) is inspect.Parameter.empty]  # type: ignore[arg-type]
    used = list_uses().get(kind)
    given = {key: getattr(used[0][1], key) if used else 1.0 for key in needed}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return kind(**given)


@cache
def _task() -> tuple[Task, dict[str, torch.Tensor]]:
    with torch.device("meta"):
        task = Task(build(MODEL, CLASSES, SHAPE))
        return task, {"x": torch.zeros(BATCH, *SHAPE), "y": torch.zeros(BATCH, dtype=torch.int64)}


@cache
def trace(parts: Parts) -> tuple[Traced, Cost]:
    """Trace one client's round of these parts, with the optimiser SGD unless one of them is an optimiser."""
    optimisers = [p for p in parts if type(p) in (*NAMED.values(), OwnOptimiser)]
    inside = tuple(p for p in parts if p not in optimisers)
    algorithm = assemble(inside, optimisers[0] if optimisers else SGD(), (), "traced")
    found = trace_round(algorithm, *_task())
    return found, found.weigh(_task()[0])


def model_size() -> int:
    return _task()[0].layout.size
