"""Several algorithms under one protocol, over several seeds."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from steppe.config import Config
from steppe.core.errors import SteppeError
from steppe.engine.build import build_experiment
from steppe.engine.rounds import Watch, simulate
from steppe.runs.folder import RunFolder

log = logging.getLogger("steppe")


@dataclass
class Entry:
    """One algorithm's runs, a seed each; `failed` holds what went wrong with the others."""

    algorithm: str
    seeds: list[int] = field(default_factory=list)  # of the runs that did not fail
    summaries: list[dict[str, Any]] = field(default_factory=list)
    histories: list[list[dict[str, Any]]] = field(default_factory=list)
    cost: dict[str, Any] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)


def compare(configs: dict[str, Config], seeds: int, out: Path,
            watch: Callable[[str, int], Watch] | None = None) -> list[Entry]:  # fmt: skip
    """Run every configuration with every seed, each in its own folder.

    A finished run that is there already is used again, and one that was interrupted goes on.
    """
    build_experiment(next(iter(configs.values())))  # what is wrong with all of them is said before anything is written
    entries = []
    for label, config in configs.items():
        entry = Entry(label)
        for k in range(seeds):
            one = config.model_copy(update={"seed": config.seed + k})
            where = out / label / f"seed-{one.seed}"
            try:
                folder = RunFolder(where)
                same = folder.is_run_of(one)
                if same and (summary := folder.summary):
                    log.info(f"{label}, seed {one.seed}: used again from {where}")
                    entry.seeds.append(one.seed)
                    entry.summaries.append(summary)
                    entry.histories.append(folder.history)
                    entry.cost = folder.about["cost"]
                    continue
                built = build_experiment(one)
                result = simulate(built, where, resume=same, watch=watch(label, one.seed) if watch else None)
                entry.seeds.append(one.seed)
                entry.summaries.append(result.summary)
                entry.histories.append(result.history)
                entry.cost = asdict(built.cost)
            except SteppeError as error:
                entry.failed[one.seed] = str(error)
                log.warning(f"{label}, seed {one.seed}: {error}")
        entries.append(entry)
    return entries
