"""Several algorithms under one protocol, over several seeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from steppe.config import Config
from steppe.core.errors import SteppeError
from steppe.engine.experiment import experiment
from steppe.engine.rounds import Watch, simulate
from steppe.runs import folder


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
            watch: Callable[[str, int], Watch] | None = None,
            say: Callable[[str], None] = print) -> list[Entry]:  # fmt: skip
    """Run every configuration with every seed, each in its own folder.

    A finished run that is there already is used again, and one that was interrupted goes on.
    """
    experiment(next(iter(configs.values())))  # what is wrong with all of them is said before anything is written
    entries = []
    for label, config in configs.items():
        entry = Entry(label)
        for k in range(seeds):
            one = config.model_copy(update={"seed": config.seed + k})
            where = out / label / f"seed-{one.seed}"
            try:
                same = _same(where, one)
                if same and (where / folder.DONE).exists():
                    say(f"{label}, seed {one.seed}: used again from {where}")
                    entry.seeds.append(one.seed)
                    entry.summaries.append(folder.read_json(where / folder.DONE))
                    entry.histories.append(folder.history(where))
                    entry.cost = folder.read_json(where / "about.json")["cost"]
                    continue
                built = experiment(one)
                result = simulate(built, where, resume=same, watch=watch(label, one.seed) if watch else None, say=say)
                entry.seeds.append(one.seed)
                entry.summaries.append(result.summary)
                entry.histories.append(result.history)
                entry.cost = asdict(built.cost)
            except SteppeError as error:
                entry.failed[one.seed] = str(error)
                say(f"{label}, seed {one.seed}: {error}")
        entries.append(entry)
    return entries


def _same(where: Path, config: Config) -> bool:
    """Whether this folder holds a run of exactly this configuration."""
    path = where / "config.json"
    return path.exists() and not folder.differences(where, config) and folder.settings(where)["rounds"] == config.rounds
