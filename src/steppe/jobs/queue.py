"""The queue: give jobs to places until all are done or time is up, and hand back each job as it ends.

    with Queue(find_places(4, "auto")) as queue:
        queue.add(jobs)
        for ended in queue:  # more jobs may be added meanwhile
            ...
    queue.waiting  # jobs for which there was no time

A run that is already finished in its folder is handed back at once, an interrupted one continues, a failed one is
handed back with its error. Leaving the block, also by Ctrl-C or SIGTERM, ends all children cleanly.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from steppe.jobs.child_process import PATIENCE
from steppe.jobs.job import Job
from steppe.jobs.places import Child, Place, has_room
from steppe.jobs.queue_progress import QueueProgress

log = logging.getLogger("steppe.queue")
Event = dict[str, Any]
AnyJob = TypeVar("AnyJob", bound=Job)
LIVES = 3  # times that a job may lose its machine: it may be the job that brings them down
LOOK = 1.0  # seconds between two looks at places without room, and at the time left


@dataclass(frozen=True)
class Ended:
    """The outcome of a job."""

    job: Job
    facts: dict[str, Any] = field(default_factory=dict)  # of a job without a folder
    error: str | None = None


@dataclass(eq=False)
class Slot:
    """A place and its current job."""

    place: Place
    child: Child | None = None
    started: int = 0  # children so far: events of an earlier one are ignored
    job: Job | None = None
    group: str = ""  # of its last job
    round: int = 0
    since: float = 0.0  # the time of its last event

    @property
    def ready(self) -> bool:
        return self.job is None and (self.child is not None or has_room(self.place))


class OutOfTime(BaseException):
    """The budget ended during a run. Not an ordinary exception: it must also end a run in this process."""


def choose_job(waiting: Sequence[AnyJob], last: str, taken: Collection[str] = ()) -> AnyJob | None:
    """Return the next job of the lowest stage, for a process whose last one was of the group `last`.

    A process stays with one group as long as it can, so that compiled code serves the next job too; otherwise it
    takes the longest job of the group with the most work, if possible of one that no other process has (`taken`).
    """
    stage = min((job.stage for job in waiting), default=())
    fit = [job for job in waiting if job.stage == stage]
    own = [j for j in fit if j.group == last] or [j for j in fit if j.group not in taken] or fit
    total: dict[str, float] = {}
    for job in own:
        total[job.group] = total.get(job.group, 0.0) + job.weight
    return max(own, key=lambda j: (total[j.group], j.weight), default=None)


class Queue:
    """Jobs, and the places where they run."""

    def __init__(self, places: Sequence[Place], progress: QueueProgress | None = None, budget: float | None = None,
                 expected: int = 0) -> None:  # fmt: skip
        """Set `budget` to the seconds that all jobs may take, `expected` to their number where not all are known."""
        self.slots = [Slot(place) for place in places]
        self.progress, self.budget, self.expected = progress or QueueProgress(quiet=True), budget, expected
        self.began, self.thread, self.stack = time.monotonic(), threading.get_ident(), ExitStack()
        self.waiting: list[Job] = []
        self.ended: deque[Ended] = deque()
        self.events: SimpleQueue[tuple[Slot, int, Event]] = SimpleQueue()
        self.added = self.done = 0
        self.lost: dict[str, int] = {}  # times that a job has lost its machine
        self.spent = self.work = 0.0  # seconds and weight of finished runs, to estimate the rate
        self.expects: dict[str, float] = {}  # seconds of jobs by label, as far as they are known beforehand

    def __enter__(self) -> Queue:
        if threading.current_thread() is threading.main_thread():
            before = signal.signal(signal.SIGTERM, signal.default_int_handler)
            self.stack.callback(signal.signal, signal.SIGTERM, before)
        self.stack.callback(self._stop)
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def add(self, jobs: Iterable[Job]) -> None:
        """Add jobs, unless the folder of one of them holds another run."""
        jobs = list(jobs)
        for job in jobs:
            job.check()
        self.added += len(jobs)
        for job in jobs:
            if job.finished:
                self._hand_back(Ended(job), "already finished")
            else:
                self.waiting.append(job)

    def __iter__(self) -> Iterator[Ended]:
        """Yield each job as it ends, until none is left, or none that would end in time."""
        while True:
            try:
                for slot in self.slots:
                    if slot.job is None and (job := self._choose(slot.group)) and slot.ready:
                        self._start(slot, job)
                if not self.ended and not self.running and not self._choose(""):
                    return
                if not self.ended:
                    self._wait()
            except OutOfTime:
                log.info("Time is up: runs in progress are stopped and count as not run.")
                self._stop()
            if self.ended:
                yield self.ended.popleft()

    @property
    def running(self) -> list[Job]:
        return [slot.job for slot in self.slots if slot.job]

    @property
    def idle(self) -> bool:
        """Return whether a place has nothing to do, and every job that ended was handed back."""
        return not self.ended and len(self.waiting) + len(self.running) < len(self.slots)

    @property
    def time_left(self) -> float:
        """Return the seconds left of the budget."""
        return float("inf") if self.budget is None else self.budget - (time.monotonic() - self.began)

    def estimate(self, weight: float) -> float:
        """Return the seconds that a job of this weight takes, as far as is known."""
        return weight * self.spent / self.work if self.work else 0.0

    def estimate_rest(self) -> float:
        """Return the seconds until all jobs are done; 0 if nothing is known yet."""
        weights = [*(job.weight for job in self.waiting),
                   *(s.job.weight * (1 - s.round / s.job.config.rounds) for s in self.slots if s.job)]  # fmt: skip
        later = max(self.expected - self.added, 0) * self.work / max(self.done, 1)
        return self.estimate(sum(weights) + later) / min(len(self.slots), max(len(weights), 1))

    def _choose(self, last: str) -> Job | None:
        """Return the next job that fits into the time, for a place whose last one was of the group `last`."""
        seconds = (self.estimate(j.weight) if self.work else self.expects.get(j.label, 0.0) for j in self.waiting)
        fit = [job for job, each in zip(self.waiting, seconds, strict=True) if each < self.time_left]
        return choose_job(fit, last, {job.group for job in self.running})

    def _start(self, slot: Slot, job: Job) -> None:
        self.waiting.remove(job)
        slot.job, slot.group, slot.round, slot.since = job, job.group, job.rounds_done, time.monotonic()
        self.progress.begin_job(job.label, job.config.rounds, slot.round)
        if slot.child is None:
            slot.started += 1
            slot.child = slot.place(partial(self._receive, slot, slot.started))
        slot.child.send({"config": job.config.model_dump(mode="json"), "where": job.where and str(job.where),
                         "own": job.own})  # fmt: skip

    def _receive(self, slot: Slot, child: int, event: Event) -> None:
        if threading.get_ident() == self.thread:  # from a job in this process
            self._handle(slot, child, event)
        else:
            self.events.put((slot, child, event))

    def _wait(self) -> None:
        """Handle the next event."""
        try:
            self._handle(*self.events.get(timeout=max(0.0, min(LOOK, self.time_left))))
        except Empty:
            if self.time_left <= 0:
                raise OutOfTime from None

    def _handle(self, slot: Slot, child: int, event: Event) -> None:
        if child != slot.started or slot.child is None:
            return
        if job := slot.job:
            now, done = time.monotonic(), event.get("round", slot.round)
            self.spent += now - slot.since
            self.work += job.weight * (done - slot.round) / job.config.rounds
            slot.since, slot.round = now, done
            if "round" in event:
                self.progress.update_job(job.label, done, event["state"], self.estimate_rest())
                if self.time_left <= 0:
                    raise OutOfTime
                return
            slot.job = None
            if "lost" in event:
                self._take_back(job, event["lost"], counts=event.get("begun", True))
                self._drop([slot], 0.0)
                return
            error = event.get("error") or event.get("gone")
            self._hand_back(Ended(job, event.get("done", {}), error), event.get("text", ""))
        if "trace" in event:
            log.info(event["trace"].rstrip())
        if event.keys() & {"trace", "gone", "lost"}:
            self._drop([slot], 0.0)  # its error must not affect the next job

    def _take_back(self, job: Job, why: str, counts: bool) -> None:
        """Let a job whose machine was lost wait again, unless that has happened too often."""
        self.lost[job.label] = self.lost.get(job.label, 0) + counts
        if self.lost[job.label] < LIVES:
            log.warning(f"{job.label}: {why}; it is run again")
            self.waiting.append(job)
        else:
            self._hand_back(Ended(job, error=f"{why}, for the {LIVES}rd time"), "")

    def _hand_back(self, ended: Ended, text: str) -> None:
        self.done += 1
        self.ended.append(ended)
        total = max(self.added, self.expected)
        self.progress.end_job(ended.job.label, self.done, total)
        head, rest = f"[{self.done}/{total}] {ended.job.label}: ", self.estimate_rest()
        if ended.error:
            log.warning(f"{head}failed: {ended.error}")
        else:
            log.info(head + text + (f"; about {rest:.0f} s left" if rest else ""))

    def _stop(self) -> None:
        """End all children; jobs that were running wait again."""
        self.waiting += self.running
        for slot in self.slots:
            slot.job = None
        self._drop(self.slots, PATIENCE)

    def _drop(self, slots: Sequence[Slot], patience: float) -> None:
        """End the children of these slots."""
        children = [slot.child for slot in slots if slot.child]
        until = time.monotonic() + patience
        try:
            for child in children:
                child.close()
            for child in children:
                child.join(max(0.0, until - time.monotonic()))
        finally:  # also after a second Ctrl-C
            for child in children:
                child.join(0.0)
            for slot in slots:
                slot.child = None
