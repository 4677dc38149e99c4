"""What each fast path of `steppe/executors/switches.py` gains or costs: off and on in one run, taking turns.

For each job and switch: seconds per round without evaluation, milliseconds of an evaluation, seconds of the first round
(which compiles), and the largest difference of the model after that round. The file is written after every figure, so
that a process that is stopped loses nothing. Most valuable figures come first; with `--seconds`, no further one is
started that would probably end too late. On a GPU, all variants are first compiled by processes at the same time, which
fill PyTorch's and Triton's caches (`--no-fill` leaves that out, for first rounds that compile everything themselves).

    python -m benchmarks.gpu_switches --only cnn --seconds 150
    python -m benchmarks.gpu_switches --only resnet18-gn --seconds 200
    python -m benchmarks.gpu_switches --device cpu --tiny          a quick check of the program, on any machine
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks import jobs
from benchmarks.gpu_jobs import JOBS as ALL
from benchmarks.turns import clocked
from steppe.config import resolve
from steppe.core.inputs import take
from steppe.core.server import Server
from steppe.data import Data, from_arrays
from steppe.engine.build import build_experiment
from steppe.engine.choose_executor import choose_executor
from steppe.engine.play_round import play_round
from steppe.engine.resources import make_store
from steppe.evaluate.global_model import evaluate
from steppe.executors.captured_forward import find_forward
from steppe.executors.switches import SWITCHES, switched
from steppe.runs.provenance import find_versions

JOBS = ("cnn fedavg tf32", "cnn fedavg bf16", "cnn fedsol adaptive all tf32", "resnet18-gn fedsmoo tf32",
        "resnet18-gn fedsmoo bf16")  # fmt: skip
# What is turned, together, compared with the defaults; the most valuable first. Of a training step:
STEPS: dict[str, list[tuple[str, ...]]] = {
    "cnn": [("fuse_pooling",)],
    "resnet18-gn": [("client_norm",)],
}
# And of an evaluation, for which nothing of the step is compiled again:
FORWARDS: dict[str, list[tuple[str, ...]]] = {
    "cnn": [("compiled_forward",), ("captured_forward",)],
    "resnet18-gn": [("client_norm",), ("client_norm", "compiled_forward")],  # without it, nothing is captured
}
TURNS = {"cnn": 7, "resnet18-gn": 4}  # timed rounds of each variant
FILLING = 0.6  # of the time limit, at most
Report = dict[str, Any]


class Job:
    """A job with some switches turned; rounds train the same clients, so that all states exist after the first."""

    def __init__(self, name: str, turned: tuple[str, ...], data: Data, device: str, tiny: bool) -> None:
        algorithm, model, options = ALL[name]
        options = {**options, "partition": "iid", "device": device, "rounds": 1000, "executor": "batched"}
        if tiny:
            small = {
                "clients": 4,
                "per_round": 2,
                "batch": 4,
                "max_steps": 2,
                "precision": "fp32",
                "augmentation": "none",
            }
            model, options = {"resnet18-gn": "resnet8-gn"}.get(model, model), {**options, **small}
        config = resolve({"algorithm": algorithm, "model": model, **options})
        self.changes = {switch: not getattr(SWITCHES, switch) for switch in turned}
        self.experiment = build_experiment(config, data=data)
        self.flags = torch.backends.cuda.matmul.allow_tf32
        self.executor, self.store = choose_executor(self.experiment), make_store(self.experiment, None)
        self.ids = list(range(config.per_round))
        self.server = Server(self.x0, self.experiment.algorithm.server_state(self.x0), self.experiment.task.buffers)
        self.t = 0
        self.first_round = clocked(self.round)()[0]
        self.after_first = self.server.x.clone()

    @property
    def x0(self) -> torch.Tensor:
        return self.experiment.task.x0

    def _set_flags(self) -> None:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self.flags

    def round(self) -> None:
        """Train the clients and average their models."""
        self._set_flags()
        e, t = self.experiment, self.t
        with switched(**self.changes):
            self.server = play_round(e, self.server, self.store, self.executor, t, self.ids, e.lr(t)).after
        self.t += 1

    def evaluate(self, **changes: bool) -> Report:
        """Evaluate the model with other switches turned."""
        self._set_flags()
        with switched(**changes):
            return evaluate(self.experiment, self.server, self.t)

    def has_captured(self, **changes: bool) -> bool:
        """Return whether these switches have any effect on an evaluation of this model."""
        e, data = self.experiment, self.experiment.federation.data
        size = min(2500, len(data.test_targets))
        with switched(**changes):
            raw = take(data.test_inputs, slice(0, size))
            return find_forward(e.task, self.server.x, raw, e.federation.plain) is not None


def take_turns(first: Callable[[], Any], second: Callable[[], Any], count: int) -> Report:
    """Time two programs in turns: seconds of both, and the ratio of the second's median to the first's."""
    both: tuple[list[float], list[float]] = [], []
    for _ in range(count):
        for times, program in zip(both, (first, second), strict=True):
            times.append(clocked(program)()[0])
    before, after = map(statistics.median, both)
    return {"before": before, "after": after, "ratio": after / before, "times": both}


def compare_steps(base: Job, other: Job, count: int) -> Report:
    """Compare a round of two variants of a job."""
    for job in (base, other):
        job.round()  # a state's first use allocates it
    moved = float((base.after_first - base.x0).abs().max())
    apart = float((base.after_first - other.after_first).abs().max())
    return {**take_turns(base.round, other.round, count), "first_round_before": base.first_round,
            "first_round_after": other.first_round, "largest_difference": apart, "largest_movement": moved,
            "notes": other.experiment.notes}  # fmt: skip


def compare_evaluations(base: Job, changes: dict[str, bool], count: int) -> Report:
    """Compare an evaluation of a job's model with and without some switches turned."""
    plain = base.evaluate()
    first, found = clocked(lambda: base.evaluate(**changes))()
    row = take_turns(base.evaluate, lambda: base.evaluate(**changes), count)
    return {**row, "first_evaluation": first, "captured": base.has_captured(**changes),
            "loss_difference": abs(found["loss"] - plain["loss"]),
            "accuracy_difference": abs(found["accuracy"] - plain["accuracy"])}  # fmt: skip


def plan(names: list[str], only: list[str] | None = None) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield (job, "step" or "evaluation", switches): first the first ones of all jobs.

    >>> [turned for job, kind, turned in plan(["cnn fedavg tf32"]) if kind == "step"]
    [('fuse_pooling',)]
    """
    longest = max(map(len, (*STEPS.values(), *FORWARDS.values())))
    for rank, name in product(range(longest), names):
        for kind, arms in (("step", STEPS), ("evaluation", FORWARDS)):
            mine = arms[model_of(name)]
            if rank < len(mine) and (only is None or set(only) & set(mine[rank])):
                yield name, kind, mine[rank]


def model_of(name: str) -> str:
    """Return the model of a job."""
    return ALL[name][1]


def fill_caches(todo: list[tuple[str, str, tuple[str, ...]]], seconds: float, device: str, tiny: bool, found: Report,
                keep: Callable[[], None]) -> None:  # fmt: skip
    """Compile all variants in processes at the same time; write the seconds of their first rounds to `found`."""
    steps = [(job, turned) for job, kind, turned in todo if kind == "step"]
    variants = list(dict.fromkeys([*((job, ()) for job, _, _ in todo), *steps]))
    threads = str(max(1, (os.cpu_count() or 1) // len(variants)))
    start = [sys.executable, "-m", "benchmarks.gpu_switches", "--device", device, *["--tiny"] * tiny, "--compile"]
    children = {
        (name, turned): subprocess.Popen([*start, name, *turned], stdout=subprocess.PIPE, text=True,
                                         env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": threads})
        for name, turned in variants
    }  # fmt: skip
    until = time.perf_counter() + seconds
    found |= {"processes": len(children), "first_rounds": {}}
    for (name, turned), child in children.items():
        try:
            said = child.communicate(timeout=max(0.1, until - time.perf_counter()))[0].splitlines()
            found["first_rounds"][describe(name, turned)] = float(said[-1]) if said else None
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            found["first_rounds"][describe(name, turned)] = None
        keep()


def describe(name: str, turned: tuple[str, ...]) -> str:
    """Return the name of a variant: the job, and which switches differ from the defaults."""
    return name + "".join(f", {switch} {'off' if getattr(SWITCHES, switch) else 'on'}" for switch in turned)


def make_data(tiny: bool) -> tuple[Data, str]:
    """Return CIFAR-10, or random images of its shape."""
    data, what = jobs.cifar()
    if not tiny:
        return data, what
    train, test = (images[:, :, :8, :8].numpy() for images in (data.train_inputs[:40], data.test_inputs[:10]))
    return from_arrays(train, data.train_targets[:40].numpy(), test, data.test_targets[:10].numpy(), classes=10), what


def measure(names: list[str], device: str, seconds: float, tiny: bool = False, fill: bool = True,
            only: list[str] | None = None, keep: Callable[[Report], None] = lambda _: None) -> Report:  # fmt: skip
    """Measure the switches on these jobs; `keep` gets the report after every figure."""
    began = time.perf_counter()
    data, what = make_data(tiny)
    todo = list(plan(names, only))
    report: Report = {"kind": "switches", "versions": find_versions(torch.device(device)),
                      "when": datetime.now(UTC).isoformat(timespec="seconds"), "data": what,
                      "defaults": dict(vars(SWITCHES)), "compiled_together": {}, "rows": []}  # fmt: skip
    if device.startswith("cuda") and fill:
        fill_caches(todo, FILLING * seconds, device, tiny, report["compiled_together"], lambda: keep(report))
        report["compiled_together"]["seconds"] = time.perf_counter() - began
    bases: dict[str, Job] = {}
    cost: dict[tuple[str, str], float] = {}  # of the longest figure of a model so far
    for name, kind, turned in todo:
        sort, started = (model_of(name), kind), time.perf_counter()
        row: Report = {"job": name, "of": kind, "switches": list(turned), "variant": describe(name, turned)}
        report["rows"].append(row)
        if started - began + cost.get(sort, 0.0) > seconds:
            row["skipped"] = f"the time limit of {seconds:.0f} s"
            keep(report)
            continue
        count = 1 if tiny else TURNS[model_of(name)]
        try:
            if name not in bases:
                bases[name] = Job(name, (), data, device, tiny)
            if kind == "step":
                row |= compare_steps(bases[name], Job(name, turned, data, device, tiny), count)
            else:
                row |= compare_evaluations(bases[name], {s: not getattr(SWITCHES, s) for s in turned}, count)
        except Exception as error:  # of one variant, which must not cost the others
            row["failed"] = f"{type(error).__name__}: {str(error)[:300]}"
        cost[sort] = max(cost.get(sort, 0.0), time.perf_counter() - started)
        row["seconds"] = time.perf_counter() - started
        print(tell(row), flush=True)
        keep(report)
        gc.collect()  # a variant's graphs hold memory
    report["seconds"] = time.perf_counter() - began
    keep(report)
    return report


def tell(row: Report) -> str:
    """Return one line on a figure."""
    what = f"{row['variant']}, {'a round' if row['of'] == 'step' else 'an evaluation'}"
    if why := row.get("failed") or row.get("skipped"):
        return f"{what}: {why}"
    return f"{what}: {1e3 * row['before']:.2f} -> {1e3 * row['after']:.2f} ms, ratio {row['ratio']:.3f}"


def markdown(report: Report) -> str:
    """Return the tables of docs/performance.md."""
    about = report["versions"]
    together = report["compiled_together"].get("processes")
    lines = [f"{about['hardware']}, torch {about['torch']}; commit {(about['commit'] or 'unknown')[:10]}, "
             f"{report['when'][:10]}. Data: "
             f"{report['data']}. Medians of rounds that take turns, without evaluation."
             + (f" First rounds found the caches filled by {together} processes." if together else ""), "",
             "| job | turned | ms before | ms after | ratio | first round, s, before | after | largest difference of "
             "the model (its largest change) |", "|---" * 8 + "|"]  # fmt: skip
    for r in report["rows"]:
        if r["of"] == "step" and "ratio" in r:
            lines.append(f"| {r['job']} | {r['variant'].removeprefix(r['job'] + ', ')} | {1e3 * r['before']:.1f} | "
                         f"{1e3 * r['after']:.1f} | {r['ratio']:.2f} | {r['first_round_before']:.1f} | "
                         f"{r['first_round_after']:.1f} | {r['largest_difference']:.1e} "
                         f"({r['largest_movement']:.1e}) |")  # fmt: skip
    lines += ["", "| evaluation of | turned | ms before | ms after | ratio | first, s | captured | difference of the "
              "loss | of the accuracy |", "|---" * 9 + "|"]  # fmt: skip
    for r in report["rows"]:
        if r["of"] == "evaluation" and "ratio" in r:
            lines.append(f"| {r['job']} | {r['variant'].removeprefix(r['job'] + ', ')} | {1e3 * r['before']:.2f} | "
                         f"{1e3 * r['after']:.2f} | {r['ratio']:.2f} | {r['first_evaluation']:.1f} | "
                         f"{'yes' if r['captured'] else 'no'} | {r['loss_difference']:.1e} | "
                         f"{r['accuracy_difference']:.1e} |")  # fmt: skip
    if missing := [r for r in report["rows"] if "ratio" not in r]:
        lines += ["", "Not measured: " + "; ".join(tell(r) for r in missing) + "."]
    return "\n".join(lines)


def save(path: Path, report: Report) -> None:
    """Write the report; who stops the program while it writes keeps the former file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".part")
    aside.write_text(json.dumps(report, indent=1) + "\n")
    aside.replace(path)


def main() -> None:
    """Measure, write the JSON file and print a line per figure."""
    parser = argparse.ArgumentParser("python -m benchmarks.gpu_switches", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--only", nargs="*", default=[""], metavar="NAME",
                        help="jobs whose names begin so (cnn, resnet18-gn, 'cnn fedavg bf16')")  # fmt: skip
    parser.add_argument("--switches", nargs="*", choices=vars(SWITCHES), help="figures of these only; default: all")
    parser.add_argument("--seconds", type=float, default=350, help="time limit for all figures together")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small models and a few steps")
    parser.add_argument("--fill", action=argparse.BooleanOptionalAction, default=True,
                        help="compile all variants in processes first (on a GPU)")  # fmt: skip
    parser.add_argument("--out", type=Path, help="the JSON file")
    parser.add_argument("--compile", nargs="+", metavar="WORD", help="only play the first round of JOB [SWITCH …]")
    given = parser.parse_args()
    if given.compile:
        name, *turned = given.compile
        print(Job(name, tuple(turned), make_data(given.tiny)[0], given.device, given.tiny).first_round)
        return
    names = [name for name in JOBS if any(name.startswith(begin) for begin in given.only)]
    if not names:
        parser.error(f"no job begins with {' or '.join(given.only)}; there are {', '.join(JOBS)}")
    keep = partial(save, given.out) if given.out else lambda _: None
    measure(names, given.device, given.seconds, given.tiny, given.fill, given.switches, keep)


if __name__ == "__main__":
    main()
