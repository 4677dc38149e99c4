"""Data of one's own, in the forms in which people have them; what cannot be used is a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import steppe
from steppe.core.errors import SteppeError
from tests.api.test_inputs import Reader, text
from tests.scene import blobs, seeded

X, Y, TEST_X, TEST_Y = (t.numpy() for t in blobs())
FEW: dict[str, Any] = {"rounds": 1, "epochs": 1, "batch": 8, "workers": 0, "progress": False, "clients": 3,
                       "per_round": 2, "partition": "iid"}  # fmt: skip
NAMES = np.array(["ant", "bee", "cat"])


class Rows(Dataset[Any]):
    """Examples in any form."""

    def __init__(self, make: Any, x: Any = X, y: Any = Y) -> None:
        self.make, self.x, self.y = make, x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> Any:
        return self.make(self.x[i], self.y[i])


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([])


class Table:
    """What this library uses of a Hugging Face data set."""

    class Label:
        names = ("ant", "bee", "cat")

    def __init__(self, **columns: Any) -> None:
        self.columns_, self.column_names = columns, list(columns)
        self.features = {"label": self.Label()}

    def __len__(self) -> int:
        return len(next(iter(self.columns_.values())))

    def __getitem__(self, name: str) -> Any:
        return [v.tolist() if isinstance(v, np.ndarray) else v for v in self.columns_[name]]


def both(make: Any) -> tuple[Any, Any]:
    return Rows(make), Rows(make, TEST_X, TEST_Y)


def loader(x: Any, y: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.tensor(x), torch.tensor(y)), 16, shuffle=True)


def frame(x: Any, y: Any) -> Any:
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({f"f{i}": x[:, i] for i in range(6)} | {"y": y, "site": NAMES[y]})


SAME = {
    "tensors": lambda: blobs(),
    "lists of arrays": lambda: (list(X), list(Y), list(TEST_X), list(TEST_Y)),
    "lists of numbers": lambda: (X.tolist(), Y.tolist(), TEST_X.tolist(), TEST_Y.tolist()),
    "pairs": lambda: ((X, Y), (TEST_X, TEST_Y)),
    "dict of arrays": lambda: {"x": X, "y": Y, "test_x": TEST_X, "test_y": TEST_Y},
    "dict of splits": lambda: dict(zip(("train", "validation"), both(lambda x, y: (x, y)), strict=True)),
    "data sets": lambda: both(lambda x, y: (x, int(y))),
    "data sets of tensors": lambda: both(lambda x, y: (torch.tensor(x), torch.tensor(y))),
    "dict examples": lambda: both(lambda x, y: {"pixels": x, "label": y}),
    "lists of pairs": lambda: (list(zip(X, Y, strict=True)), list(zip(TEST_X, TEST_Y, strict=True))),
    "loaders": lambda: (loader(X, Y), loader(TEST_X, TEST_Y)),
    "loaders in an order of their own": lambda: (
        DataLoader(loader(X, Y).dataset, batch_sampler=[range(50, 90), range(50)]),
        DataLoader(loader(TEST_X, TEST_Y).dataset, 8, sampler=torch.randperm(30))),
    "rows in a tuple": lambda: (tuple(map(list, X)), Y, tuple(map(list, TEST_X)), TEST_Y),
    "text labels": lambda: (X, NAMES[Y], TEST_X, NAMES[TEST_Y].tolist()),
    "objects": lambda: (X.astype(object), Y.astype(object), TEST_X, TEST_Y),
    "column labels": lambda: (X, Y[:, None], TEST_X, TEST_Y[:, None]),
    "small types": lambda: (X, Y.astype(np.uint8), TEST_X, TEST_Y.astype(np.int16)),
    "byte order": lambda: (X.astype(">f8"), Y.astype(">i4"), TEST_X.astype(">f4"), TEST_Y),
    "backwards": lambda: (X[::-1][::-1], Y[::-1].copy()[::-1], TEST_X, TEST_Y),
    "hugging face": lambda: {"train": Table(x=X, label=Y), "test": Table(x=TEST_X, label=TEST_Y)},
    "frames": lambda: steppe.from_dataset(frame(X, Y), frame(TEST_X, TEST_Y), target="y",
                                          inputs=[f"f{i}" for i in range(6)]),
}  # fmt: skip


@pytest.mark.parametrize("form", SAME)
def test_the_same_data_in_many_forms(form: str) -> None:
    from steppe.data import as_data

    found, wanted = as_data(SAME[form]()), steppe.from_arrays(*blobs())
    for name in ("train_inputs", "train_targets", "test_inputs", "test_targets"):
        a, b = getattr(found, name), getattr(wanted, name)
        assert a.dtype == b.dtype, name
        assert torch.equal(a, b), name
    assert found.classes == 3
    if form in ("text labels", "hugging face"):
        assert found.class_names == ("ant", "bee", "cat")


def test_several_inputs_in_data_sets_and_tables() -> None:
    x, y, test_x, test_y = text()
    wanted = steppe.run("fedavg", Reader(), (x, y, test_x, test_y), **FEW).history[-1]["loss"]
    rows = [Rows(lambda i, y: {"ids": i[0], "attention_mask": i[1], "labels": y},
                 list(zip(a["ids"], a["attention_mask"], strict=True)), b)
            for a, b in ((x, y), (test_x, test_y))]  # fmt: skip
    tables = [Table(label=b.numpy(), **{k: v.numpy() for k, v in a.items()}) for a, b in ((x, y), (test_x, test_y))]
    tuples = [Rows(lambda i, y: (i[0], i[1], y), list(zip(a["ids"], a["attention_mask"], strict=True)), b)
              for a, b in ((x, y), (test_x, test_y))]  # fmt: skip
    for given in (tuple(rows), tuple(tables), tuple(tuples), tuple(DataLoader(r, 7) for r in rows)):
        assert steppe.run("fedavg", Reader(), given, **FEW).history[-1]["loss"] == pytest.approx(wanted, abs=1e-7)


def test_images_half_floats_and_masks() -> None:
    image = pytest.importorskip("PIL.Image")
    small = Rows(lambda x, y: (image.fromarray(np.full((8, 8, 3), int(y), np.uint8)), int(y)))
    data = steppe.from_dataset(small, small)
    assert (data.train_inputs.dtype, data.shape) == (torch.uint8, (3, 8, 8))  # type: ignore[union-attr]
    half = steppe.from_arrays(X.astype(np.float16), Y > 0, TEST_X.astype(np.float16), TEST_Y > 0)
    assert half.classes == 2
    assert steppe.run("fedavg", nn.Linear(6, 2), half, **FEW).history[-1]["loss"] > 0
    masks = steppe.from_arrays(X > 0, X[:, :2] > 0, TEST_X > 0, TEST_X[:, :2] > 0)
    assert masks.classes is None
    assert masks.train_inputs.dtype == masks.train_targets.dtype == torch.float32  # type: ignore[union-attr]
    assert not steppe.run("fedavg", seeded(), (X, Y, TEST_X[:0], TEST_Y[:0]), **FEW).history[-1].get("loss")


@pytest.mark.parametrize("shape", [(2, 2), (1,), (3, 1, 2)])
def test_targets_of_any_shape(shape: tuple[int, ...]) -> None:
    y = torch.randn(90, *shape)
    model = nn.Sequential(nn.Linear(6, int(np.prod(shape))), nn.Unflatten(1, shape))
    assert steppe.run("fedavg", model, (X, y, TEST_X, y[:30]), **FEW).history[-1]["mse"] > 0


def test_hugging_face_itself() -> None:
    datasets = pytest.importorskip("datasets")
    splits = datasets.DatasetDict({
        "train": datasets.Dataset.from_dict({"x": X.tolist(), "label": Y.tolist()}),
        "test": datasets.Dataset.from_dict({"x": TEST_X.tolist(), "label": TEST_Y.tolist()}),
    })  # fmt: skip
    wanted = steppe.run("fedavg", seeded(), blobs(), **FEW).history[-1]["loss"]
    columns = splits.with_format("torch")
    for given in ((splits,), (columns,), (splits["train"], splits["test"]), (columns["train"], columns["test"])):
        data = steppe.from_dataset(*given)
        assert torch.equal(data.train_inputs, torch.tensor(X))  # type: ignore[arg-type]
        assert steppe.run("fedavg", seeded(), data, **FEW).history[-1]["loss"] == pytest.approx(wanted, abs=1e-7)
    assert steppe.run("fedavg", seeded(), splits, **FEW).history[-1]["loss"] == pytest.approx(wanted, abs=1e-7)


# --- one data set per client


def test_from_clients_is_a_natural_federation() -> None:
    sizes, border = [1, 5, 30, 54], [0, 1, 6, 36, 90]
    parts = [(X[a:b], Y[a:b]) for a, b in pairwise(border)]
    tests = [(TEST_X[a:b], TEST_Y[a:b]) for a, b in ((0, 4), (4, 9), (9, 30))]
    own = [(*parts[0], *tests[0]), (TensorDataset(*map(torch.tensor, parts[1])), tests[1]), (*parts[2], *tests[2]),
           parts[3]]  # fmt: skip
    options = {k: v for k, v in FEW.items() if k not in ("clients", "partition")}
    result = steppe.run("fedavg", seeded(), steppe.from_clients(own), **options)
    assert result.experiment.federation.sizes == sizes
    assert (result.experiment.config.partition, result.experiment.config.clients) == ("natural", 4)
    right = []
    with torch.no_grad():
        for x, y in tests:  # the fourth has none
            right.append(float((result.model(torch.tensor(x)).argmax(1) == torch.tensor(y)).double().mean()))
    assert result.summary["personal"]["0"]["mean"] == pytest.approx(np.mean(right))
    named = steppe.from_clients({"north": parts[0], "south": parts[3]}, test=(TEST_X, TEST_Y))
    assert (named.client_names, named.test_groups) == (("north", "south"), None)
    tuned = steppe.run("fedavg", seeded(), steppe.from_clients(own), personal=[0, 1], validation=0.3, **options)
    assert set(tuned.summary["personal"]) == {"0", "1"}
    assert tuned.experiment.federation.sizes == [1, 3, 21, 38]
    words = steppe.from_clients([(X[:9], NAMES[Y[:9]].tolist()), (X[9:], NAMES[Y[9:]])], test=(TEST_X, NAMES[TEST_Y]))
    assert (words.classes, words.class_names) == (3, ("ant", "bee", "cat"))


def test_clients_by_a_column() -> None:
    data = steppe.from_dataset(frame(X, Y), frame(TEST_X, TEST_Y), target="y", groups="site")
    assert data.client_names == ("ant", "bee", "cat")
    assert data.shape == (6,)
    options = {k: v for k, v in FEW.items() if k not in ("clients", "partition")}
    result = steppe.run("fedavg", seeded(), data, **options)
    assert result.experiment.federation.sizes == [30, 30, 30]
    ages = [table.assign(age=range(20, 20 + len(table))) for table in (frame(X, Y), frame(TEST_X, TEST_Y))]
    one = steppe.from_dataset(*ages, target="y", inputs=["age"], groups="site")  # whole numbers, but no tokens
    assert (one.shape, one.train_inputs.dtype) == ((1,), torch.float32)  # type: ignore[union-attr]
    assert steppe.from_arrays(X, Y, TEST_X, TEST_Y, groups=NAMES[Y]).client_names == ("ant", "bee", "cat")


# --- what cannot be used

RAGGED = np.empty(90, object)
RAGGED[:] = [np.zeros(i % 3 + 1) for i in range(90)]
BAD: dict[str, tuple[Any, str]] = {
    "generator": ((v for v in (X, Y, TEST_X, TEST_Y)), "data must be a name"),
    "generator as inputs": (((v for v in X), Y, TEST_X, TEST_Y), "make a list or an array of it"),
    "iterable data set": ((Endless(), Endless()), r"IterableDataset.*list\(train\)"),
    "iterator": ((iter([(X[0], 0)]), Rows(tuple)), "can be read only once"),
    "loader of an iterable": ((DataLoader(Endless()), DataLoader(Endless())), "IterableDataset"),
    "examples that are no pair": (both(lambda x, y: x[0]), "Sample 0 of the train data set is"),
    "dict examples without a target": (both(lambda x, y: {"a": x, "b": y}), "say which one it is"),
    "different shapes": (both(lambda x, y: (x[: y + 1], y)), "pad, crop or resize"),
    "ragged": ((RAGGED, Y, TEST_X, TEST_Y), "pad, crop or resize"),
    "ragged lists": (([[1.0], [1.0, 2.0]], [0, 1], [[1.0]], [0]), "not an array of numbers"),
    "lists among numbers": ((np.array([None, *X[1:, 0]], object), Y, TEST_X, TEST_Y), "no value at sample 0"),
    "masked": ((np.ma.masked_greater(X, 1.0), Y, TEST_X, TEST_Y), "masked values, which a tensor cannot have"),
    "a label is missing": ((X, [None, *NAMES[Y[1:]]], TEST_X, NAMES[TEST_Y]), r"no value at sample 0 \(None\)"),
    "text as inputs": ((NAMES[Y], Y, NAMES[TEST_Y], TEST_Y), "into token ids"),
    "dates": ((np.arange(90).astype("datetime64[s]"), Y, TEST_X, TEST_Y), "are dates"),
    "complex": ((X.astype(complex), Y, TEST_X.astype(complex), TEST_Y), "are complex"),
    "sparse": ((torch.tensor(X).to_sparse(), Y, TEST_X, TEST_Y), "are sparse"),
    "an unknown label": ((X, NAMES[Y], TEST_X, np.full(30, "dog")), "have the label 'dog'"),
    "text and numbers": ((X, NAMES[Y], TEST_X, TEST_Y), "give both in the same form"),
    "text that is no label": ((X, [f"row {i}" for i in range(90)], TEST_X, NAMES[TEST_Y]), "label 'ant'"),
    "fractions": ((X, Y, TEST_X, TEST_Y + 0.5), "The test targets are fractions"),
    "one-hot": ((X, np.eye(3, dtype=int)[Y], TEST_X, np.eye(3, dtype=int)[TEST_Y]), "argmax"),
    "none": ((X, Y, None, None), "test inputs are None"),
    "two arrays": ((X, Y), "no test set"),
    "one data set": (TensorDataset(torch.tensor(X), torch.tensor(Y)), "no test set"),
    "other splits": ({"train": Rows(tuple), "rest": Rows(tuple)}, "train and test are needed"),
    "three arrays": ((X, Y, TEST_X), "four arrays"),
    "a number": (3, "data must be a name.* not 'int'"),
    "single numbers": ((3, 4, 5, 6), "has no length"),
    "nan": ((np.where(np.arange(540).reshape(90, 6) == 20, np.nan, X), Y, TEST_X, TEST_Y),
            r"train inputs have nan at sample 3, place \(2,\); 1 of 90"),
    "inf in the test data": ((X, Y, np.full((30, 6), np.inf), TEST_Y), "test inputs have inf at sample 0.*30 of 30"),
    "nan targets": ((X, np.full(90, np.nan), TEST_X, np.zeros(30)), "train targets have nan at sample 0"),
    "whole numbers": ((X.astype(int), Y, TEST_X.astype(int), TEST_Y), "numbers must be float32"),
    "labels as floats": ((X, Y.astype(float), TEST_X, TEST_Y.astype(float)), "if they are class labels, give integers"),
    "an empty dict": (({}, Y, {}, TEST_Y), "empty dict"),
    "bytes for tests": ((X[:, None, None], Y, np.zeros((30, 1, 1, 6), np.uint8), TEST_Y),
                        "test inputs of type uint8, but train inputs of type float32; make them equal"),
    "whole numbers for tests": ((X, Y, TEST_X.astype(int), TEST_Y), "test inputs of type int64, but train inputs of"),
    "without numbers": ((torch.tensor(X).to("meta"), Y, TEST_X, TEST_Y), "meta device and have no numbers"),
    "a loader that cannot join": ((DataLoader(Rows(lambda x, y: (x[: y + 1], y)), 7), Rows(lambda x, y: (x, y))),
                                  "train loader cannot make a batch of its samples .* a collate_fn that does"),
    "a loader that chooses": ((DataLoader(TensorDataset(torch.tensor(X), torch.tensor(Y)), 8,
                                          sampler=SubsetRandomSampler(range(9))), Rows(lambda x, y: (x, y))),
                              r"chooses its samples by a SubsetRandomSampler.*Subset\(data, indices\)"),
    "a loader that repeats": ((DataLoader(TensorDataset(torch.tensor(X), torch.tensor(Y)), 8,
                                          sampler=WeightedRandomSampler(torch.ones(90), 9)), Rows(lambda x, y: (x, y))),
                              "chooses its samples by a WeightedRandomSampler"),
    "a loader that chooses in batches": ((DataLoader(TensorDataset(torch.tensor(X), torch.tensor(Y)), batch_sampler=
                                          BatchSampler(SubsetRandomSampler(range(9)), 4, drop_last=False)),
                                          Rows(lambda x, y: (x, y))), "chooses its samples by a SubsetRandomSampler"),
    "a loader of the first samples": ((DataLoader(TensorDataset(torch.tensor(X), torch.tensor(Y)), 8,
                                                  sampler=SequentialSampler(range(9))), Rows(lambda x, y: (x, y))),
                                      "chooses its samples by a SequentialSampler"),
    "a sample that raises": (both(lambda x, y: ({}[int(y)], y)), r"Sample 0 of the train data set, .* KeyError: \d"),
    "a length that is too long": (([*zip(X, Y, strict=True)], Rows(lambda x, y: (x, y), TEST_X[:5], TEST_Y)),
                                  "Sample 5 of the test data set, which has the length 30, cannot be read: IndexError"),
    "a class": ((Rows, Rows), r"is the class Rows: give an instance, Rows\(…\)"),
    "a name too few": (both(lambda x, y: {"a": x, "b": x, "label": y} if y else {"a": x, "label": y}),
                       r"has as inputs .*; give all samples the same"),
    "an input too many": (both(lambda x, y: (x, *[x] * int(y), y)), r"has as inputs .*; give all samples the same"),
    "nested tensors": ((torch.nested.nested_tensor([torch.ones(2)] * 90), Y, TEST_X, TEST_Y), "are nested"),
    "8-bit floats": ((torch.tensor(X).to(torch.float8_e4m3fn), Y, TEST_X, TEST_Y), "are 8-bit floats"),
    "uint8 without images": ((X.astype(np.uint8), Y, TEST_X.astype(np.uint8), TEST_Y), "use int64 or float32"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("kind", BAD)
def test_data_that_cannot_be_used_are_a_sentence(kind: str) -> None:
    data, message = BAD[kind]
    with pytest.raises(SteppeError, match=message):
        steppe.run("fedavg", seeded(), data, **FEW)


CLIENTS: list[tuple[Any, str]] = [
    ([], "needs a list"),
    (3, "needs a list"),
    ([(X, Y)], "No client has test samples"),
    ([(X, Y, TEST_X, TEST_Y), (X[:, :2], Y, TEST_X, TEST_Y)], r"Client 1's train inputs have the shape \(2,\)"),
    ([(X, Y, TEST_X, TEST_Y), (X[:0], Y[:0], TEST_X, TEST_Y)], "at least one sample"),
    ([(X, Y, TEST_X, TEST_Y), (X, Y[:3], TEST_X, TEST_Y)], "90 inputs and 3 targets"),
    ([(X, Y, TEST_X, TEST_Y), (X.astype(int), Y, TEST_X, TEST_Y)], "are of type torch.int64"),
    ([(X, Y, TEST_X, TEST_Y), (X, Y[:, None].repeat(2, 1), TEST_X, TEST_Y)], "targets have the shape"),
    ([(X, torch.tensor(Y), TEST_X, TEST_Y), (X, torch.tensor(Y)[:, None], TEST_X, TEST_Y)], "targets have the shape"),
    ([(X, Y, TEST_X, TEST_Y), (X, Y.astype(float), TEST_X, TEST_Y)], "Client 1's train targets are floats, but"),
    ([(X, Y, TEST_X, TEST_Y), None], "The client 1 data set is None, but must be map-style"),
    ([(X, torch.tensor(1), TEST_X, TEST_Y)], "train targets of client 0 are a single number"),
    ([(X[:, None, None], Y, np.zeros((30, 1, 1, 6), np.uint8), TEST_Y)], "test inputs of type uint8"),
    ([(X, NAMES[Y], TEST_X, NAMES[TEST_Y]), (X, Y)], "Client 0's train targets are text, but client 1's train targets"),
    ({"train": (X, Y), "test": (TEST_X, TEST_Y)}, r"splits train and test of one data set: use steppe\.from_dataset"),
]


@pytest.mark.parametrize(("clients", "message"), CLIENTS)
def test_clients_that_do_not_fit_are_a_sentence(clients: Any, message: str) -> None:
    with pytest.raises(SteppeError, match=message):
        steppe.from_clients(clients)
    with pytest.raises(SteppeError, match=r"Client 0 is given as a steppe\.Data"):
        steppe.from_clients([steppe.from_arrays(X, Y, TEST_X, TEST_Y)])


def test_a_table_has_the_columns_of_the_one_before_in_any_order() -> None:
    """Columns are features by their place, so those of another table must not be taken as they come."""
    pandas = pytest.importorskip("pandas")
    train = pandas.DataFrame({"a": [1.0, 1.0], "b": [2.0, 2.0], "label": [0, 1]})
    other, renamed = train[["b", "label", "a"]], train.rename(columns={"b": "c"})
    wanted = torch.tensor([[1.0, 2.0], [1.0, 2.0]])
    assert torch.equal(steppe.from_dataset(train, other).test_inputs, wanted)  # type: ignore[arg-type]
    data = steppe.from_clients([train, other, (other, other)], test=other)
    assert torch.equal(data.train_inputs, wanted.repeat(3, 1))  # type: ignore[arg-type]
    assert torch.equal(data.test_inputs, wanted)  # type: ignore[arg-type]
    named = {"a": X[:2], "b": X[:2, :3], "y": Y[:2]}
    assert list(steppe.from_dataset(named, dict(reversed(named.items()))).test_inputs) == ["a", "b"]
    other_names = "data have the inputs a, c, but the data before have a, b: give the same"
    with pytest.raises(SteppeError, match=other_names):
        steppe.from_dataset(train, renamed)
    with pytest.raises(SteppeError, match=other_names):
        steppe.from_clients([train, renamed], test=train)
    arrays = train[["a", "b"]], train["label"], other[["b", "a"]], train["label"]
    with pytest.raises(SteppeError, match="test inputs have the columns b, a, but the train inputs have a, b; give"):
        steppe.from_arrays(*arrays)
    with pytest.raises(SteppeError, match="train inputs of client 1 have the columns b, a, but"):
        steppe.from_clients([arrays[:2], arrays[2:]], test=arrays[:2])
    numbered = steppe.from_dataset(*[train.set_axis([0, 1, 2], axis=1)] * 2, target=2)  # type: ignore[arg-type]
    assert torch.equal(numbered.train_inputs, wanted)  # type: ignore[arg-type]


def test_a_client_may_be_a_dict_of_splits_or_a_few_examples_and_its_test_set_may_be_empty() -> None:
    """As they are after a split of what a tiny client has."""
    sets = {"train": TensorDataset(torch.tensor(X), torch.tensor(Y)), "test": TensorDataset(*map(torch.tensor, (X, Y)))}
    arrays = {"x": X, "y": Y, "test_x": TEST_X, "test_y": TEST_Y}
    few = [[(X[i], given(Y[i])) for i in range(n)] for n, given in ((2, int), (4, np.int64), (2, torch.tensor))]
    none = Subset(TensorDataset(torch.tensor(X), torch.tensor(Y)), [])
    empty = [(X[:3], Y[:3], TEST_X[:0], TEST_Y[:0]), ((X[:3], Y[:3]), none), ((X[:3], Y[:3]), (TEST_X[:0], TEST_Y[:0]))]
    data = steppe.from_clients([sets, arrays, *few, *empty])
    assert np.bincount(data.groups).tolist() == [90, 90, 2, 4, 2, 3, 3, 3]  # type: ignore[arg-type]
    assert np.bincount(data.test_groups).tolist() == [90, 30]  # type: ignore[arg-type]
    objects = steppe.from_clients([(X, Y), (X, Y.astype(object))], test=(TEST_X, TEST_Y))  # as a frame may have them
    assert torch.equal(objects.train_targets, torch.tensor(Y).repeat(2))
    both_ways = [({"a": X, "b": X + 1}, Y), ({"b": X + 1, "a": X}, Y)]
    arranged: Any = steppe.from_clients(both_ways, test=({"b": TEST_X + 1, "a": TEST_X}, TEST_Y))
    assert torch.equal(arranged.train_inputs["a"], torch.tensor(X).repeat(2, 1))
    assert torch.equal(arranged.test_inputs["a"], torch.tensor(TEST_X))


def test_columns_of_samples_that_are_dicts() -> None:
    """As of a table: chosen by name, in any order, with a client per sample."""

    def rows(first: str, second: str) -> Rows:
        return Rows(lambda x, y: {first: x, second: -x, "site": str(NAMES[y]), "label": y})

    for wrap in (lambda r: r, lambda r: DataLoader(r, 7)):
        data: Any = steppe.from_dataset(wrap(rows("a", "b")), wrap(rows("b", "a")), groups="site")
        assert data.client_names == ("ant", "bee", "cat")
        assert sorted(data.train_inputs) == ["a", "b"]
        assert torch.equal(data.test_inputs["b"], torch.tensor(X))
        one: Any = steppe.from_dataset(wrap(rows("a", "b")), wrap(rows("a", "b")), inputs=["a"])
        assert torch.equal(one.train_inputs, torch.tensor(X))
    with pytest.raises(SteppeError, match="There is no column 'place' in sample 0 of the train data set"):
        steppe.from_dataset(rows("a", "b"), rows("a", "b"), groups="place")
    with pytest.raises(SteppeError, match="has no names, so inputs and groups can choose nothing from it"):
        steppe.from_dataset(*both(lambda x, y: (x, y)), groups="site")
    numbered: Any = steppe.from_dataset(*both(lambda x, y: {0: x, 1: -x, 2: y}), target=2)
    assert torch.equal(numbered.train_inputs["1"], -torch.tensor(X))
    nested: Any = steppe.from_dataset(*both(lambda x, y: (x, {"m": (x, x)}, y)))
    assert torch.equal(nested.train_inputs[1]["m"][0], torch.tensor(X))


def test_ids_and_rows_of_tables_are_compared_by_value() -> None:
    pandas = pytest.importorskip("pandas")
    train, test = frame(X, Y).assign(site=Y * 1.0), frame(TEST_X, TEST_Y).assign(site=TEST_Y)
    data = steppe.from_dataset(train, test, target="y", groups="site")  # 1.0, as tables with gaps have it, is 1
    assert data.client_names == ("0", "1", "2")
    assert data.test_groups.tolist() == TEST_Y.tolist()  # type: ignore[union-attr]
    same = steppe.from_dataset(train, test, target="y", groups=pandas.Series(Y), inputs=["f0"])
    assert same.groups.tolist() == Y.tolist()  # type: ignore[union-attr]
    assert steppe.from_arrays(X, Y, TEST_X, TEST_Y, groups=torch.tensor(Y * 0.5).requires_grad_()).groups is not None
    x, y = train.drop(columns=["y", "site"]), train["y"]
    with pytest.raises(SteppeError, match="train inputs and targets have the same index in another order"):
        steppe.from_arrays(x, y[::-1], x, y)
    with pytest.raises(SteppeError, match="train data set is empty"):
        steppe.from_dataset(train[:0], test, target="y", groups="site")
    with pytest.raises(SteppeError, match="from_clients has no argument clases; did you mean 'classes'"):
        steppe.from_clients([(X, Y)], test=(TEST_X, TEST_Y), clases=3)
    with pytest.raises(SteppeError, match="from_clients has no argument groups"):
        steppe.from_clients([(X, Y)], test=(TEST_X, TEST_Y), groups=Y)


def test_test_samples_of_unknown_clients_are_named() -> None:
    pytest.importorskip("pandas")
    train, test = frame(X, Y).assign(site=Y % 2), frame(TEST_X, TEST_Y).assign(site=TEST_Y)
    data = steppe.from_dataset(train, test, target="y", groups="site")  # nobody trains on site 2
    strangers = int((np.asarray(TEST_Y) == 2).sum())
    result = steppe.run("fedavg", seeded(), data, rounds=1, progress=False)
    assert f"{strangers} of {len(TEST_Y)} test samples are of clients without training samples" in "".join(result.notes)


def test_constants_of_images_are_used_or_refused() -> None:
    images = np.arange(9 * 6 * 7 * 4, dtype=np.uint8).reshape(
        9, 6, 7, 4
    )  # with an alpha channel, which is the last axis
    data: Any = steppe.from_arrays(images, Y[:9], images, Y[:9], mean=(0.1, 0.2, 0.3, 0.4))
    assert data.train_inputs.shape == (9, 4, 6, 7)
    assert (data.mean, len(data.std)) == ((0.1, 0.2, 0.3, 0.4), 4)
    one: Any = steppe.from_arrays(images, Y[:9], images, Y[:9], mean=(np.float32(0.5),) * 4, classes=np.int64(3))
    assert (one.mean, one.classes) == ((0.5,) * 4, 3)
    for options, message in (({"mean": (0.5,)}, "mean and std are for uint8 images"),
                             ({"mean": 0.5}, "must be a tuple with a number per channel"),
                             ({"classes": "3"}, "classes is '3', but must be a whole number"),
                             ({"tokens": 0.5}, "tokens is 0.5, but must be a whole number"),
                             ({"name": 3}, "name is 3, but must be text"),
                             ({"classes": 3, "class_names": ("a",)}, "1 class_names, but classes is 3")):  # fmt: skip
        with pytest.raises(SteppeError, match=message):
            steppe.from_arrays(X, Y, TEST_X, TEST_Y, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("loss", ["bce", "dice"])
def test_targets_that_a_loss_cannot_take_are_found_before_training(loss: str) -> None:
    """A mask of 0 and 255, as files of masks have, would train without an error."""
    images, masks = torch.rand(30, 1, 4, 4), torch.zeros(30, 4, 4, dtype=torch.int64)
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.Flatten(1, 2))
    masks[7, 2, 3] = 1
    assert steppe.run("fedavg", model, (images, masks, images, masks), loss=loss, **FEW).history[-1]["loss"] > 0
    with pytest.raises(SteppeError, match=rf"train targets have 255 at sample 7, place \(2, 3\), but {loss} needs"):
        steppe.run("fedavg", model, (images, masks * 255, images, masks), loss=loss, **FEW)
    with pytest.raises(SteppeError, match=r"train targets have 2 at sample \d+, but bce needs targets from 0 to 1"):
        steppe.run("fedavg", nn.Linear(6, 1), (X, Y, TEST_X, TEST_Y), loss="bce", **FEW)


def test_zeros_and_ones_get_a_hint() -> None:
    several = torch.stack([torch.tensor(Y) == 0, torch.tensor(Y) > 0], 1)
    notes = steppe.run("fedavg", nn.Linear(6, 2), (X, several, TEST_X, several[:30]), **FEW).notes
    assert any("the loss is mse, as for all floats: for yes-or-no labels choose loss=bce" in note for note in notes)
    asked = steppe.run("fedavg", nn.Linear(6, 2), (X, several, TEST_X, several[:30]), loss="mse", **FEW)
    assert not any("loss=bce" in note for note in asked.notes)
    two = torch.stack([torch.tensor(Y) < 2, torch.tensor(Y) > 0], 1).long()
    with pytest.raises(SteppeError, match=r"For several yes-or-no labels per sample, choose loss='bce'\."):
        steppe.run("fedavg", nn.Linear(6, 2), (X, two, TEST_X, two[:30]), **FEW)


def test_columns_that_are_not_there_are_a_sentence() -> None:
    tables = frame(X, Y), frame(TEST_X, TEST_Y)
    for options, message in (({"target": "lable"}, "no target 'lable'"), ({"inputs": ["f9"]}, "no column 'f9'"),
                             ({"groups": "place"}, "no column 'place'"), ({}, "column 'site' .*does not hold numbers"),
                             ({"inputs": "site"}, "into token ids"),
                             ({"inputs": ["f0", "y"]}, "'y' is the target of the train data, so")):  # fmt: skip
        with pytest.raises(SteppeError, match=message):
            steppe.from_dataset(*tables, **{"target": "y", **options})
    twice = tables[0][["f0", "f0", "y"]]
    with pytest.raises(SteppeError, match="train data have two columns 'f0': rename one"):
        steppe.from_dataset(twice, twice, target="y")


def test_tokens_and_labels_out_of_range_are_found_before_training() -> None:
    class Next(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.last = nn.Embedding(5, 4), nn.Linear(4, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.words(x))

    ids = torch.arange(60 * 7).reshape(60, 7) % 5
    late = ids.clone()
    late[59, 6] = 5
    hidden = ids.clone()
    hidden[50, 3] = -100
    wanted = steppe.run("fedavg", seeded(Next), (ids, hidden, ids, ids), **FEW).history[-1]["loss"]
    assert wanted > 0
    for small in (torch.int8, torch.int16, torch.int32, torch.uint16):
        short = ids.to(small)
        assert steppe.from_arrays(short, ids, short, ids).train_inputs.dtype == small  # type: ignore[union-attr]
        assert steppe.run("fedavg", seeded(Next), (short, hidden, short, ids), **FEW).history[-1]["loss"] == wanted
    with pytest.raises(SteppeError, match=r"sample 59 of the train inputs, whose values are \d to 5"):
        steppe.run("fedavg", Next(), (late, ids, ids, ids), **FEW)
    with pytest.raises(SteppeError, match=r"index out of range.*Is its table of tokens large enough\?"):
        steppe.run("fedavg", Next(), (ids + 1, ids, ids, ids), **FEW)
    with pytest.raises(SteppeError, match="sample 59 of the test inputs"):
        steppe.run("fedavg", Next(), (ids, ids, late, ids), **FEW)
    with pytest.raises(SteppeError, match=r"test targets have 5 at sample 59, place \(6,\).*outputs for 0 to 4"):
        steppe.run("fedavg", Next(), (ids, ids, ids, late), **FEW)
