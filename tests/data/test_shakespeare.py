"""Text with natural clients: windows, roles, models for them, and a run that learns."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import steppe
from steppe import models
from steppe.core.errors import SteppeError
from steppe.data import load
from steppe.data.shakespeare import ALPHABET, TOKENS, cut, decode, encode

FEW: dict[str, Any] = {"rounds": 1, "epochs": 1, "per_round": 3, "progress": False}


def play(folder: Path, lines: list[tuple[str, str, str]]) -> Path:
    """Write a file of speeches."""
    folder.mkdir(exist_ok=True)
    text = "".join(json.dumps(dict(zip(("play", "role", "text"), line, strict=True))) + "\n" for line in lines)
    (folder / "shakespeare-full.jsonl.xz").write_bytes(lzma.compress(text.encode()))
    return folder


def test_the_slice_is_windows_of_roles() -> None:
    data = load("shakespeare")
    assert isinstance(data.train_inputs, torch.Tensor)
    assert data.train_inputs.shape[1] == data.train_targets.shape[1] == 80
    assert torch.equal(data.train_inputs[:, 1:], data.train_targets[:, :-1])  # the target is the next character
    assert data.groups is not None
    assert data.test_groups is not None
    assert data.client_names is not None
    assert len(data.client_names) == 30 == len(set(data.groups)) == len(set(data.test_groups))
    assert int(data.train_inputs.max()) < TOKENS == data.tokens == data.outputs
    hamlet = data.client_names.index("hamlet: HAMLET")
    said = decode(data.train_inputs[data.groups == hamlet].flatten().numpy())
    assert said.startswith("[Aside]  A little more than kin, and less than kind.")
    later = decode(data.test_inputs[data.test_groups == hamlet].flatten().numpy())  # type: ignore[index, union-attr]
    assert "he has my dying voice" in later
    assert "he has my dying voice" not in said


def test_windows_and_a_file_of_ones_own(tmp_path: Path) -> None:
    assert cut(np.arange(162))[:, [0, -1]].tolist() == [[0, 80], [80, 160]]
    assert len(cut(np.arange(80))) == 0
    assert decode(encode("O, I die\N{SNOWMAN}")) == "O, I die\N{REPLACEMENT CHARACTER}"
    assert len(ALPHABET) == len(set(ALPHABET)) == 77
    folder = play(tmp_path, [("a", "X", "word " * 200), ("a", "Y", "short"), ("b", "X", "other " * 200)])
    data = load("shakespeare-full", folder)
    assert data.client_names == ("a: X", "b: X")  # Y has too little text
    assert np.bincount(data.groups).tolist() == [11, 13]  # type: ignore[arg-type]
    with pytest.raises(SteppeError, match="at least 242 characters"):
        load("shakespeare-full", play(tmp_path, [("a", "Y", "short")]))
    (tmp_path / "shakespeare-full.jsonl.xz").write_bytes(b"no")
    with pytest.raises(SteppeError, match="cannot be read"):
        load("shakespeare-full", tmp_path)
    with pytest.raises(SteppeError, match=r"shakespeare\.jsonl\.xz"):
        load("shakespeare-full", tmp_path / "none")


@pytest.mark.parametrize("name", ["lstm", "gpt"])
def test_models_see_no_later_token_and_batch_alike(name: str) -> None:
    torch.manual_seed(0)
    model = models.build(name, 7, (12,)).double()
    x = torch.randint(7, (3, 12))
    changed = x.clone()
    changed[:, 8:] = (changed[:, 8:] + 1) % 7
    with torch.no_grad():
        before, after = model(x), model(changed)
    assert before.shape == (3, 12, 7)
    assert torch.equal(before[:, :8], after[:, :8])
    assert not torch.allclose(before[:, 8:], after[:, 8:])
    if name == "lstm":  # against PyTorch's own
        layer = model.body[0]
        own = torch.nn.LSTM(32, 128, batch_first=True).double()
        order = [0, 1, 3, 2]  # PyTorch has the cell's gate before the output's
        own.weight_ih_l0.data = torch.cat([layer.inputs.weight.chunk(4)[k] for k in order])
        own.weight_hh_l0.data = torch.cat([layer.state.weight.chunk(4)[k] for k in order])
        own.bias_ih_l0.data = torch.cat([layer.inputs.bias.chunk(4)[k] for k in order])
        own.bias_hh_l0.data.zero_()
        torch.testing.assert_close(layer(model.embedding(x)), own(model.embedding(x))[0])
    with pytest.raises(SteppeError, match="reads sequences"):
        models.build(name, 10, (1, 8, 8))


@pytest.mark.parametrize("model", ["lstm", "gpt"])
def test_executors_agree_on_text(model: str) -> None:
    ids = torch.randint(7, (40, 6), generator=torch.Generator().manual_seed(0))
    data = steppe.from_arrays(ids[:32, :-1], ids[:32, 1:], ids[32:, :-1], ids[32:, 1:], tokens=7)
    given = {**FEW, "clients": 4, "batch": 4, "dtype": "float64", "lr": 0.3}
    one, all_ = (steppe.run("fedsam", model, data, **given, **how) for how in ({"workers": 0}, {"executor": "batched"}))
    vectors = [torch.cat([p.flatten() for p in r.model.parameters()]) for r in (one, all_)]
    torch.testing.assert_close(vectors[0], vectors[1], rtol=1e-9, atol=1e-12)


def test_roles_are_clients_with_tests_of_their_own(tmp_path: Path) -> None:
    folder = play(tmp_path, [("p", f"ROLE {i}", f"a{i} good sentence, my lord. " * (14 + 3 * i)) for i in range(4)])
    given = {**FEW, "data": "shakespeare-full", "data_folder": str(folder), "clients": 3, "batch": 2, "max_steps": 2}
    result = steppe.run("fedavg", "gpt", workers=0, **given)
    config, federation = result.experiment.config, result.experiment.federation
    assert (config.partition, config.lr) == ("natural", 0.3)
    last = result.history[-1]
    assert last["perplexity"] == pytest.approx(np.exp(last["loss"]), rel=1e-5)  # every window has 80 tokens
    assert federation.sizes == [4, 5, 6]  # the three roles with the most text
    data = federation.data
    found = []
    for client in (1, 2, 3):  # the global model on each role's own windows
        mine = data.test_groups == client
        with torch.no_grad():
            right = result.model(data.test_inputs[mine]).argmax(-1) == data.test_targets[mine]  # type: ignore[index]
        found.append(float(right.double().mean()))
    assert result.summary["personal"]["0"]["mean"] == pytest.approx(np.mean(found))
    with pytest.raises(SteppeError, match="have 4 clients, but clients is 5"):
        steppe.run("fedavg", "gpt", **{**given, "clients": 5})
    with pytest.raises(SteppeError, match="reads sequences"):
        steppe.run("fedavg", "lstm", "digits", **FEW)


@pytest.mark.slow
def test_the_lstm_learns_by_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from steppe.cli.app import main

    words = ["run", "fedavg", "--data", "shakespeare", "--rounds", "4", "--max-steps", "12", "--out"]
    monkeypatch.setattr("sys.argv", ["steppe", *words, str(tmp_path / "r")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    history = [json.loads(line) for line in (tmp_path / "r" / "rounds.jsonl").read_text().splitlines()]
    assert history[-1]["loss"] < 3.1 < history[0]["loss"]  # below what the frequencies of characters give
