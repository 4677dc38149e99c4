"""Every damaged file of a run's folder is read or refused in a sentence: by load, resume, report and analyze."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import steppe
from steppe.report import write
from tests.fuzz.damage import ANY_JSON, Damage
from tests.fuzz.inputs import fuzz, is_sentence, within

pytestmark = pytest.mark.slow
SMALL: dict[str, Any] = {"model": "mlp", "data": "digits", "clients": 4, "per_round": 2, "rounds": 2, "max_steps": 1,
                         "partition": "iid", "workers": 0, "progress": False}  # fmt: skip
FILES = ["config.json", "about.json", "versions.json", "rounds.jsonl", "result.json", "analysis.json", "partition.json",
         "model.safetensors", "checkpoints/round-000002/manifest.json", "checkpoints/round-000002/server.safetensors",
         "checkpoints/round-000002/clients.safetensors"]  # fmt: skip


def _resume(out: Path) -> None:
    steppe.run("scaffold", out=out, resume=True, **SMALL)


READERS = {
    "load": lambda out: steppe.load(out),
    "resume": _resume,
    "report": lambda out: write.write([out], out / "report.md"),
    "analyze": lambda out: steppe.analyze(out, ["lambda1"], samples=20),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "run"
    steppe.run("scaffold", out=out, **SMALL)
    steppe.analyze(out, ["lambda1"], samples=20)
    return out


@pytest.mark.filterwarnings("ignore")
@fuzz(2)
@given(name=st.sampled_from(FILES), reader=st.sampled_from(sorted(READERS)), damage=ANY_JSON)
def test_any_damaged_file_of_a_run(name: str, reader: str, damage: Damage, whole: Path, tmp_path_factory: Any) -> None:
    out = tmp_path_factory.getbasetemp() / "damaged-run"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(whole, out)
    try:
        (out / name).write_bytes(damage((whole / name).read_bytes()))
    except ValueError:  # an edit of JSON, for a file that is none
        (out / name).write_bytes(b"\xff" * 30)
    try:
        with within(60):
            READERS[reader](out)
    except steppe.SteppeError as error:
        is_sentence(error)
