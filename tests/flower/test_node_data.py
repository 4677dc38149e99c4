"""What a node's own function may return: all nodes must number classes and order columns in the same way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steppe.core.errors import SteppeError
from steppe.flower.federation_file import Sample, parse
from steppe.flower.node_data import read_data
from steppe.flower.refusals import Refusal

NAMED = {"shape": [2], "inputs": "float32", "classes": 2, "class_names": ["healthy", "ill"]}
READERS = """
import numpy as np

def frame():
    import pandas
    columns = {"pulse": [61.0, 62.0], "name": ["u", "v"], "age": [31.0, 32.0], "label": ["ill", "healthy"]}
    return pandas.DataFrame(columns)

def pair():
    return frame()[["pulse", "age"]], np.array([1, 0])

def hub():
    import datasets
    features = datasets.Features({"x": datasets.Sequence(datasets.Value("float32"), 2),
                                  "label": datasets.ClassLabel(names=["ill", "healthy"])})
    return datasets.Dataset.from_dict({"x": [[31.0, 61.0], [32.0, 62.0]], "label": [0, 1]}, features=features)

def fails():
    raise ValueError("patient 4711")
"""


def read(folder: Path, name: str, **described: Any) -> tuple[Any, Any]:
    (folder / "readers.py").write_text(READERS)
    x, y = read_data(f"{folder}/readers.py:{name}", Sample.model_validate({**NAMED, **described}), "client 0")
    return x.tolist(), y.tolist()


@pytest.mark.parametrize("name", ["frame", "pair"])
def test_columns_have_the_order_of_the_federation(name: str, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    assert read(tmp_path, name, columns=["age", "pulse"]) == ([[31, 61], [32, 62]], [1, 0])
    with pytest.raises(Refusal, match=r"list them under .data. in federation\.toml, as columns"):
        read(tmp_path, "pair")
    with pytest.raises(Refusal, match="There is no column 'weight'"):
        read(tmp_path, name, columns=["age", "weight"])


def test_classes_by_name_have_the_numbers_of_the_federation(tmp_path: Path) -> None:
    np.savez(tmp_path / "text.npz", x=np.ones((3, 2), "f4"), y=np.array(["ill", "healthy", "ill"]))
    place = str(tmp_path / "text.npz")
    assert read_data(place, Sample.model_validate(NAMED), "client 0")[1].tolist() == [1, 0, 1]
    with pytest.raises(Refusal, match="has the class 'ill', which is not among"):
        read_data(place, Sample.model_validate({**NAMED, "class_names": ["healthy", "sick"]}), "client 0")
    with pytest.raises(Refusal, match=r"has classes by name, but federation\.toml has no class_names"):
        read_data(place, Sample.model_validate({**NAMED, "class_names": None}), "client 0")


def test_a_data_set_with_class_names_of_its_own(tmp_path: Path) -> None:
    """Its labels are numbers, but not those of the federation."""
    pytest.importorskip("datasets")
    assert read(tmp_path, "hub") == ([[31, 61], [32, 62]], [1, 0])


def test_what_the_users_function_raises_names_its_line(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=r"line 19 of .*readers\.py: ValueError: patient 4711") as error:
        read(tmp_path, "fails")
    assert error.value.code == "data"
    with pytest.raises(Refusal, match="there is no file"):
        read_data(f"{tmp_path}/absent.py:x", Sample.model_validate(NAMED), "client 0")


def test_classes_are_for_one_label_per_sample() -> None:
    with pytest.raises(SteppeError, match="leave them out for sequences, images and regression"):
        parse({"data": {"shape": [5], "inputs": "int64", "classes": 9, "target_shape": [5]}})
