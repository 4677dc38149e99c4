"""Nothing of a node's data is in what it sends."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from steppe.data import load
from tests.flower.memory import MemoryGrid, launch, node_folders, settings_of

RUN = {"algorithm": "scaffold", "per_round": 3, "rounds": 2, "dtype": "float32"}


def traces(sent: list[bytes], configs) -> list[str]:
    """Samples or labels of any node that are found among the bytes: raw, as floats of any usual scale, or in part."""
    everything = b"".join(sent)
    data = load("digits")
    mean, std = np.float32(data.mean[0]), np.float32(data.std[0])
    found = []
    for config in configs.values():
        with np.load(config["data"]) as file:
            x, y = file["x"], file["y"]
        floats = x.astype("f4")
        scales = {"raw": x, "floats": floats, "unit": floats / 255, "normalised": (floats / 255 - mean) / std,
                  "doubles": x.astype("f8")}  # fmt: skip
        for kind, values in scales.items():
            for sample in values.reshape(len(values), -1):
                row = sample[16:32]  # in the middle of the picture, where there is something to see
                if np.unique(row).size > 3 and row.tobytes() in everything:
                    found.append(f"{kind} sample of client {config['client']}")
        for kind in ("i8", "i4", "i2", "u1", "f4"):
            for begin in range(0, len(y) - 16, 16):
                if (
                    np.unique(y[begin : begin + 16]).size > 3
                    and y[begin : begin + 16].astype(kind).tobytes() in everything
                ):
                    found.append(f"labels of client {config['client']} as {kind}")
    return found


@pytest.mark.parametrize("algorithm", ["scaffold", "fedsol", pytest.param("fedscar", marks=pytest.mark.slow), "moon"])
def test_no_sample_and_no_label_leaves(algorithm, tmp_path):
    _, grid, _ = launch(tmp_path, {**RUN, "algorithm": algorithm})
    assert sum(map(len, grid.sent_up)) > 100_000
    assert traces(grid.sent_up, grid.configs) == []


@pytest.mark.parametrize("leak", ["raw", "normalised", "labels"])
def test_a_leak_would_be_seen(leak, tmp_path):
    """The same search, over a node that does send data."""

    def spoil(message, node):
        if "arrays" not in message.content:
            return message
        with np.load(grid.configs[node]["data"]) as file:
            x, y = file["x"][40:41], file["y"]
        data = load("digits")
        mean, std = np.float32(data.mean[0]), np.float32(data.std[0])
        secret = {"raw": x, "normalised": (x.astype("f4") / 255 - mean) / std, "labels": y}[leak]
        message.content["arrays"] = ArrayRecord({**message.content["arrays"], "up/extra/x": Array(secret)})
        return message

    _, config = settings_of(RUN)
    grid = MemoryGrid(node_folders(tmp_path / "nodes", config))
    grid.spoil = spoil
    with pytest.raises(Exception, match="not those of the algorithm"):  # the server refuses it as well
        launch(tmp_path, RUN, grid=grid)
    assert traces(grid.sent_up, grid.configs)


def test_what_is_sent_is_what_the_parts_declare(tmp_path):
    """By name and by size: the update, the parts' uploads, eight small facts, and nothing else."""
    seen = []

    def look(message, node):
        content = message.content
        seen.append((set(content), set(content.config_records["facts"]),
                     set(content.array_records.get("arrays", {}))))  # fmt: skip
        return message

    result, _, _ = launch(tmp_path, RUN, look)
    asked = ({"facts"}, {"federation", "client", "samples", "steppe", "torch"}, set())
    facts = {"federation", "client", "round", "fingerprint", "samples", "loss", "drift", "seconds"}
    trained = ({"facts", "arrays"}, facts, {"update", "up/control_variates/dc"})  # fmt: skip
    assert all(s in (asked, trained) for s in seen), seen
    for record in result.history:
        assert record["nodes"]["bytes_up"] < result.experiment.cost.bytes_up + 1000
        assert record["nodes"]["bytes_down"] < result.experiment.cost.bytes_down * 1.5 + 4000  # the first model, once
