"""Splits, schedule and augmentation of released programs, each written a second time from what the program does."""

import random

import numpy as np
import pytest
import torch

from steppe.config import resolve
from steppe.core.errors import SteppeError
from steppe.data.augment import find_augmentation
from steppe.data.partition import make
from steppe.data.sampling import bernoulli

LABELS = np.random.RandomState(0).permutation(np.arange(50_000) % 10)
TOY = np.arange(4000) % 20


def feddyn_in_man(labels, clients, alpha, seed):
    """Who gets what, sample by sample: a client at random, a class by its prior, the class's last unused image."""
    np.random.seed(seed)
    number = int(labels.max()) + 1
    chances = np.cumsum(np.random.dirichlet([alpha] * number, clients), axis=1)
    unused = {c: list(np.where(labels == c)[0]) for c in range(number)}
    wanted = {i: len(labels) // clients for i in range(clients)}
    given = {i: [] for i in range(clients)}
    while any(wanted.values()):
        client = np.random.randint(clients)
        if not wanted[client]:
            continue
        wanted[client] -= 1
        drawn = None
        while drawn is None or not unused[drawn]:
            drawn = np.argmax(np.random.uniform() <= chances[client])
        given[client].insert(0, unused[drawn].pop())
    return given


def test_man_divides_as_feddyn_does_and_uses_no_image_twice():
    split = make("dirichlet_once(0.3)", TOY, 10)
    given = feddyn_in_man(TOY, 10, 0.3, 23217)
    assert [c.tolist() for c in split.clients] == [given[i] for i in range(10)]
    assert sorted(np.concatenate(split.clients)) == list(range(4000))
    again = make("dirichlet_once(0.3)", TOY, 10, seed=43217)
    assert [c.tolist() for c in again.clients] == list(feddyn_in_man(TOY, 10, 0.3, 43217).values())


def test_man_takes_classes_that_run_out_once_where_fedsmoo_starts_them_again():
    assert len(np.unique(np.concatenate(make("dirichlet_replace(0.3)", TOY, 10).clients))) < 4000


def test_a_client_whose_classes_are_used_up_is_told():
    with pytest.raises(SteppeError, match="have run out"):
        make("dirichlet_once(0.001)", np.arange(200) % 4, 10)


def test_mans_iid_has_as_many_of_every_class():
    labels = np.random.RandomState(1).permutation(np.arange(50_000) % 100)
    split = make("iid_balanced", labels, 100)
    assert (split.counts(labels, 100) == 5).all()
    assert len(np.unique(np.concatenate(split.clients))) == 50_000


@pytest.mark.parametrize("shards", [2, 5])
def test_fedntd_shuffles_the_classes_by_pythons_generator(shards):
    split = make(f"sharding_fedntd({shards})", LABELS, 100)
    random.seed(19940817)
    np.random.seed(19940817)
    each = shards * 10
    hands = list(range(10)) * each
    random.shuffle(hands)
    cut = {c: np.split(np.where(c == LABELS)[0], each) for c in range(10)}
    for client, hand in zip(split.clients, np.array(hands).reshape(100, shards), strict=True):
        own = [cut[c].pop(np.random.choice(len(cut[c]), replace=False)) for c in hand]
        assert client.tolist() == np.concatenate(own).tolist()


def test_fedntd_needs_a_shard_for_everybody():
    with pytest.raises(SteppeError, match="not a multiple of"):
        make("sharding_fedntd(1)", np.arange(700) % 7, 10)


@pytest.mark.parametrize(("alpha", "sizes"), [(0.1, (22, 421.5, 2349)), (0.5, (134, 506.5, 1004))])
def test_fedntd_draws_a_failed_trial_again_from_the_data_sets_order(alpha, sizes):
    split = make(f"lda_fedntd({alpha})", LABELS, 100)
    np.random.seed(19940817)
    smallest = 0
    while smallest < 10:
        own = [[] for _ in range(100)]
        for c in range(10):
            pool = np.where(c == LABELS)[0]
            np.random.shuffle(pool)
            share = np.random.dirichlet([alpha] * 100) * [len(o) < 500 for o in own]
            ends = (np.cumsum(share / share.sum()) * len(pool)).astype(int)[:-1]
            own = [o + p.tolist() for o, p in zip(own, np.split(pool, ends), strict=True)]
        smallest = min(map(len, own))
    for o in own:
        np.random.shuffle(o)
    assert [c.tolist() for c in split.clients] == own
    assert (split.sizes.min(), np.median(split.sizes), split.sizes.max()) == sizes


def test_fedntds_first_trial_is_fedsols():
    """At α = 0.5 the first trial does, so both programs hold the same clients."""
    assert make("lda_fedntd(0.5)", LABELS, 100).hash == make("lda(0.5)", LABELS, 100).hash
    assert make("lda_fedntd(0.1)", LABELS, 100).hash != make("lda(0.1)", LABELS, 100).hash


@pytest.mark.slow
def test_fedntds_split_with_the_most_trials():
    sizes = make("lda_fedntd(0.05)", np.arange(50_000) % 10, 100).sizes
    assert (sizes.min(), sizes.max(), sizes.sum()) == (12, 2731, 50_000)


def flsam(labels, clients, alpha, seed, imbalance=0.5):
    """Thin the classes by one stream; with a second of the same seed, mix, divide in tens, and cut into equal hands."""
    np.random.seed(seed)
    kept = []
    for c in range(10):
        pool = [int(i) for i in np.where(labels == c)[0]]
        np.random.shuffle(pool)
        kept += pool[: int(len(labels) / 10 * imbalance ** (c / 9))]
    second = np.random.RandomState(seed)
    second.shuffle(kept)
    row, tens = [], clients // 10
    for ten in range(tens):
        size = int(10 / clients * len(kept))
        mine = np.array(kept[ten * size :] if ten == tens - 1 else kept[ten * size : (ten + 1) * size])
        smallest = 0
        while smallest < int(0.5 * len(mine) / 10):
            hands = [[] for _ in range(10)]
            for c in range(10):
                share = second.dirichlet([alpha] * 10) * [len(hand) < len(mine) / 10 for hand in hands]
                own = mine[labels[mine] == c]
                cuts = (np.cumsum(share / share.sum()) * len(own)).astype(int)[:-1]
                hands = [hand + piece.tolist() for hand, piece in zip(hands, np.split(own, cuts), strict=True)]
            smallest = min(map(len, hands))
        row += [sample for hand in hands for sample in hand]
    short, longer = divmod(len(row), clients)
    ends = np.cumsum([short + (i < longer) for i in range(clients)])
    return [part.tolist() for part in np.split(row, ends[:-1])]


@pytest.mark.parametrize("alpha", [100, 0.1])
def test_flsam_thins_classes_and_divides_them_in_tens(alpha):
    """FedGMT's table: its IID is the same rule with a large α."""
    split = make(f"longtail({alpha})", LABELS, 100)
    assert [c.tolist() for c in split.clients] == flsam(LABELS, 100, alpha, 1)


def test_flsam_moves_and_flips_a_whole_batch_at_once():
    config = resolve({"recipe": "flsam", "data": "cifar10"})
    bright = torch.full((50, 3, 32, 32), 255, dtype=torch.uint8)
    for key in range(8):
        seen = find_augmentation(config.augmentation)(bright, torch.tensor(key), (0.5,) * 3, (0.25,) * 3)
        assert (seen == seen[:1]).all()
        assert set(seen.unique().tolist()) <= {0.0, 2.0}  # zeros are added after normalising


def test_man_draws_the_clients_of_a_round_from_its_number_alone():
    config = resolve({"recipe": "man", "data": "cifar100"})
    assert config.sampling_seed == 0
    for t in (0, 7, 499):
        np.random.seed(t)
        called = np.where(np.random.uniform(size=100) <= 0.1)[0]
        assert bernoulli(100, 0.1, t, config.sampling_seed).tolist() == called.tolist()


def test_man_crops_half_of_the_images_and_pads_after_normalising():
    """Images of one bright colour: what comes in at the border is 0, the mean colour; in half of them nothing does."""
    config = resolve({"recipe": "man", "data": "cifar100"})
    bright = torch.full((4000, 3, 32, 32), 255, dtype=torch.uint8)
    seen = find_augmentation(config.augmentation)(bright, torch.tensor(3), (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    assert set(seen.unique().tolist()) == {0.0, 2.0}
    moved = (seen == 0).flatten(1).any(1).float().mean().item()
    assert moved == pytest.approx(0.5 * (1 - 1 / 81), abs=0.03)  # one of 81 crops moves nothing
    assert (seen == 0).flatten(1).sum(1).max() == 3 * (32 * 32 - 28 * 28)
