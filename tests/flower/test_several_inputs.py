"""Several inputs per sample, a loss and predictions of the user's own: as in a simulation, and refused in sentences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import steppe
from steppe.config import resolve
from steppe.core.errors import RunFailed, SteppeError
from steppe.flower.build_server_and_node import build_server
from steppe.flower.federation_file import Own, Sample, parse
from steppe.flower.node_data import read_data
from steppe.flower.refusals import REASONS
from tests.flower import own
from tests.flower.memory import MemoryGrid, launch

FORM = {"named": {"ids": {"shape": [5]}, "keep": {"shape": [5], "inputs": "bool"}}, "classes": 2, "tokens": 20}
OWN = {f: f"tests.flower.own:{f2}" for f, f2 in (("model", "Masked"), ("predict", "scores"), ("loss", "focal"))}
RUN = {"algorithm": "fedsam", "clients": 2, "per_round": 2, "batch": 10, "partition": "iid"}


def test_a_federation_equals_the_simulator(tmp_path: Path) -> None:
    inputs, y = own.sentences(0, 30)
    np.savez(tmp_path / "0.npz", y=y, **inputs)
    places = {0: str(tmp_path / "0.npz"), 1: "tests.flower.own:of_client_1"}
    nodes = {7 + i: {"client": i, "data": place, "state": str(tmp_path / str(i)), "device": "cpu"}
             for i, place in places.items()}  # fmt: skip
    grid = MemoryGrid(nodes, own=Own(**OWN))
    terms = {"data": FORM, "own": OWN, "test": "tests.flower.own:of_the_server"}
    real, _, _ = launch(tmp_path, RUN, grid=grid, terms=terms, out=tmp_path / "run")
    torch.manual_seed(0)
    data = steppe.from_clients([own.sentences(0, 30), own.sentences(1, 40)], test=own.sentences(2, 50))
    names = ("clients", "per_round", "rounds", "batch", "epochs", "lr", "momentum", "max_steps", "dtype", "workers")
    keys = {name: getattr(real.experiment.config, name) for name in names}
    simulated = steppe.run("fedsam", own.Masked(), data, loss=own.focal, predict=own.scores, device="cpu", **keys)
    torch.testing.assert_close(real.server.x, simulated.x, rtol=0, atol=1e-12)
    assert real.history[-1]["loss"] == pytest.approx(simulated.history[-1]["loss"], abs=1e-12)


def test_tokens_beyond_the_model_are_found_at_the_node(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    """The server learns that the data do not fit, and no more."""
    inputs, y = own.sentences(0, 30)
    np.savez(tmp_path / "0.npz", y=y, ids=inputs["ids"] + 100, keep=inputs["keep"])
    node = {"client": 0, "data": str(tmp_path / "0.npz"), "state": str(tmp_path / "0"), "device": "cpu"}
    grid = MemoryGrid({7: node}, own=Own(**OWN))
    with pytest.raises(RunFailed, match=f"node 7: {REASONS['build']}") as error:
        launch(tmp_path, {**RUN, "clients": 1, "per_round": 1}, grid=grid, terms={"data": FORM, "own": OWN})
    assert "index" not in str(error.value)
    assert "index out of range in self. Is its table of tokens large enough?" in capfd.readouterr().out


def test_made_up_tokens_cause_no_message(tmp_path: Path) -> None:
    """The server's stand-ins for samples are all zeros, inputs and targets."""
    form = {"shape": [5], "inputs": "int64", "tokens": 20, "target_shape": [5], "targets": "int64"}
    built = build_server(parse({"data": form, "own": {"model": "tests.flower.own:next_token"}}), resolve({}),
                         Sample(**form), None)  # fmt: skip
    assert not built.notes


@pytest.mark.parametrize(("place", "says"), [
    ("tests.flower.own:few_samples", "has as inputs one tensor, but federation.toml says ids, keep"),
    ("tests.flower.own:nested", "several tensors without names"),
    ("tests.flower.own:in_order", "several tensors without names"),
    ("{here}/one.npz", r"has no array 'keep': it must contain ids, keep and y"),
    ("{here}/short.npz", "has 2 inputs but 3 targets"),
    ("{here}/types.npz", r"has keep of shape \[5\] and type float32, but federation.toml says \[5\] and bool"),
])  # fmt: skip
def test_data_of_another_form_are_refused(tmp_path: Path, place: str, says: str) -> None:
    ids, keep, y = np.zeros((3, 5), np.int64), np.ones((3, 5), bool), np.zeros(3, np.int64)
    np.savez(tmp_path / "one.npz", ids=ids, y=y)
    np.savez(tmp_path / "short.npz", ids=ids, keep=keep[:2], y=y)
    np.savez(tmp_path / "types.npz", ids=ids, keep=keep.astype(np.float32), y=y)
    with pytest.raises(SteppeError, match=says):
        read_data(place.format(here=tmp_path), Sample(**FORM), "client 0")


@pytest.mark.parametrize(("data", "says"), [
    ({"classes": 2}, "needs either shape, for one input, or a table named"),
    ({"shape": [5], "inputs": "int64", **FORM}, "needs either shape"),
    ({"named": {"y": {"shape": [5]}}}, "an input cannot be named y"),
    ({"named": {}}, "named is"),
    ({"named": {"ids": {"shape": [5], "type": "int64"}}}, "no key 'data.named.ids.type'"),
    ({"named": {"image": {"shape": [1, 8, 8], "inputs": "uint8"}}}, "images need mean and std"),
])  # fmt: skip
def test_wrong_descriptions_are_sentences(data: dict, says: str) -> None:
    with pytest.raises(SteppeError, match=says):
        parse({"data": data})
