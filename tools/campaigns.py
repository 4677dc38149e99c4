"""Test campaigns: kill the program, fill its disk, feed it invalid input, and count how often it survives.

    python tools/campaigns.py --seed 0                 all of them, some minutes on two cores
    python tools/campaigns.py --only kills --budget 5  one of them, five times as long

Writes tools/results/reliability.json, and from it the table in docs/reliability.md. The fuzzers are those of
tests/fuzz, with this seed and budget; what they find fails there, with a smallest example. The soaks are those of
tools/soak.py, by their last figures in tools/results.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
os.environ["PYTHONPATH"] = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
RESULTS = ROOT / "tools" / "results"
PAGE, BEGIN, END = ROOT / "docs" / "reliability.md", "<!-- table: tools/campaigns.py -->\n", "<!-- end of table -->\n"
Told = dict[str, Any]


def kills(seed: int, budget: float) -> Told:
    """Kill a run at a random access to the disk, and resume it: model, records and states must be equal to the bit."""
    from tests.runs.test_resume import SCENES, killed
    from tests.scene import launch, remains

    draw, tried, bad, died = random.Random(seed), 0, list[str](), 0
    with tempfile.TemporaryDirectory() as home:
        whole = {name: remains(Path(home, name), launch(Path(home, name), **o)) for name, o in SCENES.items()}
        for tried in range(1, int(30 * budget) + 1):
            name, at = draw.choice(list(SCENES)), draw.randrange(1, 75)
            out = Path(home, f"killed-{tried}")
            died += killed(at, out, SCENES[name])
            if remains(out, launch(out, resume=True, **SCENES[name])) != whole[name]:
                bad.append(f"{name}, killed at {at}")
    return {
        "tried": tried,
        "survived": tried - len(bad),
        "findings": bad,
        "note": f"{died} were killed before their end",
    }


def full_disk(seed: int, budget: float) -> Told:
    """Fill a real disk after a random round: expect a sentence and an exit code, never a signal, then the same bits."""
    from tests.runs.test_resume import KILLS
    from tests.runs.tiny_disk import run_until_full, tiny_disk
    from tests.scene import launch, remains

    from steppe.core.errors import RunFailed

    draw, tried, bad, full, alone = random.Random(seed), 0, list[str](), 0, 0
    with tempfile.TemporaryDirectory() as home:
        stores = ("memory", "disk")
        whole = {store: remains(Path(home, store), launch(Path(home, store), store=store)) for store in stores}
        while tried < 16 * budget:
            tried += 1
            store, at, left = draw.choice(stores), draw.randrange(1, 6), draw.choice([0, 0, 4, 8])
            options = {"store": store, "workers": draw.choice([0, 2])}
            alone += not options["workers"]
            with tiny_disk(Path(home, "disk-here")) as disk:
                child = KILLS.Process(target=run_until_full, args=(disk, at, left, options))
                child.start()
                child.join(100)
                full += child.exitcode == RunFailed.exit_code
                (disk / "filler").unlink(missing_ok=True)
                again = remains(disk / "run", launch(disk / "run", resume=True, **options))
            if child.exitcode not in (0, RunFailed.exit_code) or again != whole[store]:
                bad.append(f"{options}, full after round {at} but {left} KiB: exit code {child.exitcode}")
    note = f"{full} ran out of space; {tried - alone} with two worker processes"
    return {"tried": tried, "survived": tried - len(bad), "findings": bad, "note": note}


def fuzz(*files: str, examples: int) -> Callable[[int, float], Told]:
    """Run fuzzers of tests/fuzz. Hypothesis reports how many inputs it has tried; a failed test is a finding."""

    def run(seed: int, budget: float) -> Told:
        env = {**os.environ, "STEPPE_FUZZ_SEED": str(seed), "STEPPE_FUZZ_EXAMPLES": str(int(examples * budget))}
        words = ["-q", "-p", "no:cacheprovider", "--hypothesis-show-statistics", *(f"tests/fuzz/{f}" for f in files)]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *words], cwd=ROOT, env=env, capture_output=True, text=True
        )
        if done.returncode not in (0, 1):
            raise SystemExit(done.stdout[-3000:] + done.stderr[-3000:])
        generated = re.findall(r"during generate phase.*?- (\d+) passing, (\d+) failing", done.stdout, re.S)
        passed, failed = (sum(int(pair[i]) for pair in generated) for i in (0, 1))
        found = re.findall(r"^FAILED (\S+)", done.stdout, re.M)
        return {"tried": passed + failed, "survived": passed, "findings": found,
                "examples": int(examples * budget)}  # fmt: skip

    return run


def nodes(seed: int, budget: float) -> Told:
    """Run whole rounds of a federation in memory, in each of which one node sends a different invalid reply."""
    from tests.flower import test_bad_nodes

    test = "tests/flower/test_bad_nodes.py"
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test], cwd=ROOT,
                          capture_output=True, text=True)  # fmt: skip
    tried = sum(map(len, (test_bad_nodes.REPLIES, test_bad_nodes.ANSWERS, test_bad_nodes.WRECKS)))
    found = re.findall(r"^FAILED (\S+)", done.stdout, re.M)
    return {"tried": tried, "survived": tried if done.returncode == 0 else 0, "findings": found}


def soak(kind: str) -> Callable[[int, float], Told]:
    """Return the last soak's figures; a soak takes too long to be run here."""

    def run(seed: int, budget: float) -> Told:
        path = RESULTS / f"soak-{kind}.json"
        if not path.exists():
            raise SystemExit(f"{path} does not exist: python tools/soak.py {kind} --out {path}")
        told = json.loads(path.read_text())
        hurt = f"{told['kills']} kills" if "kills" in told else f"{sum(told['left'].values())} departures of nodes"
        memory = ", ".join(f"{name} {m['start_mib']} to {m['end_mib']} MiB" for name, m in told["memory"].items()
                           if "end_mib" in m)  # fmt: skip
        left = [*told["leftovers"]["processes"], *find_leftovers(told)]
        same = told.get("same_bits", told.get("largest_difference", 1.0) < 1e-6)
        found = [] if same and not left else [f"same model: {same}, leftovers: {left}"]
        return {"tried": told["rounds"], "survived": told["rounds"] if not found else 0, "findings": found,
                "seed": told["seed"], "date": told["date"], "seconds": told["seconds"],
                "note": f"{hurt}, {told['resumes']} resumes; memory: {memory or 'too short to say'}"}  # fmt: skip

    return run


def find_leftovers(told: Told) -> list[str]:
    """Return our files that a soak left behind. On import, torch makes one empty folder per user for its cache."""
    return [name for name in told["leftovers"]["files"] if not name.startswith("torchinductor_")]


CAMPAIGNS: dict[str, tuple[str, Callable[[int, float], Told]]] = {
    "kills": ("kill -9 at a random access to the disk, then resume to the bit", kills),
    "full-disk": ("a disk that fills up, then resume to the bit", full_disk),
    "configurations": ("configurations, from Python and from files", fuzz("test_configurations.py", examples=150)),
    "command-lines": ("command lines", fuzz("test_command_lines.py", examples=150)),
    "data-files": ("damaged files of data sets", fuzz("test_damaged_data.py", examples=150)),
    "run-files": ("damaged files of runs", fuzz("test_damaged_runs.py", examples=100)),
    "other-files": ("damaged files of federations, searches and tables", fuzz("test_damaged_files.py", examples=150)),
    "messages": ("damaged and forged messages of nodes", fuzz("test_messages.py", examples=400)),
    "nodes": ("rounds of a federation with a bad node", nodes),
    "soak-simulation": ("soak: rounds of a simulation whose workers are killed", soak("simulation")),
    "soak-federation": ("soak: rounds of a federation whose nodes leave and return", soak("federation")),
}


def render(results: dict[str, Told]) -> str:
    """Write the table of docs/reliability.md."""
    lines = [
        "| campaign | tried | survived | findings | seed | seconds | date, version |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, told in results.items():
        note = f" ({told['note']})" if told.get("note") else ""
        cells = [CAMPAIGNS[name][0] + note, f"{told['tried']:,}", f"{told['survived']:,}", len(told["findings"]),
                 told["seed"], told["seconds"], f"{told['date']}, {told['version']}"]  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


def write_page(results: dict[str, Told]) -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + render(results) + END + rest.partition(END)[2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=1.0)
    parser.add_argument("--only", choices=CAMPAIGNS, nargs="*", default=list(CAMPAIGNS))
    asked = parser.parse_args()
    path = RESULTS / "reliability.json"
    results: dict[str, Told] = json.loads(path.read_text()) if path.exists() else {}
    for name in asked.only:
        began = time.monotonic()
        told = CAMPAIGNS[name][1](asked.seed, asked.budget)
        facts = {"seed": asked.seed, "budget": asked.budget, "date": time.strftime("%Y-%m-%d")}
        results[name] = {**facts, "version": version("steppe"), "seconds": round(time.monotonic() - began), **told}
        print(name, json.dumps(results[name]), flush=True)
        results = {key: results[key] for key in CAMPAIGNS if key in results}
        path.write_text(json.dumps(results, indent=1) + "\n")
    write_page(results)
    if any(told["findings"] for told in results.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
