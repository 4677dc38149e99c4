"""Check that every finding's test fails when its fix is undone.

    python tools/findings.py                         all of them, in a copy of the working tree; some minutes
    python tools/findings.py --only lock outsider    some of them

A finding is a fault of the released version. Its fix is one or two lines of today's code; `UNDO` has them as they were
in effect before, and the tests that must then fail. Writes tools/results/findings.json and the second table of
docs/reliability.md. The message of a failed test is kept, to show that it failed for the right reason.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from finding_list import UNDO, Finding

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "tools" / "results" / "findings.json"
SLOW = ("torch", "torch.func", "flwr.serverapp", "flwr.clientapp", "flwr.cli.build", "flwr.superlink.main",
        "hypothesis", "matplotlib.figure", "pydantic", "dp_accounting.pld", "typer", "rich.console",
        "fastapi", "flwr.supernode.start_client_internal")  # fmt: skip
LARGEST = 12 * 2**30  # bytes of memory, most of them never used
PAGE, BEGIN, END = ROOT / "docs" / "reliability.md", "<!-- table: tools/findings.py -->\n", "<!-- end of findings -->\n"


@dataclass
class Seen:
    """The outcome of a finding's tests without its fix."""

    outcome: str  # fails, or passes: then the test does not detect the fault
    failed: list[str] = field(default_factory=list)
    said: str = ""
    seconds: int = 0
    date: str = ""


def undo(home: Path, finding: Finding) -> dict[Path, str]:
    """Undo the fix; return the files as they were."""
    kept: dict[Path, str] = {}
    for file, before, after in finding.undo:
        path = home / "src" / "steppe" / file
        text = path.read_text()
        kept.setdefault(path, text)
        if text.count(before) != 1:
            raise SystemExit(
                f"{finding.key}: {file} has {before!r} {text.count(before)} times; correct tools/finding_list.py"
            )
        path.write_text(text.replace(before, after))
    return kept


def play(home: Path, tests: list[str], out: Path) -> None:
    """Run tests in a forked process, which has imported slow packages and nothing of ours."""
    os.chdir(home)
    os.setpgid(0, 0)
    resource.setrlimit(resource.RLIMIT_AS, (LARGEST, LARGEST))  # without its fix, a program may ask for all memory
    sys.path[:0] = [str(home / "src"), str(home)]
    os.environ |= {"PYTHONPATH": str(home / "src"), "STEPPE_FUZZ_EXAMPLES": "100", "OMP_NUM_THREADS": "1"}
    with out.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        code = pytest.main(["-q", "-x", "-p", "no:cacheprovider", "--no-header", "-rf", *tests])
        sys.stdout.flush()
    os._exit(int(code))


def look(home: Path, finding: Finding, patience: float) -> Seen:
    """Run a finding's tests without its fix."""
    kept, began, out = undo(home, finding), time.monotonic(), home / "said"
    child = get_context("fork").Process(target=play, args=(home, finding.tests, out))
    child.start()
    child.join(patience)
    if late := child.is_alive():
        os.killpg(child.pid or 0, signal.SIGKILL)
        child.join()
    for path, text in kept.items():
        path.write_text(text)
    text, code = out.read_text(errors="replace"), child.exitcode or 0
    failed = re.findall(r"^FAILED (\S+)", text, re.M)
    errors = re.findall(r"^E   +(.*)", text, re.M)
    if late:
        errors = [f"it did not end within {patience:g} s"]
    elif code not in (0, 1):
        errors = [f"pytest ended with {code}: {text.strip()[-200:]}"]
    # An end by a signal, such as SIGBUS, is a failure, too; an error of pytest itself is not.
    outcome = "fails" if failed or code < 0 else "passes" if code == 0 else "error"
    said = re.sub(r"(/[\w.@+-]+)+/", "…/", (errors or [""])[0])[:200]  # without this machine's folders
    return Seen(outcome, failed, said, round(time.monotonic() - began), time.strftime("%Y-%m-%d"))


def render(results: dict[str, Any]) -> str:
    """Write the table of docs/reliability.md: by section, each finding, its tests, and whether one was seen to fail."""
    lines = ["| | finding | test | without the fix |", "|---|---|---|---|"]
    for finding in UNDO:
        told = results.get(finding.key)
        tests, file = [], ""
        for name in finding.tests:
            path, _, function = name.partition("::")
            tests.append(f"`{name}`" if path != file or not function else f"`{function}`")
            file = path
        seen = "not seen" if told is None else f"{told['outcome']} ({told['date']})"
        lines.append(f"| {finding.section} | {finding.text} | {', '.join(tests)} | {seen} |")
    return "\n".join(lines) + "\n"


def write_page(results: dict[str, Any]) -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + render(results) + END + rest.partition(END)[2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", metavar="KEY", choices=[f.key for f in UNDO])
    parser.add_argument("--patience", type=float, default=600.0, help="seconds per finding; too long counts as failed")
    asked = parser.parse_args()
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in SLOW:
        with suppress(ImportError):
            import_module(name)
    with tempfile.TemporaryDirectory(prefix="findings-") as home:
        files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-c", "--null", "-T", "-", "-f", f"{home}/tree.tar"], cwd=ROOT, input=files, check=True)
        subprocess.run(["tar", "-x", "-f", f"{home}/tree.tar", "-C", home], check=True)
        for finding in UNDO:
            if asked.only is None or finding.key in asked.only:
                results[finding.key] = vars(look(Path(home), finding, asked.patience))
                print(finding.key, json.dumps(results[finding.key]), flush=True)
                results = {f.key: results[f.key] for f in UNDO if f.key in results}
                RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    write_page(results)
    if any(told["outcome"] != "fails" for told in results.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
