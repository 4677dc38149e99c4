"""Keys as options, files as configurations, and what the commands say at their end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Steppe

QUICK = ("--model", "mlp", "--clients", "4", "--per-round", "2", "--max-steps", "1", "--workers", "0", "-r", "1")


def test_keys_are_options_of_every_command_that_trains_or_traces(steppe: Steppe, tmp_path: Path) -> None:
    assert steppe("run", "fedsam", "--lr", "0.07", "--rho", "0.3", *QUICK, "--out", "one").code == 0
    one = json.loads(Path("one/config.json").read_text())
    assert (one["lr"], one["clients"], one["settings"]) == (0.07, 4, {"rho": 0.3})
    words = ["compare", "fedavg", "fedsam", "--lr", "0.07", *QUICK, "-m", "none", "--jobs", "1", "--out", "two"]
    said = steppe(*words)
    assert said.code == 0, said.err
    two = [json.loads(path.read_text()) for path in Path("two").rglob("config.json")]
    assert [(c["lr"], c["clients"]) for c in two] == [(0.07, 4)] * 2
    assert "leads on a single seed" in said.out
    assert "picture: two/curves.png; one page with everything: steppe report two" in said.out
    assert (
        steppe("sweep", "fedsam", "--grid", "rho=0.1", "--lr", "0.07", *QUICK, "--jobs", "1", "--out", "three").code
        == 0
    )
    (three,) = (json.loads(path.read_text()) for path in Path("three").rglob("config.json"))
    assert (three["lr"], three["clients"]) == (0.07, 4)
    costs = [steppe("cost", "fedsam", "--model", "mlp", "--json", *more).out for more in ((), ("--clients", "50"))]
    assert json.loads(costs[0]) == json.loads(costs[1])
    assert "cost traces float32" in steppe("cost", "fedsam", "--dtype", "float64").err


def test_federations_take_keys_as_options(steppe: Steppe) -> None:
    pytest.importorskip("flwr")
    assert steppe("federate", "init", "f", "--lr", "0.07", "--clients", "4").code == 0
    terms = Path("f/app/federation.toml").read_text()
    assert "clients = 4" in terms
    assert "lr = 0.07" in terms
    assert len(list(Path("f/nodes").iterdir())) == 4


def test_a_setting_may_stand_beside_the_keys_of_a_file(steppe: Steppe) -> None:
    Path("mine.toml").write_text('algorithm = "fedsam"\nrho = 0.3\n')
    assert steppe("run", "-c", "mine.toml", *QUICK, "--out", "one").code == 0
    assert json.loads(Path("one/config.json").read_text())["settings"] == {"rho": 0.3}
    assert steppe("run", "-c", "one/config.json", "--out", "two").code == 0
    assert Path("two/config.json").read_bytes() == Path("one/config.json").read_bytes()
    Path("mine.toml").write_text('algorithm = "fedavg"\nrho = 0.3\n')
    assert "mine.toml: there is no key 'rho'" in (said := steppe("run", "-c", "mine.toml")).err
    assert "the algorithm's own settings are server_lr, and `steppe list keys` has the rest" in said.err


def test_a_list_in_a_pipe_has_no_spaces_at_its_ends(steppe: Steppe) -> None:
    lines = steppe("list").out.splitlines()
    assert len(lines) > 200
    assert [line for line in lines if line.endswith(" ")] == []


def test_a_key_that_takes_words_or_numbers_is_not_said_to_be_one_of_the_words(steppe: Steppe) -> None:
    assert "one of" not in steppe("list", "keys", "workers").out
    assert "default=0.05  (> 0, ≤ 1e9)" in steppe("list", "keys", "lr").out
    assert "(one of auto, memory, disk)" in steppe("list", "keys", "store").out


def test_lists_fit_the_terminal(steppe: Steppe, monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    from steppe.cli import terminal

    for width in (80, 200):
        monkeypatch.setattr(terminal, "make_console", lambda width=width: Console(width=width, height=25))
        said = steppe("list").out
        assert 0.8 * width < max(map(len, said.splitlines())) <= width
    assert "folder:PATH" in said
    assert "(one of official, paper)" in said
    found = json.loads(steppe("list", "algorithms", "fedsam", "--json").out)
    assert found["algorithms"]["fedsam"]["settings"]["rho"] == 0.1
    assert list(found) == ["algorithms"]
    assert steppe("cite", "steppe").out.startswith("@software{steppe,")


def test_tiny_reproductions_judge_nothing_and_write_where_they_are_told(steppe: Steppe) -> None:
    said = steppe(
        "reproduce", "fedsol-table1", "--scale", "tiny", "--cells", "cifar10/sharding-2/fedavg", "-o", "there"
    )
    assert said.code == 0, said.err
    assert "Its numbers say nothing about" in said.out
    for word in ("inside", "outside", "✓", "✗", "holds"):
        assert word not in said.out, word
    assert [path.name for path in Path().iterdir()] == ["there"]
    assert (Path("there") / "fedsol-table1.md").exists()
