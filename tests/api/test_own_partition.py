"""Partitions of one's own: indices, a client id per sample, a file, and rules that divide by any array."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Subset, TensorDataset

import steppe
from steppe.core.errors import SteppeError
from steppe.data.divide import divide
from steppe.runs.folder import RunFolder
from tests.scene import blobs, seeded

FEW: dict[str, Any] = {"rounds": 1, "epochs": 1, "batch": 8, "workers": 0, "progress": False}
IDS = np.array(["south", "north", "west"])[np.arange(90) % 3]


def held(result: Any) -> list[list[int]]:
    return [c.tolist() for c in result.experiment.federation.partition.clients]


def test_indices_groups_and_files_are_one_partition(tmp_path: Path) -> None:
    lists = [np.flatnonzero(name == IDS).tolist() for name in ("north", "south", "west")]
    (tmp_path / "a.json").write_text(json.dumps(lists))
    (tmp_path / "b.json").write_text(json.dumps({"clients": lists}))
    (tmp_path / "c.json").write_text(json.dumps({"groups": IDS.tolist()}))
    steppe.run("fedavg", seeded(), blobs(), partition=lists, out=tmp_path / "run", **FEW)
    ways: list[dict[str, Any]] = [{"partition": lists}, {"groups": IDS}, {"groups": torch.arange(90) % 3 * 7 + 2},
                                  {"partition": [torch.tensor(one) for one in lists]},
                                  {"partition": torch.tensor(lists)},
                                  {"partition": [name == IDS for name in ("north", "south", "west")]}]  # fmt: skip
    (tmp_path / "b.json").write_text(json.dumps({"clients": lists}), "utf-8-sig")  # as some editors write it
    files = [tmp_path / "a.json", str(tmp_path / "b.json"), tmp_path / "c.json", tmp_path / "run" / "partition.json"]
    ways += [{"partition": path, "clients": 3, "per_round": 3} for path in files]
    found = [steppe.run("fedavg", seeded(), blobs(), **way, **FEW) for way in ways]
    same = [sorted(held(r)) == sorted(lists) for r in found]
    assert all(same), same
    assert {r.experiment.config.clients for r in found} == {3}
    assert found[0].experiment.config.partition == "own:indices"
    assert found[1].experiment.config.partition == "own:groups"
    assert found[0].history[-1]["loss"] == found[5].history[-1]["loss"]


def test_an_own_partition_is_resumed_and_analysed(tmp_path: Path) -> None:
    sizes = [1, 2, 30, 57]
    lists = np.split(np.arange(90), np.cumsum(sizes)[:-1])
    given: dict[str, Any] = {"partition": lists, "validation": 0.2, "per_round": 2, **FEW}
    first = steppe.run("fedavg", seeded(), blobs(), out=tmp_path / "run", **given)
    again = steppe.run("fedavg", seeded(), blobs(), out=tmp_path / "run", resume=True, **{**given, "rounds": 2})
    assert len(again.history) == 2
    folder = RunFolder(tmp_path / "run")
    assert folder.about["partition"]["rule"] == "own indices"
    assert folder.read("config.json")["partition"] == "own:indices"
    with pytest.raises(SteppeError, match="partition"):  # another one
        steppe.run("fedavg", seeded(), blobs(), out=tmp_path / "run", resume=True,
                   **{**given, "partition": lists[::-1], "rounds": 3})  # fmt: skip
    measured = steppe.analyze(tmp_path / "run", "loss", model=seeded(), data=steppe.from_arrays(*blobs()))
    assert measured["loss"]["n"] == first.experiment.federation.samples
    path = tmp_path / "run" / "partition.json"
    from_file = steppe.run("fedavg", seeded(), blobs(), **{**given, "partition": path, "clients": 4})
    content = json.loads(path.read_text())
    del content["hash"]  # as one does to edit it; the indices still refer to what validation left
    (tmp_path / "edited.json").write_text(json.dumps(content))
    edited = steppe.run("fedavg", seeded(), blobs(), **{**given, "partition": tmp_path / "edited.json", "clients": 4})
    assert edited.history[-1]["loss"] == from_file.history[-1]["loss"]
    for changes, message in (
        ({"samples": 50}, "for 50 samples and sets 18 of them aside, but arrays has 90"),
        ({"held_out": [90], "samples": 89}, "held_out has the index 90"),
    ):
        (tmp_path / "edited.json").write_text(json.dumps({**content, **changes}))
        with pytest.raises(SteppeError, match=message):
            steppe.run("fedavg", seeded(), blobs(), **{**given, "partition": tmp_path / "edited.json", "clients": 4})
    assert held(from_file) == held(first)
    assert from_file.history[-1]["loss"] == first.history[-1]["loss"]
    steppe.run("fedavg", seeded(), blobs(), out=tmp_path / "groups", groups=IDS, **FEW)
    assert RunFolder(tmp_path / "groups").about["partition"]["rule"] == "own groups"
    steppe.write_report(tmp_path / "groups", tmp_path / "groups.html")
    page = (tmp_path / "groups.html").read_text()
    assert "own groups: 3 clients hold" in page
    assert "own indices" not in page


def test_validation_takes_its_share_of_every_client() -> None:
    sizes = [1, 1, 2, 36, 50]
    lists = [c.tolist() for c in np.split(np.arange(90), np.cumsum(sizes)[:-1])]
    data, split = divide(steppe.from_arrays(*blobs()), "", 5, validation=0.25, given=_given(lists))
    assert data.validation_targets is not None
    assert split.sizes.sum() + len(data.validation_targets) == 90
    assert split.sizes.tolist()[:2] == [1, 1]
    assert 36 - split.sizes[3] == 9
    assert 50 - split.sizes[4] in (12, 13)
    x, y = blobs()[:2]
    for own, before in zip(split.clients, lists, strict=True):  # each keeps some of its own samples and gets no other
        rows = {tuple(row.tolist()) for row in x[before]}
        assert {tuple(row.tolist()) for row in data.train_inputs[own]} <= rows
    assert split.held_out is not None
    assert torch.equal(y[split.held_out], data.validation_targets)


def test_the_partition_of_a_run_with_validation_is_the_same_at_every_seed(tmp_path: Path) -> None:
    """Its indices refer to what validation left, so the file says which samples that were."""
    few: dict[str, Any] = {"clients": 4, "per_round": 2, "rounds": 1, "max_steps": 1, "workers": 0, "progress": False}
    steppe.run("fedavg", seeded(), blobs(), validation=0.2, out=tmp_path / "r", **few)
    file = str(tmp_path / "r" / "partition.json")
    runs = [steppe.run("fedavg", seeded(), blobs(), validation=0.2, partition=file, seed=seed, **few)
            for seed in range(2)]  # fmt: skip
    one, other = (run.experiment.federation for run in runs)
    assert torch.equal(one.data.validation_inputs, other.data.validation_inputs)
    assert one.data.hash == steppe.load(tmp_path / "r").about["data"]["hash"]
    for share in (0.0, 0.5):
        with pytest.raises(
            SteppeError, match=r"holds out 18 of 90 samples, but validation is .*: set validation to 0\.2"
        ):
            steppe.run("fedavg", seeded(), blobs(), validation=share, partition=file, **few)


def _given(lists: Any) -> steppe.Partition:
    from steppe.data.given_partition import split_indices

    return split_indices(lists)


def test_rules_divide_by_any_array(tmp_path: Path) -> None:
    x, y, test_x, _ = blobs()
    many = (x, torch.stack([y == 0, y > 0], 1).float(), test_x, torch.zeros(30, 2))  # multi-label
    topics = np.array(["sea", "land"])[np.arange(90) // 45]
    rule: dict[str, Any] = {"partition": "sharding(1)", "clients": 2, "per_round": 2}
    result = steppe.run("fedavg", nn.Linear(6, 2), many, by=topics, out=tmp_path / "run", **rule, **FEW)
    assert [len({topics[i] for i in own}) for own in held(result)] == [1, 1]
    assert RunFolder(tmp_path / "run").about["partition"]["by"] == "own values"
    assert steppe.analyze(tmp_path / "run", "loss", model=nn.Linear(6, 2), data=many)["loss"]["n"] == 90
    numbers = x[:, 0].numpy()
    result = steppe.run("fedavg", nn.Linear(6, 2), many, by=numbers, **{**rule, "clients": 10}, **FEW)
    spans = [np.ptp(numbers[own]) for own in held(result)]  # a bin each
    assert np.median(spans) < np.ptp(numbers) / 4
    rows = steppe.run("fedavg", nn.Linear(6, 2), many, by=many[1], **rule, **FEW)  # the targets themselves
    assert [len({int(y[i] == 0) for i in own}) for own in held(rows)] == [1, 1]
    named = steppe.run("fedavg", "mlp", "digits", by=np.arange(1437) // 719, **rule, **{**FEW, "max_steps": 1})
    assert named.experiment.config.data == "digits"


BAD: list[tuple[dict[str, Any], str]] = [
    ({"partition": [[0, 1], [90]]}, "client 1 has the index 90, but arrays has 90 training samples, 0 to 89"),
    ({"partition": [[0, 1], [-1]]}, "client 1 has the index -1"),
    ({"partition": [[0, 1], []]}, "client 1 has no samples"),
    ({"partition": [[0, 1], [2, 2]]}, "client 1 has sample 2 twice"),
    ({"partition": [[0, 1], [1, 2]]}, "sample 1 belongs to the clients 0 and 1"),
    ({"partition": [[0.5], [1]]}, "must be a list of whole numbers"),
    ({"partition": [0, 1, 2]}, "must be a list of whole numbers"),
    ({"partition": [[0, "a"], [1]]}, "must be a list of whole numbers"),
    ({"partition": []}, "list with the indices of each client"),
    ({"partition": 3}, "list with the indices of each client"),
    ({"partition": [[0], [1]], "clients": 3, "per_round": 1}, "has 2 clients, but clients is 3"),
    ({"partition": [np.arange(90) < 20, np.arange(50) > 30]}, "masks have different lengths, 50 and 90"),
    ({"partition": [np.arange(50) < 20, np.arange(50) > 30]}, "for 50 samples, but arrays has 90"),
    ({"partition": [Subset(TensorDataset(torch.arange(90)), [1, 2]), [3]]}, r"client 0 is a Subset: .*subset\.indices"),
    ({"partition": "absent.json"}, "there is no file 'absent.json'"),
    ({"groups": IDS[:50]}, "one client id per training sample: 90"),
    ({"groups": [None, *IDS[1:].tolist()]}, "no client id for sample 0"),
    ({"groups": np.where(np.arange(90) == 4, np.nan, 1.0)}, "no client id for sample 4"),
    ({"groups": IDS, "partition": "iid"}, "leave out partition"),
    ({"groups": IDS, "by": IDS}, "leave out by"),
    ({"by": IDS[:5], "partition": "lda(1)"}, "one value per training sample: 90"),
    ({"by": np.full(90, np.inf), "partition": "lda(1)"}, "not finite"),
    ({"by": IDS, "partition": [[0], [1]]}, "by needs a rule"),
    ({"by": IDS, "partition": "iid"}, "iid does not read it: leave it out"),
    ({"by": np.full((90, 2), 0.5), "partition": "lda(1)"}, "or whole numbers"),
    ({"partition": "natural"}, "needs data that say whose each sample is"),
    ({"partition": [[0], [1]], "validation": 0.5}, "every client keeps at least one"),
]


@pytest.mark.parametrize(("given", "message"), BAD, ids=[str(i) for i in range(len(BAD))])
def test_a_partition_that_cannot_be_is_a_sentence(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SteppeError, match=message):
        steppe.run("fedavg", seeded(), blobs(), **given, **FEW)


@pytest.mark.parametrize("text", ["{", "3", '{"clients": 3}', "{}", '[[0], ["a"]]', '{"groups": [[1], 2]}',
                                  '{"groups": []}', "[]", '{"clients": [[0], [1]], "groups": ["a", "b"]}'])  # fmt: skip
def test_a_file_that_is_no_partition_is_a_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "split.json").write_text(text)
    with pytest.raises(SteppeError, match=r"split\.json"):
        steppe.run("fedavg", seeded(), blobs(), partition=tmp_path / "split.json", **FEW)
