"""Every command line ends with exit code 0, 2 or 3, and never with a traceback."""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import typer
from hypothesis import example, given
from hypothesis import strategies as st

from steppe.algorithms import CATALOGUE
from steppe.cli.app import app, main
from steppe.config import Config
from steppe.core.errors import SteppeError
from steppe.engine import build, rounds
from steppe.jobs import queue
from steppe.registry import PARTS
from tests.fuzz.inputs import NUMBERS, TEXTS, fuzz, named, within

pytestmark = pytest.mark.slow
TRAINS = ("simulate", "build_experiment", "Queue")  # where a command would begin to work
GROUP: Any = typer.main.get_command(app)
TRIED = ["run", "compare", "sweep", "list", "cost", "cite", "partition", "plot", "report", "analyze", "trace",
         "warm", "reproduce"]  # fmt: skip
NOT_TRIED = {"--all", "--debug"}  # takes long, and is asked to show a traceback
FIRST = {"run": ["fedavg"], "compare": ["fedavg"], "sweep": ["fedavg"], "cost": ["fedavg"], "cite": ["fedavg"],
         "trace": ["fedavg"], "warm": ["fedavg"], "reproduce": ["fedgmt", "--dry-run"], "plot": ["nowhere"],
         "report": ["nowhere"], "analyze": ["nowhere"]}  # fmt: skip


class Enough(SteppeError):
    """The words are understood, and nothing is trained here."""


LOADED = (build.build_experiment, rounds.simulate, queue.Queue)  # so that each is there to be replaced


def stop(*_: Any, **__: Any) -> None:
    raise Enough("far enough")


def words_for(command: str) -> st.SearchStrategy[list[str]]:
    value = st.one_of(TEXTS, NUMBERS.map(str), named(CATALOGUE), named(PARTS))
    own = [name for p in GROUP.commands[command].params for name in p.opts if name.startswith("-")]
    keys = st.sampled_from([*Config.model_fields, "rho", "learning-rate", "x"])
    setting = st.builds("{}={}".format, keys, value)
    option = st.one_of(
        st.tuples(st.sampled_from([name for name in [*own, "--out"] if name not in NOT_TRIED]), value),
        st.tuples(st.sampled_from(["--set", "-s", "--grid", "--range", "--add"]), setting),
        st.tuples(keys.map("--{}".format), value),
        st.tuples(value),
    )
    more = st.lists(option, max_size=3).map(lambda several: [word for pair in several for word in pair])
    return more.map(lambda words: [command, *FIRST.get(command, []), *words])


def usable(word: str) -> str:
    """As a shell could pass it: without null characters."""
    return word.replace("\0", "")


def said(words: list[str], folder: Path) -> tuple[int, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(within(120))
        stack.enter_context(contextlib.chdir(folder))
        stack.enter_context(mock.patch.object(sys, "argv", ["steppe", *map(usable, words)]))
        for module in [m for name, m in sys.modules.items() if name.startswith("steppe.")]:
            for name in TRAINS:
                if hasattr(module, name):
                    stack.enter_context(mock.patch.object(module, name, stop))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        try:
            main()
        except SystemExit as end:
            return int(end.code or 0), err.getvalue()
    return 0, err.getvalue()


@fuzz()
@given(words=st.sampled_from(TRIED).flatmap(words_for))
@example(words=["cost", "fedavg", "--classes", str(10**12)])
@example(words=["cost", "fedavg", "--shape", "1x1x1"])
@example(words=["run", "fedavg", "--add", "dp:secret=/dev/full"])
@example(words=["run", "fedavg", "--out", "/"])
@example(words=["run", "--config", "."])
@example(words=["run", "--config", "/dev/zero"])
@example(words=["run", "fedavg", "--device", "meta"])
@example(words=["run", "fedavg", "-s", "personal=[-1]"])
@example(words=["run", "fedavg", "-s", "clients=" + "9" * 10000])
@example(words=["run", "fedavg", "-s", "lr=" + "[" * 5000])
@example(words=["reproduce", "fedgmt", "--dry-run", "--seeds", str(2**31)])
def test_any_words(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp() / "here"
    folder.mkdir(exist_ok=True)
    code, err = said(words, folder)
    assert code in (0, 2, 3)
    assert "Traceback" not in err
    if code == 2:
        assert err.strip().splitlines()[-1].strip()
        assert "error: " in err
