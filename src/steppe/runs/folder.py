"""A run's folder. `RunFolder` is the only reader and writer of its files. The site has a page on what they contain.

Every file is written under a temporary name and renamed, except rounds.jsonl, which is appended to line by line.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import load_file

from steppe.config import OWN, Config, resolve
from steppe.core.atomic_write import write_atomically
from steppe.core.errors import SteppeError, quote
from steppe.core.metric import Metric
from steppe.core.ordinary_files import check_ordinary
from steppe.data import Partition
from steppe.runs.records import Record, format_line, replace_non_finite, tabulate
from steppe.runs.tensor_files import save_file

OF_EARLIER_RUNS = ("checkpoints", "best", "analysis", "adapter", "tensorboard", "wandb", "rounds.jsonl", "rounds.csv",
                   "result.json", "model.safetensors", "clients.bin", "track.json")  # fmt: skip


class RunFolder:
    """The files of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints, self.best = self.path / "checkpoints", self.path / "best"
        self.client_states, self.model_file = self.path / "clients.bin", self.path / "model.safetensors"
        self.partition_file = self.path / "partition.json"

    def __str__(self) -> str:
        return str(self.path)

    # ----------------------------------------------------------------------------------------------- what is there
    @property
    def exists(self) -> bool:
        """Return whether a run was started here."""
        return (self.path / "config.json").exists()

    @property
    def finished(self) -> bool:
        return (self.path / "result.json").exists()

    @property
    def seed_of_several(self) -> bool:
        """Return whether this is one seed of a comparison or sweep; the parent is then the folder of all seeds."""
        return self.path.name.startswith("seed-")

    @property
    def name(self) -> str:
        """Return the name of the folder; for one of several seeds, it begins with the folder of all seeds.

        >>> RunFolder("runs/mine").name, RunFolder("runs/sweep/rho=0.1/seed-2").name
        ('mine', 'rho=0.1/seed-2')
        """
        return f"{self.path.parent.name}/{self.path.name}" if self.seed_of_several else self.path.name

    @property
    def label(self) -> str:
        """Return the name of the folder or, for one of several seeds, of the parent folder."""
        return self.path.parent.name if self.seed_of_several else self.path.name

    @staticmethod
    def find(places: Iterable[Path]) -> list[RunFolder]:
        """Find all runs in or under these folders, each once."""
        found: dict[Path, RunFolder] = {}
        for place in places:
            inside = sorted(p.parent for p in place.rglob("config.json")) if place.is_dir() else []
            if not inside:
                raise SteppeError(f"{place} holds no run: give the folder that steppe run or steppe compare wrote.")
            for one in inside:
                found.setdefault(one.resolve(), RunFolder(one))
        return list(found.values())

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder for one process. The system releases the lock when the process ends."""
        check_place(self.path)
        made = not self.path.exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SteppeError(f"The folder {self} cannot be created: {error.strerror}.") from None
        try:
            with FileLock(self.path / ".lock", timeout=0):
                yield
        except Timeout:
            raise SteppeError(f"Another process is writing to {self}: wait until it has ended, or choose another "
                              "folder.") from None  # fmt: skip
        finally:
            if made and not self.exists:  # no run was started, so leave no folder behind
                (self.path / ".lock").unlink(missing_ok=True)
                with suppress(OSError):
                    self.path.rmdir()

    # ------------------------------------------------------------------------------------------------------ reading
    @property
    def stored(self) -> dict[str, Any]:
        """Return the configuration as it was written; keys that are newer than the run have their defaults."""
        return {**Config.model_validate({}).model_dump(mode="json"), **self.read("config.json")}

    @property
    def config(self) -> Config:
        return resolve(self.read("config.json"), str(self.path / "config.json"))

    @property
    def about(self) -> dict[str, Any]:
        return self.read("about.json")

    @property
    def versions(self) -> dict[str, Any]:
        return self.read("versions.json", {})

    @property
    def summary(self) -> dict[str, Any] | None:
        """Return the summary, or None if the run has not finished."""
        return self.read("result.json") if self.finished else None

    @property
    def metric(self) -> Metric:
        """Return the main metric."""
        return self.metrics[0]

    @property
    def metrics(self) -> list[Metric]:
        """Return all metrics, the main one first; earlier versions had one."""
        about = self.about
        return [Metric.from_record(record) for record in about.get("metrics", [about.get("metric")])]

    @property
    def named_model(self) -> dict[str, Any] | None:
        """Return name, classes and input shape of the model, or None if it is the user's own."""
        model: dict[str, Any] | None = self.about.get("model")
        return None if model is None or model.get("own") else model

    @property
    def own(self) -> list[str]:
        """Return which of algorithm, model, data, optimiser, further parts and loss are the user's own objects."""
        about, config = self.about, self.read("config.json")
        if "format" not in about:  # version 0.1.0 recorded only whether the model had a name
            return ["model"] if about.get("model") is None else []
        keys = ("algorithm", "model", "data", "optimiser")
        named = [key for key in keys if str(config.get(key)).startswith(OWN)]
        named += ["add"] if any(text.startswith(OWN) for text in config["add"]) else []
        return named + (["loss"] if about["loss"]["own"] else [])

    @property
    def partition(self) -> Partition | None:
        return Partition.load(self.partition_file) if self.partition_file.exists() else None

    @property
    def history(self) -> list[Record]:
        """Return the records of all rounds so far, without a last line that a crash cut short."""
        records: list[Record] = []
        path = self.path / "rounds.jsonl"
        try:
            lines = check_ordinary(path).read_bytes().splitlines() if path.exists() else []
            for place, line in enumerate(lines):
                try:
                    record = json.loads(line)
                    if not isinstance(record, dict) or not isinstance(record.get("round"), int):
                        raise ValueError("a line is not the record of a round")
                    records.append(record)
                except (ValueError, RecursionError):
                    if place < len(lines) - 1:
                        raise
        except (OSError, ValueError, RecursionError) as error:
            raise SteppeError(f"{path} is damaged: {error}.") from None
        return records

    @property
    def rounds_done(self) -> int:
        """Return the number of rounds that have a record, without parsing them."""
        path = self.path / "rounds.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    @property
    def how_to_resume(self) -> str:
        """Return the command that continues the run, or the call, if it has objects of the user's own."""
        if self.own:
            return f"in Python, steppe.run(…, out={str(self.path)!r}, resume=True) with the same objects"
        return f"steppe run --resume --out {self}"

    def make_unfinished_error(self) -> SteppeError:
        return SteppeError(f"{self} has no model yet: let the run finish ({self.how_to_resume}).")

    def read_model_state(self) -> dict[str, torch.Tensor]:
        """Return the trained model's state dict."""
        if not self.model_file.exists():
            raise self.make_unfinished_error()
        try:
            return load_file(check_ordinary(self.model_file))
        except (SafetensorError, OSError) as error:
            raise SteppeError(f"{self.model_file} is damaged ({error}): let the run finish again "
                              f"({self.how_to_resume}).") from error  # fmt: skip

    @cached_property
    def model_digest(self) -> str:
        """Return a hash of the final model's file."""
        with self.model_file.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]

    def read_analysis(self, whose: str = "") -> dict[str, Any] | None:
        """Return the stored measures of the final model, on the global loss or on one client's loss (`client-3`)."""
        if not (self.path / _name_analysis(whose)).exists():
            return None
        found = self.read(_name_analysis(whose))
        if isinstance(measures := found.get("measures"), dict) and "local_accuracy" in measures:  # its name was wrong
            measures["local_score"] = measures.pop("local_accuracy")  # for a metric that is not accuracy
        return found

    def read(self, name: str, default: dict[str, Any] | None = None) -> dict[str, Any]:
        """Read the object in a JSON file."""
        path = self.path / name
        if default is not None and not path.exists():
            return default
        try:
            content = json.loads(check_ordinary(path).read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            raise SteppeError(f"{self} is not the folder of a run: it has no {name}.") from None
        except (OSError, ValueError, RecursionError) as error:
            raise SteppeError(f"{path} is damaged: {error}.") from None
        if not isinstance(content, dict):
            raise SteppeError(f"{path} is damaged: it should contain an object.")
        return content

    # ------------------------------------------------------------------------------------------------------ writing
    def write(self, name: str, content: Any) -> None:
        """Write a JSON file; numbers that are not finite become null."""
        self._replace(name, json.dumps(replace_non_finite(content), indent=1, default=str, allow_nan=False) + "\n")

    def _replace(self, name: str, text: str) -> None:
        write_atomically(self.path / name, lambda aside: aside.write_text(text, encoding="utf-8"))

    def clear(self) -> None:
        """Delete an earlier run, so that its checkpoints are not mistaken for those of the new run."""
        for path in [*(self.path / name for name in OF_EARLIER_RUNS), *self.path.glob("analysis*.json")]:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def prepare(self, config: Config, about: dict[str, Any], versions: dict[str, Any],
                partition: Partition | None, records: Sequence[Record]) -> None:  # fmt: skip
        """Write everything that is known before the next round."""
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / "result.json").unlink(missing_ok=True)  # a summary means that the run has finished
        self.write("config.json", config.model_dump(mode="json"))
        self.write("versions.json", versions)
        self.write("about.json", about)
        if partition is not None:
            self._replace("partition.json", partition.as_json())
        self._replace("rounds.jsonl", "".join(format_line(r) for r in records))

    def append(self, record: Record) -> None:
        """Append a round's record and sync it to disk, so that a checkpoint is never newer than the records."""
        with (self.path / "rounds.jsonl").open("a", encoding="utf-8") as file:
            file.write(format_line(record))
            file.flush()
            os.fsync(file.fileno())

    def finish(self, state: dict[str, torch.Tensor], records: Sequence[Record], summary: dict[str, Any]) -> None:
        """Write the final model, the table of rounds and, last of all, the summary."""
        write_atomically(self.model_file, lambda aside: save_file(state, aside))
        vars(self).pop("model_digest", None)
        rows, table = tabulate(records), StringIO(newline="")
        writer = csv.DictWriter(table, list(dict.fromkeys(key for row in rows for key in row)))
        writer.writeheader()
        writer.writerows(rows)
        write_atomically(
            self.path / "rounds.csv", lambda aside: aside.write_text(table.getvalue(), "utf-8", newline="")
        )
        self.write("result.json", summary)

    def write_analysis(self, content: dict[str, Any], whose: str = "") -> None:
        self.write(_name_analysis(whose), content)

    def make_array_file(self, name: str, whose: str = "") -> Path:
        """Return the file for a measure's arrays, relative to the folder."""
        file = Path("analysis") / whose / f"{name}.npz"
        (self.path / file).parent.mkdir(parents=True, exist_ok=True)
        return file


@contextmanager
def explain_damage(what: object) -> Iterator[None]:
    """Say that a run's files are damaged where reading them fails in a way that intact ones do not."""
    try:
        yield
    except SteppeError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise SteppeError(f"{what} cannot be read as a run: one of its files is damaged, or was edited "
                          f"({type(error).__name__}: {quote(str(error))}).") from error  # fmt: skip


def check_place(path: str | Path, what: str = "a run") -> None:
    """Refuse a path that cannot be the folder of a run, or of something else."""
    try:
        place = Path(path).resolve()
        wrong = place == Path(place.anchor) or (place.exists() and not place.is_dir())
    except (OSError, ValueError, RuntimeError) as error:  # too long, a null character, a loop of links
        raise SteppeError(f"{quote(str(path))} cannot be the folder of {what}: {error}.") from None
    if wrong:
        raise SteppeError(f"{path} cannot be the folder of {what}: choose another, or one that does not exist yet.")


def _name_analysis(whose: str) -> str:
    return f"analysis-{whose}.json" if whose else "analysis.json"
