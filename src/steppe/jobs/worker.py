"""A process that trains what it is sent: requests as lines of JSON in, events as lines of JSON out.

Events are `round` (with `state`, the metric in words), then `done` (facts about the run, with `text`) or `error` (with
`trace` if the error is unexpected). When standard input ends, a run in progress and the process end cleanly: no
worker survives its parent for long, however the parent ended.
"""

from __future__ import annotations

import base64
import gc
import json
import logging
import os
import platform
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import cloudpickle
import torch

from steppe.config import Config
from steppe.core.errors import RunFailed, SteppeError
from steppe.data import DATASETS, Data, load
from steppe.engine.devices import count_machine_cores, find_device
from steppe.engine.progress import handle_logs
from steppe.engine.rounds import simulate
from steppe.experiment import Experiment
from steppe.jobs.child_process import PATIENCE, Emit
from steppe.jobs.job import Own, build_own
from steppe.runs.folder import RunFolder
from steppe.runs.provenance import find_versions
from steppe.runs.records import describe_score

LOG = "log.txt"


def perform(request: dict[str, Any], emit: Emit) -> None:
    """Train one job and emit its events."""
    where = None if request["where"] is None else Path(request["where"])
    try:
        with _write_messages(where):
            emit(train(Config.model_validate(request["config"]), where, emit, unpack_own(request)))
    except SteppeError as error:
        emit({"error": str(error)})
    except Exception as error:  # other jobs continue, and this one reports its error
        emit({"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()})


@contextmanager
def _write_messages(folder: Path | None) -> Iterator[None]:
    """Write the program's messages to the folder's log.txt."""
    if folder is None:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(folder / LOG, encoding="utf-8")
    try:
        with handle_logs(handler):
            yield
    finally:
        handler.close()


def unpack_own(request: dict[str, Any]) -> Own:
    """Return the user's own objects, if need be from the text of `pack_own` that this process's own parent sent."""
    own: Any = request.get("own") or {}
    if not isinstance(own, str):
        return own
    sys.path += [folder for folder in request["path"] if folder not in sys.path]
    try:
        return cloudpickle.loads(base64.b64decode(own))
    except ModuleNotFoundError as error:
        raise SteppeError(f"Your own objects need the module {error.name}, which the process that trains cannot "
                          "import: install it there, or define them in your script.") from error  # fmt: skip


def train(config: Config, where: Path | None, emit: Emit, own: Own) -> dict[str, Any]:
    """Run a configuration, or continue it in its folder. Return the event `done`.

    Without a folder, its facts are all that a row of results needs, even if the training failed.
    """
    began = time.perf_counter()
    device = find_device(config.device)
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
    data = _load(config.data, config.data_folder or os.environ.get("STEPPE_DATA"))
    built = build_own(config, {"data": data, **own})
    metric = built.task.metric
    records: list[dict[str, Any]] = []

    def watch(record: dict[str, Any]) -> None:
        records.append(record)
        emit({"round": record["round"], "state": metric.text(record[metric.name]) if metric.name in record else ""})

    try:
        summary = simulate(built, where, resume=where is not None and RunFolder(where).exists, watch=watch).summary
        text = describe_score(summary, metric)
    except RunFailed as error:
        if where:
            raise
        summary, text = {"failed": str(error)}, f"failed ({error})"
    facts: dict[str, Any] = {}
    if where is None:
        peak = round(torch.cuda.max_memory_allocated(device) / 2**20) if cuda else None
        facts = {"records": records, "summary": summary, "seconds": time.perf_counter() - began, "peak_gpu_mib": peak,
                 "about": _describe(built, device)}  # fmt: skip
    del built
    gc.collect()
    if cuda:
        torch.cuda.empty_cache()  # other processes may use the card
    return {"done": facts, "text": text}


@lru_cache(maxsize=2)
def _load(name: str, folder: str | None) -> Data | None:
    """Load a data set of the catalogue, once per process."""
    return load(name, folder) if name in DATASETS else None


def _describe(built: Experiment, device: torch.device) -> dict[str, Any]:
    """Return costs, a description of the hardware, versions and commit."""
    found = find_versions(device)
    card = f"one {found['hardware']}" if device.type == "cuda" else f"CPU ({platform.machine()})"
    split = built.federation.partition
    return {"cost": asdict(built.cost), "partition": split.hash if split else None, "notes": built.notes,
            "hardware": f"{card}, {count_machine_cores()} CPU cores", "tf32": torch.backends.cuda.matmul.allow_tf32,
            "versions": {k: found[k] for k in ("steppe", "python", "torch", "numpy")},
            "commit": found["commit"], "day": time.strftime("%Y-%m-%d", time.gmtime())}  # fmt: skip


def main() -> None:
    """Train one request after the other until standard input ends."""
    out = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)  # output of libraries must not be taken for an event
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a process that a shell starts with & ignores it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})  # a thread of Ray's blocks them
    requests: SimpleQueue[str] = SimpleQueue()
    busy = threading.Event()
    threading.Thread(target=_listen, args=(requests, busy), daemon=True).start()
    with suppress(KeyboardInterrupt, BrokenPipeError):
        while line := requests.get():
            busy.set()
            request = json.loads(line)
            if request["where"]:
                _print_to(Path(request["where"]))
            perform(request, lambda event: print(json.dumps(event), file=out))
            busy.clear()


def _listen(requests: SimpleQueue[str], busy: threading.Event) -> None:
    """Pass on requests; at the end of the input, interrupt the run."""
    for line in sys.stdin:
        requests.put(line)
    requests.put("")
    if busy.is_set():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(PATIENCE)
        os._exit(1)


def _print_to(folder: Path) -> None:
    """Send what libraries print, and tracebacks of the interpreter, to the folder's log.txt."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOG).open("ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)


if __name__ == "__main__":
    main()
