"""What README.md tells newcomers to type works, with fewer rounds."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Steppe

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
COMMANDS = [
    line.partition(" #")[0].split(maxsplit=1)[1] for line in README.splitlines() if line.startswith("    steppe ")
]
SMALL = ["-s", "model=mlp", "-s", "max_steps=2", "-s", "workers=0", "--rounds", "1"]
LESS = {
    "run": SMALL,
    "compare": [*SMALL, "--seeds", "1", "-m", "loss"],
    "sweep": [*SMALL, "--seeds", "1", "--grid", "lr=0.1"],
    "analyze": ["-m", "loss"],
    "reproduce": ["--cells", "cifar10/sharding-2/fedavg"],
}


@pytest.fixture
def clone(steppe: Steppe, tmp_path: Path) -> Steppe:
    """The command line in a folder with what a clone has after `make demo`."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    demo = re.search(r"^demo:.*\n\t\S+ (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert demo is not None
    assert steppe(*shlex.split(demo[1]), *LESS["compare"]).code == 0
    return steppe


@pytest.mark.slow
def test_commands(clone: Steppe) -> None:
    assert len(COMMANDS) >= 14
    for line in COMMANDS:
        words = shlex.split(line)
        if words[0] == "federate":  # needs processes and time: tests/flower
            continue
        more = ["--rounds", "2"] if "--resume" in words else LESS.get(words[0], [])
        said = clone(*words, *more)
        assert said.code == 0, f"{line}: {said.err}"


def test_every_command_is_one_that_there_is(steppe: Steppe) -> None:
    for name in {line.split()[0] for line in COMMANDS}:
        assert steppe(name, "--help").code == 0, name


def test_your_own_idea(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(from dataclasses.*?)```", README, re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 20
    assert "rounds=30" in code
    script = tmp_path / "idea.py"
    script.write_text(code.replace("rounds=30", "rounds=2, model='mlp', workers=0"))
    runpy.run_path(str(script))
    assert 0 <= float(capsys.readouterr().out) <= 1
