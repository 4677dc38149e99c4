"""Terminals: narrow ones, those without Unicode, and Ctrl-C."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
import typer

from steppe.cli import analyze, terminal
from steppe.cli.app import app
from tests.cli.conftest import Steppe


@pytest.mark.parametrize("setting", [
    {"PYTHONIOENCODING": "ascii"},
    {"PYTHONIOENCODING": "cp1252"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
])  # fmt: skip
def test_a_terminal_without_greek_letters_gets_question_marks(setting: dict[str, str]) -> None:
    words = [sys.executable, "-m", "steppe", "list", "measures", "lambda1"]
    said = subprocess.run(words, capture_output=True, env={**os.environ, **setting}, timeout=120)
    assert said.returncode == 0, said.stderr
    assert b"?1/?5" in said.stdout  # λ1/λ5


def test_an_interrupted_analysis_says_how_to_go_on(steppe: Steppe, monkeypatch: pytest.MonkeyPatch) -> None:
    assert steppe("run", "fedavg", "--model", "mlp", "--rounds", "1", "--out", "one").code == 0

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(analyze, "measure_runs", interrupt)
    said = steppe("analyze", "one", "-m", "loss")
    assert said.code == 130
    assert "interrupted; the measures that are done are stored, and the same command continues" in said.err


def test_a_word_too_many_is_told_in_whole_sentences(steppe: Steppe) -> None:
    assert steppe("run", "fedavg", "twice").err == (
        "error: Got unexpected extra argument (twice). See steppe run --help.\n"
    )


def test_a_narrow_table_says_what_it_leaves_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def print_at(width: int) -> str:
        made = terminal.make_console
        monkeypatch.setattr(terminal, "make_console", lambda **size: made(**(size or {"width": width, "height": 25})))
        terminal.print_table("", ["name", "best", "loss"], [["fedavg", "95.37 ± 2.58", "0.6"]], spare=("best",))
        monkeypatch.undo()
        return capsys.readouterr().out

    assert "left out" not in print_at(40)
    narrow = print_at(15)
    assert "95.37" not in narrow
    assert narrow.endswith("left out at this width: best\n")


def list_commands(command: click.Command, *names: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield names, command
    for name, one in getattr(command, "commands", {}).items():
        yield from list_commands(one, *names, name)


def test_a_help_screen_shows_all_of_its_words_at_80_columns(steppe: Steppe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for names, command in list_commands(typer.main.get_command(app)):
        shown = steppe(*names, "--help").out
        assert max(map(len, shown.splitlines())) <= 80
        helps = [getattr(one, "help", None) or "" for one in command.params]
        assert [word for text in helps for word in text.split() if word not in shown] == [], names
        _, *paragraphs = (command.help or "").split("\n\n")
        assert not [text for text in paragraphs if "\n" in text], names  # it would be broken there and at the edge
