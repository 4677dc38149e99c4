"""Augmentation: the same for a batch of clients as for one, and each transform by its definition."""

import pytest
import torch

from steppe.core import keyed
from steppe.core.errors import SteppeError
from steppe.data import AUGMENTATIONS, Augmentation, find_augmentation, normalise

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
NONE = ((), ())


def images(*lead, channels=3, size=12):
    n = torch.Size((*lead, channels, size, size)).numel()
    return (keyed.bits(keyed.key(9), n) % 255 + 1).to(torch.uint8).view(*lead, channels, size, size)  # no 0


def locate(out, image):
    """Every (top, left, flipped) whose zero-padded crop of a one-channel image equals `out`."""
    padded = torch.nn.functional.pad(image, (4, 4, 4, 4))
    size = image.shape[-1]
    found = []
    for top in range(9):
        for left in range(9):
            window = padded[top : top + size, left : left + size]
            found += [(top, left, f) for f in (0, 1) if torch.equal(out, window.flip(-1) if f else window)]
    return found


@pytest.mark.parametrize("name", AUGMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_batched_clients_equal_one_by_one(name, dtype):
    x, keys = images(4, 7), keyed.key(1, torch.arange(4))
    together = AUGMENTATIONS[name](x, keys, MEAN, STD, dtype)
    alone = torch.stack([AUGMENTATIONS[name](x[i], keys[i], MEAN, STD, dtype) for i in range(4)])
    assert together.dtype == dtype
    assert torch.equal(together, alone)


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_a_padded_batch_gives_the_same_images(name):
    x, k = images(7), keyed.key(1, 2)
    whole, part = AUGMENTATIONS[name](x, k, MEAN, STD), AUGMENTATIONS[name](x[:3], k, MEAN, STD)
    assert torch.equal(whole[:3], part)


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_under_vmap(name):
    x, keys = images(4, 7), keyed.key(1, torch.arange(4))
    mapped = torch.func.vmap(lambda a, k: AUGMENTATIONS[name](a, k, MEAN, STD))(x, keys)
    assert torch.equal(mapped, AUGMENTATIONS[name](x, keys, MEAN, STD))


def test_crop_and_flip_cover_the_range():
    x = images(1, channels=1).expand(600, -1, -1, -1)
    out = (Augmentation(crop=4, flip=True)(x, keyed.key(3), *NONE) * 255).round().to(torch.uint8)
    places = [locate(image[0], x[0, 0]) for image in out]
    assert all(len(found) == 1 for found in places)
    top, left, flipped = zip(*[found[0] for found in places], strict=True)
    assert set(top) == set(left) == set(range(9))
    assert 240 < sum(flipped) < 360
    assert min(top.count(t) for t in range(9)) > 35  # expected 67


def test_reflection():
    x = images(800, channels=1)
    out = Augmentation(crop=4, pad_mode="reflect")(x, keyed.key(3), *NONE)
    padded = torch.nn.functional.pad(x.float() / 255, (4, 4, 4, 4), mode="reflect")
    windows = padded.unfold(2, 12, 1).unfold(3, 12, 1)  # (n, 1, 9, 9, 12, 12)
    equal = (windows == out[:, :, None, None]).all(-1).all(-1)
    assert (equal.sum((1, 2, 3)) >= 1).all()
    assert equal.any(0).all()  # every offset occurs


def test_zero_before_and_after_normalisation():
    x = images(50)
    black = (0 - torch.tensor(MEAN)) / torch.tensor(STD)
    before = Augmentation(crop=4)(x, keyed.key(0), MEAN, STD)
    after = Augmentation(crop=4, pad_mode="zero_after")(x, keyed.key(0), MEAN, STD)
    outside = (before == black[:, None, None]).all(1, keepdim=True).expand_as(before)
    assert outside.any()
    assert (after[outside] == 0).all()
    assert torch.equal(after[~outside], before[~outside])


def test_crop_probability():
    x = images(400)
    out = Augmentation(crop=4, pad_mode="zero_after", crop_probability=0.5)(x, keyed.key(0), MEAN, STD)
    same = (out == normalise(x, MEAN, STD, torch.float32)).flatten(1).all(1).sum()
    assert 160 < same < 245  # half, and one crop in 81 that does not move


def test_one_decision_for_a_batch():
    x = images(1, channels=1).expand(9, -1, -1, -1)
    flsam = AUGMENTATIONS["flsam"]
    outs = [flsam(x, keyed.key(0, step), *NONE) for step in range(12)]
    assert all(torch.equal(out, out[:1].expand_as(out)) for out in outs)
    assert len({tuple(out[0].flatten().tolist()) for out in outs}) > 6


def test_cutout_box():
    x = images(500, size=32)
    out = Augmentation(cutout=16)(x, keyed.key(0), MEAN, STD)
    hole = (out == 0).all(1)
    kept = ~hole[:, None].expand_as(out)
    assert torch.equal(out[kept], normalise(x, MEAN, STD, torch.float32)[kept])
    rows, columns = hole.any(2), hole.any(1)
    assert torch.equal(hole, rows[:, :, None] & columns[:, None, :])  # one rectangle
    sides = torch.cat([rows.sum(1), columns.sum(1)])
    assert (int(sides.min()), int(sides.max())) == (8, 16)  # a centre at the border leaves half
    assert hole[:, 0, 0].any()
    assert hole[:, -1, -1].any()


def test_cutout_centre_is_the_pixel_after_the_middle():
    """[y − 8, y + 8): a centre in row 0 blanks rows 0..7, and one in row 31 blanks rows 23..31."""
    hole = (Augmentation(cutout=16)(images(2000, size=32), keyed.key(0), MEAN, STD) == 0).all(1).any(2)
    first, last = hole.long().argmax(1), 31 - hole.flip(1).long().argmax(1)
    assert (int(last.min()), int(first.max())) == (7, 23)


def test_normalise():
    x = images(2)
    expected = (x.double() / 255 - torch.tensor(MEAN)[:, None, None].double()) / torch.tensor(STD).double()[
        :, None, None
    ]
    torch.testing.assert_close(normalise(x, MEAN, STD, torch.float32).double(), expected, atol=1e-6, rtol=1e-6)
    tensors = (torch.tensor(MEAN), torch.tensor(STD))
    assert torch.equal(normalise(x, *tensors, torch.float32), normalise(x, MEAN, STD, torch.float32))
    floats = torch.randn(3, 5)
    assert torch.equal(normalise(floats, (), (), torch.float32), floats)
    assert torch.equal(AUGMENTATIONS["none"](floats, keyed.key(0), (), ()), floats)


def test_bad_input():
    with pytest.raises(SteppeError, match="use augmentation 'none'"):
        AUGMENTATIONS["med"](torch.randn(2, 3, 8, 8), keyed.key(0), MEAN, STD)
    with pytest.raises(SteppeError, match="did you mean 'flsam'"):
        find_augmentation("flsamm")
    with pytest.raises(SteppeError, match="padding 'mirror' is unknown"):
        Augmentation(crop=4, pad_mode="mirror")
    with pytest.raises(SteppeError, match="larger than 4 pixels"):
        AUGMENTATIONS["cinic10"](images(2, size=4), keyed.key(0), MEAN, STD)
    with pytest.raises(SteppeError, match="must not be negative"):
        Augmentation(crop=-1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_cuda_equals_cpu_without_waiting(name):
    x, keys = images(4, 7), keyed.key(1, torch.arange(4))
    there, keys_there = x.cuda(), keys.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        out = AUGMENTATIONS[name](there, keys_there, MEAN, STD)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(out.cpu(), AUGMENTATIONS[name](x, keys, MEAN, STD), atol=1e-6, rtol=1e-6)
