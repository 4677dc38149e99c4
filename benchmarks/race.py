"""Contenders that take turns, one round each, every one in its own process; and the table of results.

A contender that fails or exceeds the time limit is killed with all its children and reported with the reason. The
others continue.
"""

from __future__ import annotations

import json
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from typing import Any

from benchmarks import jobs
from benchmarks.contenders import ENVIRONMENT, WORDS, cores, descendants
from benchmarks.progress import Progress

TARGETS = {"fedavg": 0.75, "fedsam": 0.80}  # of the plain loop's time, for one process per core
YARDSTICK = "plain"


class GaveUp(Exception):
    """A contender failed, or took too long."""


def command(name: str, algorithm: str, rounds: int) -> list[str]:
    """Return the command line of a contender."""
    return [sys.executable, "-m", "benchmarks.contenders", name, algorithm, str(rounds)]


class Child:
    """A contender in its own process. Its first round, including start-up, is the warm-up."""

    def __init__(self, name: str, command: list[str], limit: float, environment: dict[str, str] | None = None) -> None:
        self.name, self.command, self.limit, self.rounds = name, command, limit, list[dict[str, Any]]()
        self.environment = {**os.environ, **ENVIRONMENT.get(name, {}), **(environment or {})}
        self.process: subprocess.Popen[str] | None = None

    def round(self) -> None:
        """Run one round; the first call starts the program, later calls send it a request."""
        if self.process is None:
            began = time.perf_counter()
            self.words = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - open for as long as it runs
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.words, text=True,
                start_new_session=True, env=self.environment)  # fmt: skip
            self.rounds.append(self._answer(self.process))
            self.first = time.perf_counter() - began
            return
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # the process has ended; `_answer` reports why
            self.process.stdin.write("go\n")
            self.process.stdin.flush()
        self.rounds.append(self._answer(self.process))

    def _answer(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], self.limit)[0]:
            raise GaveUp(f"took more than {self.limit:g} s for {'a round' if self.rounds else 'start and first round'}")
        line = process.stdout.readline()
        if not line:
            raise GaveUp(f"ended early, exit status {process.wait()}: {self._last_words()}")
        try:
            answer: dict[str, Any] = json.loads(line)
        except json.JSONDecodeError:
            raise GaveUp(f"said {line.strip()[:100]!r} instead of an answer") from None
        return answer

    def _last_words(self) -> str:
        self.words.seek(0)
        lines = [line.strip() for line in self.words.read().splitlines() if line.strip()]
        errors = [
            line for line in lines if "Error" in line.partition(":")[0]
        ]  # a framework may print more after its error
        return (errors or lines or ["no output"])[-1][:300]

    def result(self) -> dict[str, Any]:
        """Return times and results. The last round includes evaluation, so it is not among the times."""
        times = [r["seconds"] for r in self.rounds[1:-1]]
        return {"best": min(times), "median": statistics.median(times), "times": times,
                "cpu_seconds": min(r["cpu_seconds"] for r in self.rounds[1:-1]), "first_with_start": self.first,
                "round_with_evaluation": self.rounds[-1]["seconds"], "accuracy": self.rounds[-1]["accuracy"],
                "peak_mb": self.rounds[-1]["peak_mb"], "threads": self.rounds[-1]["threads"]}  # fmt: skip

    def stop(self, patience: float = 0.0) -> None:
        """Wait `patience` seconds for the process to end, then kill it and all its descendants."""
        if self.process is None:
            return
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
        for pid in [*descendants(str(self.process.pid)), self.process.pid]:
            with suppress(OSError):
                os.kill(int(pid), signal.SIGKILL)
        with suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.words):
            with suppress(OSError):
                pipe.close()  # type: ignore[union-attr]
        self.process = None


def compete(algorithm: str, names: list[str], timed: int, limit: float, left_out: dict[str, str]) -> dict[str, Any]:
    """Run all contenders in turns: a warm-up, `timed` rounds, and one round with evaluation.

    A contender that gives up is added to `left_out`, with the reason.
    """
    rounds = timed + 2
    running = [Child(name, command(name, algorithm, rounds), limit) for name in names]
    progress = Progress(f"{algorithm}, rounds", rounds * len(names))
    try:
        for number in range(rounds):
            for child in list(running):
                try:
                    child.round()
                except GaveUp as why:
                    running.remove(child)
                    child.stop()
                    left_out[child.name] = f"{algorithm}: {why}"
                    progress.say(f"{WORDS[child.name]}: left out, {left_out[child.name]}")
                    progress.of = progress.of - (rounds - number - 1) if progress.of else None
                progress.step()
        return {child.name: child.result() for child in running}
    finally:
        progress.end()
        for child in running:
            child.stop(patience=30 if len(child.rounds) == rounds else 0)


def start_again(algorithm: str, results: dict[str, Any], times: int, timed: int, limit: float) -> None:
    """Start the plain loop and this library several more times, and keep the best round of each start.

    The speed of a program differs between starts, depending on where its memory lies: for the plain loop by up to a
    third. The rounds of one start do not show this.
    """
    pair = [YARDSTICK, "workers"]
    if any(name not in results for name in pair):
        return
    for name in pair:
        results[name]["starts"] = [results[name]["best"]]
    for _ in range(times):
        for name, found in compete(algorithm, pair, timed, limit, {}).items():
            results[name]["starts"].append(found["best"])
    plain, mine = (statistics.median(results[name]["starts"]) for name in pair)
    results["workers"]["ratio_starts"] = mine / plain


def table(algorithm: str, results: dict[str, Any], roof: dict[str, float]) -> None:
    """Print the results, and add to them the ratios to the plain loop and to the roof."""
    work = roof["gradient_gflop"] * jobs.STEPS * (2 if algorithm == "fedsam" else 1)
    limit = roof["gflops"] * cores()
    plain = results[YARDSTICK]
    print(f"\n{algorithm}: seconds per round of {work:.0f} GFLOP; the roof of {cores()} cores is {limit:.0f} GFLOP/s; "
          f"accuracy after {len(plain['times']) + 2} rounds")  # fmt: skip
    heads = ("best", "median", "of plain", "(median)", "CPU s", "GFLOP/s", "of roof", "peak MB", "start+1st",
             "accuracy")  # fmt: skip
    print(" " * 28 + "".join(f"{h:>10}" for h in heads))
    for name, r in results.items():
        speed = work / r["best"]
        r |= {"ratio_best": r["best"] / plain["best"], "ratio_median": r["median"] / plain["median"],
              "gflops": speed, "of_roof": speed / limit}  # fmt: skip
        cells = (f"{r['best']:.2f}", f"{r['median']:.2f}", f"{r['ratio_best']:.2f}", f"{r['ratio_median']:.2f}",
                 f"{r['cpu_seconds']:.2f}", f"{speed:.0f}", f"{r['of_roof']:.0%}", f"{max(r['peak_mb'].values()):.0f}",
                 f"{r['first_with_start']:.1f}", f"{r['accuracy']:.3f}")  # fmt: skip
        print(f"{WORDS[name]:28}" + "".join(f"{c:>10}" for c in cells))
    if mine := results.get("workers"):
        memory = max(mine["peak_mb"].values()) / max(plain["peak_mb"].values())
        print(f"one process per core takes {mine.get('ratio_starts', mine['ratio_best']):.2f} of the plain loop's time "
              f"(target {TARGETS[algorithm]}, aim 0.65) and {memory:.2f} of its memory (target 1.5)")  # fmt: skip
        if "starts" in mine:
            print(f"  by the medians of {len(mine['starts'])} starts, best rounds: plain "
                  + ", ".join(f"{s:.2f}" for s in plain["starts"]) + "; ours "
                  + ", ".join(f"{s:.2f}" for s in mine["starts"]))  # fmt: skip
