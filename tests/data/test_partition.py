"""Partitions: official streams, bounded work, saving."""

import json
import signal

import numpy as np
import pytest
import torch

from steppe.core.errors import SteppeError
from steppe.data.partition import Partition, make
from steppe.data.rules import PARTITIONS

CIFAR_LIKE = np.arange(50_000) % 10
TOY = np.arange(1000) % 10
EVERY_RULE = [
    "iid",
    "iid_balanced",
    "sharding(2)",
    "sharding_fedntd(2)",
    "lda(0.5)",
    "lda_fedntd(0.5)",
    "dirichlet(0.3)",
    "dirichlet_replace(0.6)",
    "dirichlet_once(0.6)",
    "pathological(3)",
    "longtail(0.5, 0.5)",
]


def test_lda_toy_vector():
    labels = np.arange(400) % 4
    split = make("lda(0.5)", labels, 5)
    assert split.seed == 19940817
    assert split.sizes.tolist() == [106, 115, 25, 78, 76]
    counts = [[9, 13, 84, 0], [55, 60, 0, 0], [1, 17, 2, 5], [1, 7, 0, 70], [34, 3, 14, 25]]
    assert split.counts(labels, 4).tolist() == counts
    first = [[98, 66, 34, 150, 334], [104, 77, 48, 165, 372], [49, 57, 13, 357, 273]]
    first += [[379, 197, 303, 255, 319], [300, 384, 279, 247, 250]]
    assert [client[:5].tolist() for client in split.clients] == first


@pytest.mark.parametrize(
    ("alpha", "low", "median", "high"),
    [
        (0.5, 134, 506.5, 1004),
        (0.1, 18, 431.5, 2670),
        pytest.param(0.05, 10, 315, 4361, marks=pytest.mark.slow),  # 3,482 trials
    ],
)
def test_lda_official_sizes(alpha, low, median, high):
    sizes = make(f"lda({alpha})", CIFAR_LIKE, 100).sizes
    assert (sizes.min(), np.median(sizes), sizes.max(), sizes.sum()) == (low, median, high, 50_000)


@pytest.mark.parametrize(
    ("rule", "histogram", "distinct"),
    [
        ("dirichlet_replace(0.6)", [0, 0, 29, 38, 2, 0, 1, 0, 21, 9], 873),
        ("dirichlet_replace(0.1)", [0, 0, 45, 49, 0, 0, 0, 0, 0, 6], 722),
        ("pathological(3)", [0, 28, 0, 0, 33, 0, 0, 39, 0, 0], 833),
    ],
)
def test_fedsmoo_split_vectors(rule, histogram, distinct):
    split = make(rule, TOY, 10)
    assert split.seed == 20
    assert split.counts(TOY, 10)[0].tolist() == histogram
    assert len(np.unique(np.concatenate(split.clients))) == distinct
    assert (split.sizes == 100).all()


def test_fedsmoo_indices_point_into_the_original_order():
    split = make("dirichlet_replace(0.6)", TOY, 10)
    place = np.argsort(np.random.RandomState(20).permutation(1000))  # original index -> permuted position
    assert place[split.clients[0][:5]].tolist() == [61, 174, 26, 470, 478]
    assert split.counts(TOY, 10).sum(0).tolist() == [105, 107, 99, 101, 92, 39, 122, 82, 192, 61]


def test_sharding_of_balanced_data_is_equal_and_complete():
    split = make("sharding(2)", CIFAR_LIKE, 100)
    assert (split.sizes == 500).all()
    assert np.array_equal(np.sort(np.concatenate(split.clients)), np.arange(50_000))
    held = (split.counts(CIFAR_LIKE, 10) > 0).sum(1)
    assert set(held) == {1, 2}


def test_sharding_draws_like_the_global_generator():
    """The stream written out with numpy's global generator, on data where nothing is left over."""
    labels = np.arange(24) % 3
    np.random.seed(5)
    pools = {c: list(np.flatnonzero(labels == c).reshape(4, 2)) for c in range(3)}
    wanted = np.repeat(np.arange(3), 4)
    np.random.shuffle(wanted)
    expected = []
    for row in wanted.reshape(6, 2):
        shards = [pools[c].pop(np.random.choice(len(pools[c]), replace=False)) for c in row]
        expected.append(np.concatenate(shards).tolist())
    assert [c.tolist() for c in make("sharding(2)", labels, 6, seed=5).clients] == expected


def test_sharding_of_pathmnist():
    """Nine unequal classes, 200 clients: unequal sizes, and a client without a shard copies its neighbour."""
    labels = np.repeat(np.arange(9), [10407, 10566, 11512, 11557, 8896, 13536, 8763, 10446, 14317])
    split = make("sharding(2)", labels, 200)
    assert (split.sizes.min(), split.sizes.max(), split.sizes.sum()) == (398, 651, 101_088)
    assert ((split.counts(labels, 9) > 0).sum(1) == 1).sum() == 20
    assert len(np.unique(np.concatenate(split.clients))) == 100_000


def test_iid_is_disjoint_and_equal():
    split = make("iid", np.arange(103), 10)
    assert (split.sizes == 10).all()
    assert len(np.unique(np.concatenate(split.clients))) == 100


def test_longtail_thins_classes_and_equals_sizes():
    split = make("longtail(0.1, 0.5)", CIFAR_LIKE, 100)
    expected = [int(5000 * 0.5 ** (c / 9)) for c in range(10)]
    assert split.counts(CIFAR_LIKE, 10).sum(0).tolist() == expected
    assert split.sizes.max() - split.sizes.min() <= 1
    assert len(np.unique(np.concatenate(split.clients))) == sum(expected)


def test_plain_dirichlet_uses_every_sample_once_and_keeps_the_minimum():
    split = make("dirichlet(0.01, 7)", TOY, 100, seed=3)
    assert np.array_equal(np.sort(np.concatenate(split.clients)), np.arange(1000))
    assert split.sizes.min() >= 7


@pytest.mark.parametrize("rule", EVERY_RULE)
def test_a_seed_fixes_the_partition(rule):
    one, two, other = (make(rule, TOY, 10, seed=s) for s in (1, 1, 2))
    assert one.hash == two.hash != other.hash
    assert len(one.hash) == 16
    assert all(client.dtype == np.int64 for client in one.clients)


@pytest.mark.parametrize("rule", EVERY_RULE)
def test_the_global_generators_are_left_alone(rule):
    np.random.seed(0)
    before = np.random.get_state()[1].copy()
    make(rule, TOY, 10)
    assert np.array_equal(before, np.random.get_state()[1])


@pytest.mark.parametrize("clients", [1, 7, 100, 1000])
@pytest.mark.parametrize(
    "rule",
    [
        "iid",
        "sharding(1)",
        "sharding(2)",
        "lda(0.00001)",
        "lda(0.01)",
        pytest.param("lda(1000)", marks=pytest.mark.slow),  # all trials that there are
        "dirichlet(0.00001)",
        "dirichlet_replace(0.00001)",
        "dirichlet_once(0.01)",
        "pathological(1)",
        "longtail(0.00001)",
        "longtail(0.01, 0.1)",
    ],
)
def test_nothing_hangs(rule, clients):
    signal.alarm(300)  # ends the process: only an endless loop takes so long
    try:
        split = make(rule, TOY, clients)
    except SteppeError as error:
        refusal = str(error)
    else:
        refusal = ""
        assert len(split.clients) == clients
        assert split.sizes.min() >= 1
        assert max(c.max() for c in split.clients) < 1000
    finally:
        signal.alarm(0)
    assert not refusal or "ask for" in refusal or "use fewer clients" in refusal


def test_lda_that_cannot_be_met_says_what_to_change():
    with pytest.raises(SteppeError, match=r"at most 0 samples, but needs 10; use fewer clients"):
        make("lda(0.001)", TOY, 50)
    with pytest.raises(SteppeError, match=r"at most 100 clients or write lda\(0.1, 5\)"):
        make("lda(0.1)", TOY, 200)
    assert make("lda(0.5, 2)", TOY, 50).sizes.min() >= 2


@pytest.mark.parametrize(
    ("rule", "clients", "message"),
    [
        ("ldaa(0.1)", 5, "did you mean 'lda'"),
        ("???", 5, "known: dirichlet"),
        ("lda", 5, "write lda"),
        ("lda(x)", 5, "write lda"),
        ("lda(0)", 5, "must be positive"),
        ("sharding(1, 2, 3)", 5, "write sharding"),
        ("sharding(1)", 5, "5 whole shards for 10 classes"),
        ("pathological(11)", 5, "at most 10 classes"),
        ("iid", 0, "0 clients is impossible"),
        ("iid", 2000, "too few for 2000 clients"),
        ("dirichlet(1, 100)", 11, r"write dirichlet\(1, 90\)"),
    ],
)
def test_bad_rules_are_refused_with_a_sentence(rule, clients, message):
    with pytest.raises(SteppeError, match=message):
        make(rule, TOY, clients)


def test_bad_labels_are_refused():
    with pytest.raises(SteppeError, match="Class 1 has no training sample"):
        make("lda(1)", np.array([0, 2] * 50), 2)
    with pytest.raises(SteppeError, match="Class 2 has no training sample"):
        make("lda(1)", np.array([0, 1] * 50), 2, classes=3)
    with pytest.raises(SteppeError, match="use iid"):
        make("lda(1)", np.linspace(0, 1, 100), 2)
    assert make("iid", torch.randn(100, 3), 2).sizes.tolist() == [50, 50]
    with pytest.raises(SteppeError, match="seed"):
        make("iid", TOY, 2, seed=-1)


def test_save_load_and_a_damaged_file(tmp_path):
    split = make("lda( 0.5 )", TOY, 10)
    split.save(tmp_path / "split.json")
    again = Partition.load(tmp_path / "split.json")
    assert (again.hash, again.rule, again.seed) == (split.hash, "lda(0.5)", 19940817)
    assert all(np.array_equal(a, b) for a, b in zip(again.clients, split.clients, strict=True))
    content = json.loads((tmp_path / "split.json").read_text())
    content["clients"][0][0] += 1
    (tmp_path / "split.json").write_text(json.dumps(content))
    with pytest.raises(SteppeError, match="its own hash"):
        Partition.load(tmp_path / "split.json")
    (tmp_path / "split.json").write_text("{")
    with pytest.raises(SteppeError, match="not a saved partition"):
        Partition.load(tmp_path / "split.json")
    with pytest.raises(SteppeError, match="does not exist"):
        Partition.load(tmp_path / "none.json")


def test_the_hash_sees_the_borders_between_clients():
    a = Partition((np.array([1, 2]), np.array([3])), "x", 0)
    b = Partition((np.array([1]), np.array([2, 3])), "x", 0)
    assert a.hash != b.hash


def test_plot(tmp_path):
    make("lda(0.5)", TOY, 10).plot(TOY, 10, tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 1000


def test_every_rule_has_a_help_line():
    for name, (_, text) in PARTITIONS.items():
        assert text.startswith(name)


def test_drawn_clients_are_many_and_cost_nothing(tmp_path):
    split = make("drawn(20, 2)", TOY, 10**7, seed=3)
    assert len(split.clients) == 10**7
    assert split.sizes[-1] == 20
    few = [split.clients[i] for i in (0, 5, 10**7 - 1)]
    for own in few:
        assert len(set(own.tolist())) == 20
        assert len(set(TOY[own].tolist())) == 2
    assert np.array_equal(split.clients[-1], few[2])
    assert not np.array_equal(few[0], few[1])
    split.save(tmp_path / "split.json")
    again = Partition.load(tmp_path / "split.json")
    assert again.hash == split.hash
    assert np.array_equal(again.clients[5], few[1])
    assert make("drawn(20, 2)", TOY, 10**7, seed=4).hash != split.hash
    # of all classes, from the first client to the last, every sample is as likely
    plain = make("drawn(50)", np.arange(200.0), 400)
    counts = np.bincount(np.concatenate(list(plain.clients)), minlength=200)
    assert abs(counts - 100).max() < 45
    assert [len(set(c.tolist())) for c in plain.clients[:3]] == [50] * 3
    for wrong in ("drawn(0.5)", "drawn(201)", "drawn(5, 3)"):
        with pytest.raises(SteppeError, match="drawn needs a whole number"):
            make(wrong, np.arange(200.0) if "," not in wrong else np.arange(200) % 2, 10)
