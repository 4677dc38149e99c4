"""Run the tests under the Python that runs this, and record the outcome: no classifier without such a record.

    python tools/pythons.py                        the fast tests, as `make test-python PYTHON=python3.14` runs them
    python tools/pythons.py tests/api tests/core   some of them, named in the record

Writes this Python's entry in tools/results/pythons.json, which tests/test_package.py compares with the classifiers.
"""

from __future__ import annotations

import datetime
import json
import platform
import subprocess
import sys
import xml.etree.ElementTree as Xml
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "tools" / "results" / "pythons.json"


def run_tests(paths: list[str], xml: Path) -> dict[str, int]:
    """Run the fast tests in these paths; how many passed, failed and were skipped."""
    fast = ["-n", "auto", "--dist", "loadgroup", "--no-loadscope-reorder", "-m", "not slow"]
    subprocess.run([sys.executable, "-m", "pytest", *fast, f"--junitxml={xml}", *paths], cwd=ROOT, check=False)
    suite = next(Xml.parse(xml).iter("testsuite"))
    total, failed, errors, skipped = (int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped"))
    return {"passed": total - failed - errors - skipped, "failed": failed + errors, "skipped": skipped}


def main() -> int:
    paths = sys.argv[1:] or ["tests"]
    commit = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True).strip()
    changed = subprocess.check_output(["git", "status", "--porcelain", "--", "src", "tests"], cwd=ROOT, text=True)
    with TemporaryDirectory() as folder:
        counts = run_tests(paths, Path(folder) / "tests.xml")
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    record[".".join(platform.python_version_tuple()[:2])] = {
        "python": platform.python_version(),
        "torch": version("torch"),
        "system": f"{platform.system()} {platform.machine()}",
        "commit": commit + (" with changes" if changed else ""),
        "day": datetime.date.today().isoformat(),
        "tests": paths,
        **counts,
    }
    RECORD.write_text(json.dumps(dict(sorted(record.items())), indent=2) + "\n")
    print(json.dumps(counts))
    return counts["failed"] > 0


if __name__ == "__main__":
    raise SystemExit(main())
