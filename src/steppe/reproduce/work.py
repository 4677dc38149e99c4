"""Many runs on one machine: in this process, or in several that share a card, until all is done or time is up.

A process stays with one algorithm as long as it can, so that what was compiled serves the next partition and seed;
otherwise the longest runs come first.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch

from steppe.config import Config
from steppe.core.cost import Cost, cost
from steppe.core.errors import SteppeError
from steppe.core.task import Task
from steppe.data.partition import parse
from steppe.engine.build import build_algorithm
from steppe.models import build
from steppe.reproduce.recipes import Cell, recipe_hash
from steppe.reproduce.rows import Row

Say = Callable[[str], None]
TICK = 30.0  # seconds between two lines about what is running


@dataclass(frozen=True)
class Job:
    """One run, and the cells that wait for it."""

    config: Config
    cells: tuple[Cell, ...]
    stage: tuple[int, ...]  # stages follow one another

    @property
    def key(self) -> tuple[str, int]:
        return recipe_hash(self.config), self.config.seed

    @property
    def label(self) -> str:
        return f"{self.cells[0].table} {self.cells[0].id}, seed {self.config.seed}"

    @property
    def group(self) -> str:
        """Runs of one group can share compiled code."""
        other: dict[str, Any] = {
            "partition": "iid",
            "partition_seed": None,
            "rounds": 1,
            "measure": [],
            "personal": None,
            "seed": 0,
        }
        return recipe_hash(self.config.model_copy(update=other))

    @property
    def weight(self) -> float:
        """Roughly proportional to its time: FLOPs a step, and more steps in a row where clients are unequal."""
        rule, numbers = parse(self.config.partition)
        skew = 1 + 0.1 / numbers[0] if rule.__name__ in ("lda", "dirichlet") else 1.0
        precise = 2.5 if self.config.precision == "fp32" else 1.0
        try:
            flops = float(costs(self.config).flops)
        except (RuntimeError, NotImplementedError):
            flops = 1.0  # a model that cannot be traced without data: its place in the order is all that is lost
        return self.config.rounds * max(self.config.epochs, 1) * skew * precise * flops


def costs(config: Config) -> Cost:
    """Of one client's round and step, traced without data: 32×32 images, or the digits."""
    other: dict[str, Any] = {
        "partition": "iid",
        "partition_seed": None,
        "rounds": 1,
        "seed": 0,
        "measure": [],
        "validation": 0.0,
    }
    return _costs(config.model_copy(update=other).model_dump_json())


@lru_cache
def _costs(text: str) -> Cost:
    config = Config.model_validate_json(text)
    shape = (1, 8, 8) if config.data == "digits" else (3, 32, 32)
    task = Task(build(config.model, 10, shape))
    batch = {"x": torch.zeros(config.batch, *shape), "y": torch.zeros(config.batch, dtype=torch.int64)}
    return cost(build_algorithm(config), task, batch)


def traced(config: Config) -> dict[str, float]:
    """Traffic and FLOPs as multiples of FedAvg's, and passes a step."""
    mine, base = costs(config), costs(config.model_copy(update={"algorithm": "fedavg", "settings": {}, "add": []}))
    return {"bytes_x": (mine.bytes_down + mine.bytes_up) / (base.bytes_down + base.bytes_up),
            "flops_x": mine.flops / base.flops, "gradients": mine.gradients, "forwards": mine.forwards}  # fmt: skip


@dataclass
class Board:
    """What is waiting, running and done; threads take from it one at a time."""

    waiting: list[Job]
    began: float
    budget: float | None
    lock: threading.Lock = field(default_factory=threading.Lock)
    running: dict[int, Job] = field(default_factory=dict)
    done: int = 0
    spent: float = 0.0  # seconds and weight of what is done: the rate to expect
    weight: float = 0.0
    skipped: list[Job] = field(default_factory=list)
    reached: dict[int, int] = field(default_factory=dict)  # the round that each process is at
    told: float = 0.0
    over: bool = False  # nothing more is started, whatever time is left

    @property
    def left(self) -> float:
        return float("inf") if self.budget is None else self.budget - (time.monotonic() - self.began)

    def expected(self, job: Job) -> float:
        return job.weight * self.spent / self.weight if self.weight else 0.0

    def take(self, who: int, last: str) -> Job | None:
        """The next run for a process whose last one was of the group `last`; None when there is none in time."""
        with self.lock:
            fit = [j for j in self.waiting if not self.over and self.left > 0 and self.expected(j) < self.left]
            if not fit:
                return None
            stage = min(j.stage for j in fit)
            fit = [j for j in fit if j.stage == stage]
            taken = {j.group for j in self.running.values()}
            own = [j for j in fit if j.group == last] or [j for j in fit if j.group not in taken] or fit
            total: dict[str, float] = {}
            for j in own:
                total[j.group] = total.get(j.group, 0.0) + j.weight
            job = max(own, key=lambda j: (total[j.group], j.weight))
            self.waiting.remove(job)
            self.running[who] = job
            return job

    def tick(self, who: int, round_: int, say: Say) -> None:
        """Say now and then where the running ones are."""
        self.reached[who] = round_
        now = time.monotonic()
        if now - max(self.told, self.began) > TICK:
            self.told = now
            running = dict(self.running)
            say("running: " + "; ".join(f"{j.label}, round {self.reached.get(w, 0)} of {j.config.rounds}"
                                        for w, j in sorted(running.items())))  # fmt: skip

    def finish(self, who: int, seconds: float, finished: bool) -> Job:
        with self.lock:
            job = self.running.pop(who)
            self.reached.pop(who, None)
            if finished:
                self.done += 1
                self.spent += seconds
                self.weight += job.weight
            else:
                self.skipped.append(job)
            return job


class OutOfTimeError(Exception):
    """The budget ended inside a run."""


def in_stages(stages: Sequence[Callable[[], list[Job]]], processes: int, budget: float | None,
              keep: Callable[[Job, Row], None], say: Say) -> tuple[list[Job], dict[str, str]]:  # fmt: skip
    """One after the other, because what a stage runs may depend on the rows of the one before."""
    began = time.monotonic()
    not_run: list[Job] = []
    failed: dict[str, str] = {}
    for stage in stages:
        jobs = stage()
        if jobs:
            say(f"{len(jobs)} runs are missing")
        left = None if budget is None else max(budget - (time.monotonic() - began), 0.0)
        skipped, wrong = work(jobs, processes, left, keep, say)
        not_run += skipped
        failed |= wrong
    return not_run, failed


def work(jobs: list[Job], processes: int, budget: float | None, keep: Callable[[Job, Row], None],
         say: Say) -> tuple[list[Job], dict[str, str]]:  # fmt: skip
    """Run them all; `keep` gets each row at once. What was not run, and what could not be, with the reason."""
    board = Board(list(jobs), time.monotonic(), budget)
    failed: dict[str, str] = {}

    def ended(who: int, seconds: float, event: dict[str, Any] | None) -> None:
        row = (event or {}).get("row")
        job = board.finish(who, seconds, row is not None)
        if row is not None:
            keep(job, {**row, "processes": processes})
            rest = sum(map(board.expected, [*board.waiting, *board.running.values()])) / max(processes, 1)
            say(f"[{board.done}/{len(jobs)}] {job.label}: {_outcome(row)}, {seconds:.0f} s; about {rest:.0f} s left")
        elif event:
            failed[job.label] = event["error"]
            say(f"{job.label}: {event['error']}\n{event.get('trace', '')}".rstrip())

    if processes <= 1:
        _here(board, ended, say)
    else:
        _apart(board, min(processes, len(jobs)), ended, say)
    stopped = [j for j in board.skipped if j.label not in failed]
    return [*stopped, *board.waiting], failed


def _outcome(row: Row) -> str:
    if "failed" in row:
        return f"failed ({row['failed']})"
    return f"accuracy {100 * row['mean_of_last_ten']:.2f} % (last ten rounds)"


def _here(board: Board, ended: Callable[[int, float, dict[str, Any] | None], None], say: Say) -> None:
    from steppe.reproduce.runner import train

    def watch(record: dict[str, Any]) -> None:
        board.tick(0, record["round"], say)
        if board.left <= 0:
            raise OutOfTimeError

    last = ""
    while job := board.take(0, last):
        began, last = time.monotonic(), job.group
        event: dict[str, Any] | None
        try:
            event = {"row": train(job.config, watch)}
        except OutOfTimeError:
            event = None
        except SteppeError as error:
            event = {"error": str(error)}
        except Exception as error:  # the other cells go on, and this one says what happened
            event = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
        ended(0, time.monotonic() - began, event)


def _apart(board: Board, processes: int, ended: Callable[[int, float, dict[str, Any] | None], None], say: Say) -> None:
    children: dict[int, subprocess.Popen[str]] = {}
    saving = threading.Lock()  # rows are written, and lines printed, one at a time

    def serve(who: int) -> None:
        last = ""
        while job := board.take(who, last):
            began, last = time.monotonic(), job.group
            if who not in children or children[who].poll() is not None:
                children[who] = _start(processes)
            event = _ask(children[who], job.config, lambda round_: board.tick(who, round_, say))
            if event is None and board.left > 0 and not board.over:
                event = {"error": f"its process ended with code {children[who].wait()}"}
            if event and "trace" in event:  # whatever went wrong there must not spoil the next run
                children[who].kill()
                children[who].wait()
            with saving:
                ended(who, time.monotonic() - began, event)

    threads = [threading.Thread(target=serve, args=(who,), daemon=True) for who in range(processes)]
    try:
        for thread in threads:
            thread.start()
        while running := [t for t in threads if t.is_alive()]:
            running[0].join(timeout=min(1.0, max(board.left, 0.05)))
            if board.left <= 0 and board.running:
                say("The time is up: what is still running counts as not run.")
                break
    finally:
        board.over = True
        for _ in range(100):  # also what a thread was just starting when everything was interrupted
            for child in list(children.values()):
                child.kill()
                child.wait()
            if not any(t.is_alive() for t in threads):
                break
            time.sleep(0.1)


def _start(processes: int) -> subprocess.Popen[str]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    environment = {**os.environ, "OMP_NUM_THREADS": str(max(1, cores // processes))}
    return subprocess.Popen([sys.executable, "-m", "steppe.reproduce.worker"], env=environment, encoding="utf-8",
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip


def _ask(child: subprocess.Popen[str], config: Config, reached: Callable[[int], None]) -> dict[str, Any] | None:
    """Its row or its complaint; None when the process is gone."""
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        print(config.model_dump_json(), file=child.stdin, flush=True)
        for line in child.stdout:
            event: dict[str, Any] = json.loads(line)
            if "round" not in event:
                return event
            reached(event["round"])
    except (OSError, ValueError):
        pass
    return None
