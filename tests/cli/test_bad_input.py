"""Bad input: one sentence that names what is wrong, exit code 2, nothing written, no traceback."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steppe.cli import terminal
from tests.cli.conftest import Steppe

MLP = ("--set", "model=mlp")


def refused(steppe: Steppe, *words: Any, code: int = 2) -> str:
    """The sentence of a command that must fail, having written nothing."""
    before = sorted(Path().rglob("*"))
    said = steppe(*words)
    assert said.code == code, said
    assert said.out == ""
    assert "Traceback" not in said.err
    assert said.err.startswith("error: ")
    assert len(said.err.strip().splitlines()) == 1
    assert sorted(Path().rglob("*")) == before
    return said.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["fedsamm"], ["'fedsamm'", "did you mean 'fedsam'"]),
        (["fedavg", "-s", "data=digitz"], ["'digitz'", "did you mean 'digits'"]),
        (["fedavg", "-s", "partition=ldaa(0.1)"], ["'ldaa(0.1)'", "did you mean 'lda'"]),
        (["fedavg", "-s", "partition=lda"], ["'lda'", "lda("]),
        (["fedavg", "-s", "partition=lda(-1)"], ["--set partition=lda(-1)", "not negative"]),
        (["fedavg", "-s", "model=mpl"], ["'mpl'", "did you mean 'mlp'"]),
        (["fedavg", "-s", "augmentation=flipp"], ["flipp"]),
        (["fedavg", "-s", "clientz=3"], ["--set clientz=3", "'clientz'", "did you mean 'clients'"]),
        (["fedavg", "-s", "rho=0.1"], ["--set rho=0.1", "'rho'"]),
        (["fedsam", "-s", "rh=0.1"], ["'rh'", "did you mean 'rho'"]),
        (["fedsam", "-s", "rho=-0.1"], ["--set rho=-0.1", "rho of algorithm 'fedsam' is -0.1", "between 0 and"]),
        (["fedsam", "-s", "rho=nan"], ["rho of algorithm 'fedsam' is nan"]),
        (["fedsam", "-s", "rho=big"], ["rho of algorithm 'fedsam' must be a number, not 'big'"]),
        (["fedsam", "-s", "settings.rhoo=1"], ["'settings.rhoo'"]),
        (["fedsam", "-s", "settings=3"], ["settings is 3, but must be a table"]),
        (["fedsam", "--add", "mann:weight=1"], ["no part 'mann'", "did you mean 'man'"]),
        (["fedsam", "--add", "mine.py"], ["no part 'mine.py'", "write mine.py:NAME"]),
        (["fedsam", "--add", "sam:rho=1"], ["two parts are named 'sam'"]),
        (["fedavg", "-s", "clients"], ["-s clients is not KEY=VALUE: write -s clients=VALUE"]),
        (["fedavg", "-s", "clients=0"], ["clients is 0", "at least 1"]),
        (["fedavg", "-s", "clients=many"], ["clients is 'many'", "whole number"]),
        (["fedavg", "-s", "clients=2.5"], ["clients is 2.5"]),
        (["fedavg", "-s", "per_round=21"], ["per_round is 21, but there are only 20 clients"]),
        (["fedavg", "-s", "clients=5000"], ["1437 samples are too few for 5000 clients"]),
        (["fedavg", "-s", "batch=0"], ["batch is 0"]),
        (["fedavg", "-s", "lr=0"], ["lr is 0"]),
        (["fedavg", "-s", "lr=nan"], ["lr is nan"]),
        (["fedavg", "-s", "lr=inf"], ["lr is inf"]),
        (["fedavg", "-s", "momentum=1"], ["momentum is 1", "below 1"]),
        (["fedavg", "-s", "workers=-1"], ["workers is -1"]),
        (["fedavg", "-s", "weighting=size"], ["weighting is 'size'", "samples", "uniform"]),
        (["fedavg", "-s", "device=cudaa"], ["device is 'cudaa'"]),
        (["fedavg", "-s", "early_stopping=3"], ["set validation"]),
        (["fedavg", "-s", "dropout=1"], ["dropout is 1", "below 1"]),
        (["fedavg", "-s", "speed=lognormall(1)"], ["speed is 'lognormall(1)'", "did you mean 'lognormal'"]),
        (["fedavg", "-s", "deadline=2x"], ["deadline", "set speed"]),
        (["fedavg", "--track", "tensorbord"], ["'tensorbord'", "did you mean 'tensorboard'"]),
        (["fedavg", "-s", "validation=1.5"], ["validation is 1.5"]),
        (["fedavg", "-s", "recipe=fedsoll"], ["recipe is 'fedsoll'", "fedsol"]),
        (["fedavg", "--rounds", "-1"], ["rounds is -1"]),
        (["fedavg", "--data", "mine.csv"], ["mine.csv is a table", "steppe.from_dataset(train, test, target=", ".npz"]),
        (["fedavg", "-s", "data=mnist"], ["mnist is expected in", "does not exist", "train-images-idx3-ubyte"]),
        (["fedavg", "-s", "data=lost.npz"], ["lost.npz does not exist"]),
        (["fedavg", "-s", "data=folder:nowhere"], ["nowhere"]),
        (["fedavg", "-s", "partition=lost.json"], ["'lost.json'"]),
        (["--config", "lost.toml"], ["no configuration file lost.toml"]),
        (["--config", "."], [". is a folder"]),
        (["--config", "/dev/zero"], ["longer than"]),
        (["fedavg", "--lr", "-1"], ["--lr -1: lr is -1, but must be above 0"]),
        (["fedavg", "--lr"], ["--lr needs a value: write --lr VALUE. Options without one are --resume, "]),
        (["fedavg", "-s", "running_mean=true"], ["running_mean is True", "`steppe list keys running_mean`"]),
        (["fedavg", "--lrr", "1"], ["--lrr 1", "did you mean 'lr'"]),
        (["fedavg", "--learning-rate", "1"], ["--learning-rate 1", "did you mean lr?"]),
        (["fedavg", "--total-client", "9"], ["did you mean clients?"]),
        (["fedavg", "--active-ratio", "0.1"], ["did you mean per_round (a number of clients, not a share)?"]),
        (["fedavg", "-s", "device=meta"], ["device is 'meta'"]),
        (["fedavg", "-s", "device=cuda:99"], ["device is 'cuda:99'"]),
        (["fedavg", "-s", "personal=[-1]"], ["personal.0 is -1", "at least 0"]),
        (["fedavg", "-s", "clients=true"], ["clients is True"]),
        (["fedavg", "-s", f"seed={2**63}"], ["seed is 9223372036854775808", "at most"]),
        (["fedavg", "-s", "clients=" + "9" * 10000], ["clients is inf"]),
        (["fedavg", "-s", "data=[1]"], ["data is [1], but must be text"]),
        (["fedavg", "--add", "dp:secret=/dev/full"], ["'/dev/full', which is not an ordinary file"]),
        (["fedavg", "--out", "/"], ["/ cannot be the folder of a run"]),
        (["fedsam:rho=-1+man"], ["'fedsam:rho=-1+man': rho of algorithm 'fedsam' is -1"]),
        (["--resume", "--out", "nowhere"], ["holds no run to resume"]),
        (["fedavg", "--resume"], ["no run to resume"]),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)  # fmt: skip
def test_run(steppe: Steppe, words: list[str], told: list[str]) -> None:
    sentence = refused(steppe, "run", *words)
    for part in told:
        assert part in sentence


def test_debug_shows_the_traceback(steppe: Steppe) -> None:
    said = steppe("run", "fedsamm", "--debug")
    assert said.code == 2
    assert "Traceback" in said.err
    assert "SettingError" in said.err


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('algorithm = "fedsamm"', ["'fedsamm'", "did you mean 'fedsam'"]),
        ("lerning_rate = 1", ["'lerning_rate'"]),
        ('data = "digitz"', ["did you mean 'digits'"]),
        ('partition = "ldaa(1)"', ["did you mean 'lda'"]),
        ('model = "mpl"', ["did you mean 'mlp'"]),
        ('algorithm = "fedsam"\n[settings]\nrhoo = 1', ["'rhoo'", "did you mean 'rho'"]),
        ('algorithm = "fedsam"\n[settings]\nrho = -1', ["rho of algorithm 'fedsam' is -1"]),
        ('add = ["mann"]', ["did you mean 'man'"]),
        ("settings = 3", ["settings is 3"]),
        ('algorithm = "fedsam"\nrho = -1', ["rho of algorithm 'fedsam' is -1"]),
        ('algorithm = "fedsamm"\nrho = 1', ["no algorithm 'fedsamm'"]),
        ("a = " + "[" * 5000, ["not valid TOML", "nested too deeply"]),
        ("clients = " + "9" * 5000, ["not valid TOML", "value has 5000 digits."]),
        ("add = 3", ["add is 3, but must be a list"]),
        ("clients = 0", ["clients is 0"]),
        ("[run]\nclients = 3", ["'run'"]),
        ("clients = = 3", ["not valid TOML"]),
        ("\x00", ["not valid TOML"]),
    ],
)
def test_the_file_is_named(steppe: Steppe, tmp_path: Path, content: str, told: list[str]) -> None:
    (tmp_path / "mine.toml").write_text(content)
    for more in ([], ["--set", "lr=0.1"], ["--rounds", "3"]):
        sentence = refused(steppe, "run", "--config", "mine.toml", *more)
        for part in ["mine.toml", *told]:
            assert part in sentence


def test_the_file_is_not_blamed_for_the_command_line(steppe: Steppe, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('algorithm = "fedsam"\nrounds = 3\nper_round = 50\n')
    sentence = refused(steppe, "run", "--config", "mine.toml", "-s", "clients=100", "-s", "lr=-1")
    assert "mine.toml" not in sentence
    assert "lr is -1" in sentence
    assert "mine.toml" in refused(steppe, "run", "--config", "mine.toml")  # 50 of 20: now it is the file's fault


def test_other_commands(steppe: Steppe) -> None:
    assert "did you mean 'fedsam'" in refused(steppe, "compare", "fedavg", "fedsamm", "--rounds", "1")
    assert "at least one algorithm" in refused(steppe, "compare")
    assert "'rhoo'" in refused(steppe, "compare", "fedavg", "fedsam", "-s", "rhoo=1")
    assert "mnist is expected" in refused(steppe, "compare", "fedavg", "fedsam", "-s", "data=mnist")
    assert "did you mean 'fedsam'" in refused(steppe, "cost", "fedsamm")
    assert "did you mean 'mlp'" in refused(steppe, "cost", "fedsam", "--model", "mpl")
    assert "3x32x32" in refused(steppe, "cost", "fedsam", "--shape", "big")
    assert "is not in the range" in refused(steppe, "cost", "fedsam", "--classes", str(10**12))
    assert "is not in the range" in refused(steppe, "reproduce", "fedgmt", "--dry-run", "--seeds", str(2**31))
    assert len(refused(steppe, "run", "fedsam", "--rounds", "9" * 10_000)) < 200
    assert "is -1, but must be" in refused(steppe, "cost", "fedsam", "-s", "rho=-1")
    assert "holds no run" in refused(steppe, "plot", "nowhere")
    assert "did you mean 'lda'" in refused(steppe, "partition", "--partition", "ldda(1)")
    assert "did you mean 'digits'" in refused(steppe, "partition", "--data", "digit")
    assert ".png" in refused(steppe, "partition", "--plot", "map.doc")
    assert "is a folder" in refused(steppe, "partition", "--save", "")
    Path("taken").write_text("")
    assert "taken" in refused(steppe, "partition", "--save", "taken/split.json")


def test_a_folder_that_cannot_be_written(steppe: Steppe, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = steppe("run", "fedavg", *MLP, "--rounds", "1", "--out", "file/run")
    assert said.code == 2
    assert "file" in said.err
    assert "Traceback" not in said.err


def test_usage_errors_are_sentences(steppe: Steppe) -> None:
    assert "'runn'; did you mean 'run'" in refused(steppe, "runn")
    assert "there is no key 'seets'" in refused(steppe, "run", "--seets", "a=1")
    assert "--rounds is 'x', but must be a number, as in --rounds 10" in refused(steppe, "run", "fedavg", "--rounds=x")
    assert "'--seeds'" in refused(steppe, "compare", "fedavg", "--seeds", "0")
    assert "See steppe list --help" in refused(steppe, "list", "--lr", "1")


@pytest.mark.parametrize(("words", "right"), [
    ("fedavg --set lr 0.1", "--set lr is not KEY=VALUE: write --set lr=0.1"),
    ("fedavg --set lr: 0.1", "write --set lr=0.1"),
    ("fedavg -s lr = 0.1", "write -s lr=0.1"),
    ("fedavg --set lr= --rounds 2", "write --set lr=VALUE"),
    ("fedavg lr=0.1 clip=1", "write it as --set lr=0.1 --set clip=1"),
    ("fedavg fedsam:rho=0.1 scaffold", "for several, write steppe compare fedavg fedsam:rho=0.1 scaffold"),
    ("fedavg --seeds 3", "did you mean seed (steppe run trains once; several seeds are for steppe compare"),
    ("fedavg --track tensorbord --track wandb", "error: --track tensorbord --track wandb: track: there is no tracker"),
    ("fedavg --set track=tensorbord", "error: --set track=tensorbord: track: there is no tracker"),
])  # fmt: skip
def test_a_near_miss_says_the_right_form(steppe: Steppe, words: str, right: str) -> None:
    assert right in refused(steppe, "run", *words.split())


def test_several_algorithms_or_seeds_of_other_commands(steppe: Steppe) -> None:
    said = refused(steppe, "sweep", "fedavg", "fedsam", "--grid", "lr=1,2")
    assert "for several, write --grid algorithm=fedavg,fedsam" in said
    nothing = ("sweep", "--seed", "3", "--grid", "lr=1", "--rounds", "0")
    assert "one run each, with seed 3; for 3 runs each, write --seeds 3" in steppe(*nothing).err
    assert "one run each" not in steppe(*nothing, "--seeds", "2").err
    assert "rounds is 0, so nothing would be trained" in refused(steppe, "compare", "fedavg", "--rounds", "0")


# --- data files


def _idx(folder: Path, images: Any, labels: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 40), ("t10k", 10)):
        x, y = images[:count].astype(np.uint8), labels[:count].astype(np.uint8)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 2051, count, 28, 28) + x.tobytes())
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 2049, count) + y.tobytes())


FEW = ("-s", "data=mnist", "-s", "data_folder=data", "-s", "clients=2", "-s", "per_round=1", "--rounds", "1", *MLP)


def test_files_that_are_wrong(steppe: Steppe, tmp_path: Path) -> None:
    home = tmp_path / "data/mnist"
    home.mkdir(parents=True)
    assert "train-images-idx3-ubyte" in refused(steppe, "run", "fedavg", *FEW)  # an empty data folder

    images, labels = np.zeros((40, 28, 28)), np.arange(40) % 10
    _idx(home, images, labels)
    path = home / "train-images-idx3-ubyte"
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    assert "train-images-idx3-ubyte" in refused(steppe, "run", "fedavg", *FEW)  # truncated
    path.write_bytes(b"")
    assert "train-images-idx3-ubyte" in refused(steppe, "run", "fedavg", *FEW)
    path.unlink()
    path.with_suffix(".gz").write_bytes(gzip.compress(whole)[:-30])
    assert "train-images-idx3-ubyte.gz" in refused(steppe, "run", "fedavg", *FEW)
    path.with_suffix(".gz").unlink()

    _idx(home, images, labels + 3)
    assert "labels from 3 to 12, but with 10 classes" in refused(steppe, "run", "fedavg", *FEW)
    _idx(home, images, labels % 9)
    assert "Class 9 has no training sample" in refused(steppe, "run", "fedavg", *FEW)


def test_a_saved_partition_that_does_not_fit(steppe: Steppe, tmp_path: Path) -> None:
    assert steppe("partition", "--clients", "5", "--save", "split.json").code == 0
    few = ("run", "fedavg", *MLP, "-s", "partition=split.json", "-s", "per_round=2", "--rounds", "1")
    assert "has 5 clients, but clients is 20" in refused(steppe, *few, "-s", "clients=20")
    assert steppe(*few, "-s", "validation=0.5").code == 0  # every client gives its share
    (tmp_path / "far.json").write_text('{"clients": [[0], [5000]]}')
    told = refused(steppe, "run", "fedavg", *MLP, "-s", "partition=far.json", "-s", "clients=2", "-s", "per_round=2")
    assert "client 1 has the index 5000, but digits has 1437 training samples" in told
    content = json.loads((tmp_path / "split.json").read_text())
    content["clients"][0][0] = 7
    (tmp_path / "split.json").write_text(json.dumps(content))
    assert "does not match its own hash" in refused(steppe, *few, "-s", "clients=5")


# --- trace

GOOD: dict[str, Any] = {
    "clients": [{"A": [[2, 0], [0, 1]], "b": [1, 2], "n": 3}],
    "x0": [0, 0],
    "rounds": [[0]],
    "lr": 0.1,
}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"lrr": 1}, ["'lrr'", "did you mean 'lr'"]),
        ({"clients": [{**GOOD["clients"][0], "B": [1, 2]}]}, ["'clients.0.B'", "known: A, b, n"]),
        ({"clients": []}, ["clients"]),
        ({"clients": [{"A": [[1]], "b": [1, 2]}]}, ["client 0 needs a 2×2 matrix"]),
        ({"x0": ["a"]}, ["x0.0"]),
        ({"tensors": [1, 2]}, ["tensors [1, 2] must be positive and add up to the 2"]),
        ({"rounds": [[1]]}, ["round 0 names clients [1]"]),
        ({"rounds": [[]]}, ["round 0 names clients []"]),
        ({"steps": 0}, ["steps"]),
        ({"steps": [1, 2]}, ["steps"]),
        ({"lr": 0}, ["lr"]),
        ({"lr": float("nan")}, ["lr"]),
        ({"momentum": 1.5}, ["momentum is 1.5"]),
        ({"clip": -1}, ["clip is -1"]),
        ({"weighting": "size"}, ["weighting"]),
    ],
    ids=str,
)
def test_problem_files(steppe: Steppe, tmp_path: Path, change: dict[str, Any], told: list[str]) -> None:
    (tmp_path / "problem.json").write_text(json.dumps({**GOOD, **change}))
    sentence = refused(steppe, "trace", "fedavg", "--problem", "problem.json")
    for part in told:
        assert part in sentence


@pytest.mark.parametrize("content", ["", "[1]", "{", "3", "\xff"])
def test_problem_files_that_are_no_objects(steppe: Steppe, tmp_path: Path, content: str) -> None:
    (tmp_path / "problem.json").write_bytes(content.encode("latin1"))
    assert "problem.json is not a JSON object" in refused(steppe, "trace", "fedavg", "-p", "problem.json")


def test_what_cannot_be_traced(steppe: Steppe, tmp_path: Path) -> None:
    (tmp_path / "problem.json").write_text(json.dumps(GOOD))
    assert "no problem file lost.json" in refused(steppe, "trace", "fedavg", "-p", "lost.json")
    assert "did you mean 'fedsam'" in refused(steppe, "trace", "fedsamm", "-p", "problem.json")
    assert "which a quadratic does not have" in refused(steppe, "trace", "fedntd", "-p", "problem.json")
    assert "needs a model's" in refused(steppe, "trace", "moon", "-p", "problem.json")
    assert "belongs to the problem file" in refused(steppe, "trace", "fedavg", "-p", "problem.json", "-s", "lr=1")
    assert "'rhoo'" in refused(steppe, "trace", "fedsam", "-p", "problem.json", "-s", "rhoo=1")
    assert "is -1, but must be" in refused(steppe, "trace", "fedsam", "-p", "problem.json", "-s", "rho=-1")
    wild = {**GOOD, "lr": 1e200, "rounds": [[0]] * 4}
    (tmp_path / "wild.json").write_text(json.dumps(wild))
    assert "not finite" in refused(steppe, "trace", "fedavg", "-p", "wild.json", code=3)


def test_what_a_terminal_or_rich_would_obey_is_shown(capsys):
    """Names come from files and folders of others: codes, markup, and what rich takes for pictures."""
    terminal.show(terminal.escape("a.py:X: [red] \x1b[31m \x9b2J \x07"))
    terminal.print_table("\x1b", ["name"], [["\x1b]0;title\x07:x:"]])
    terminal.show("not escaped \x1b[31m")
    said = capsys.readouterr().out
    assert r"a.py:X: [red] \x1b[31m \x9b2J \x07" in said
    assert r"\x1b]0;title\x07:x:" in said
    assert not [c for c in said if c != "\n" and not c.isprintable()]
