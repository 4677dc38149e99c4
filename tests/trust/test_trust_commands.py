"""Privacy and robust aggregation from the command line."""

from __future__ import annotations

import json
import sys

import pytest

from tests.cli.conftest import Steppe

QUICK = ("-s", "model=mlp", "-s", "clients=8", "-s", "per_round=5", "-s", "epochs=1", "-s", "max_steps=1",
         "-s", "lr=0.01", "-s", "workers=0", "-r", "2")  # fmt: skip


@pytest.mark.parametrize("text", ["median", "trimmed_mean:cut=0.1", "krum:bad=1", "norm_bound:limit=5"])
def test_a_robust_run(steppe: Steppe, text: str) -> None:
    said = steppe("run", "fedsam", "--add", text, *QUICK, "--out", "run", "--json")
    assert said.code == 0, said.err
    assert json.loads(said.out)["algorithm"] == f"fedsam+{text.partition(':')[0]}"


def test_epsilon_is_printed(steppe: Steppe) -> None:
    pytest.importorskip("dp_accounting", reason="the accountant is the extra `dp`")
    said = steppe("run", "fedsam", "--add", "dp:clip=1,noise=1.5", *QUICK, "--out", "run")
    assert said.code == 0, said.err
    assert "round 1/2" in said.err
    assert said.err.count("  ε ") == 2
    assert "so the model will learn little" in said.err
    assert "privacy spent: ε " in said.out
    told = steppe("run", "fedsam", "--add", "dp:clip=1,noise=1.5", *QUICK, "--out", "again", "--json")
    assert 0 < json.loads(told.out)["epsilon"] < 20
    assert json.loads(told.out)["delta"] == 1e-5


def test_without_the_accountant_there_is_no_privacy(steppe: Steppe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    said = steppe("run", "--add", "dp", *QUICK)
    assert said.code == 2
    assert "pip install 'steppe[dp]'" in said.err


@pytest.mark.parametrize(("words", "told"), [
    (["median", "-s", "weighting=samples"], "set weighting = uniform"),
    (["krum:bad=2"], "krum:bad=2,keep=1 needs 7 replies in every round"),
    (["krum:bad=1", "-s", "sampling=bernoulli"], "and sampling = fixed"),
    (["median", "--add", "krum"], "keep one of them"),
    (["medain"], "did you mean 'median'"),
    (["trimmed_mean:share=0.1"], "has no setting 'share'"),
])  # fmt: skip
def test_refused(steppe: Steppe, words: list[str], told: str) -> None:
    said = steppe("run", *QUICK, "--add", *words)
    assert said.code == 2
    assert told in said.err
