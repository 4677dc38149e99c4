"""Random crops, flips and cutouts of a batch, computed on its device, and normalisation.

All random decisions are a function of a key, and image i of a batch uses its own six numbers, whatever the size of the
batch. A batch of clients, a padded batch and a single client therefore give the same images, bit by bit. Crop and flip
are one gather: each output pixel computes its source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from steppe.core import keyed
from steppe.core.errors import SteppeError, quote, suggest_name

NARROW = (torch.int8, torch.int16, torch.uint16, torch.uint32, torch.uint64)
_DRAWS = 6  # per image: crop row, crop column, flip, cutout row, cutout column, crop or not


def normalise(
    inputs: Tensor, mean: Sequence[float] | Tensor, std: Sequence[float] | Tensor, dtype: torch.dtype
) -> Tensor:
    """Convert uint8 images (…, c, h, w) to (v/255 − mean)/std; other inputs only change their precision.

    Whole numbers of types that no layer takes as tokens become int64 here and not earlier, so that the data stay small.
    The computation is in float32 or better. mean and std may be tensors on the device; if empty, the result is v/255.
    """
    if inputs.dtype != torch.uint8:
        return inputs.to(dtype) if inputs.is_floating_point() else inputs.long() if inputs.dtype in NARROW else inputs
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    images = inputs.to(exact) / 255
    if len(mean):
        images = (images - _spread_channels(mean, images)) / _spread_channels(std, images)
    return images.to(dtype)


def _spread_channels(values: Sequence[float] | Tensor, like: Tensor) -> Tensor:
    if not isinstance(values, Tensor):
        # Filled on the device: a copy from the host would synchronise, and cannot be captured.
        values = torch.stack([torch.full((), v, dtype=like.dtype, device=like.device) for v in values])
    return values.to(like.dtype)[:, None, None]


@dataclass(frozen=True)
class Augmentation:
    """Augmentation of training images, in this order: crop, flip, normalise, cutout.

    crop              pixels of padding on each side before a crop of the original size; 0: no crop
    pad_mode          "zero": black; "reflect": mirrored; "zero_after": zero after normalisation (mean colour)
    crop_probability  probability that an image is cropped at all
    flip              left-right with probability 1/2
    cutout            side of one square that is set to zero after normalisation, clipped at the border
    per_batch         one decision per batch instead of one per image
    """

    crop: int = 0
    pad_mode: Literal["zero", "reflect", "zero_after"] = "zero"
    crop_probability: float = 1.0
    flip: bool = False
    cutout: int = 0
    per_batch: bool = False

    def __post_init__(self) -> None:
        if self.pad_mode not in ("zero", "reflect", "zero_after"):
            modes = suggest_name(self.pad_mode, ["zero", "reflect", "zero_after"])
            raise SteppeError(f"The padding {quote(self.pad_mode)} is unknown{modes}")
        if self.crop < 0 or self.cutout < 0 or not 0 <= self.crop_probability <= 1:
            raise SteppeError("crop and cutout must not be negative, and crop_probability must be from 0 to 1.")

    def __call__(
        self,
        inputs: Tensor,
        key: Tensor,
        mean: Sequence[float] | Tensor,
        std: Sequence[float] | Tensor,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Augment inputs (*lead, B, c, h, w) with key (*lead); return floats of the same shape."""
        if not (self.crop or self.flip or self.cutout):
            return normalise(inputs, mean, std, dtype)
        if inputs.dtype != torch.uint8:
            raise SteppeError("Augmentation needs uint8 images; for other inputs use augmentation 'none'.")
        height, width = inputs.shape[-2:]
        if self.pad_mode == "reflect" and self.crop >= min(height, width):
            raise SteppeError(f"Reflection by {self.crop} needs images larger than {self.crop} pixels.")
        batch = inputs.shape[-4]
        draws = keyed.uniform(key.to(inputs.device), _DRAWS * (1 if self.per_batch else batch))
        draws = draws.reshape(*key.shape, -1, _DRAWS)  # (*lead, B or 1, 6)
        row, column = torch.arange(height, device=inputs.device), torch.arange(width, device=inputs.device)
        images, outside = self._move(inputs, draws, row, column)
        images = normalise(images, mean, std, dtype)
        if self.crop and self.pad_mode == "zero_after":
            images = images.masked_fill(outside, 0)
        if self.cutout:
            hole = _mark_near(draws[..., 3, None], row, self.cutout)[..., :, None]
            hole = hole & _mark_near(draws[..., 4, None], column, self.cutout)[..., None, :]
            images = images.masked_fill(hole.unsqueeze(-3), 0)
        return images

    def _move(self, inputs: Tensor, draws: Tensor, row: Tensor, column: Tensor) -> tuple[Tensor, Tensor]:
        """Return cropped and flipped pixels, and a mask of those outside the image."""
        height, width = len(row), len(column)
        if self.crop:
            offset = (draws[..., 0:2] * (2 * self.crop + 1)).long() - self.crop  # −crop … crop
            offset = offset * (draws[..., 5, None] < self.crop_probability)
        else:
            offset = torch.zeros_like(draws[..., 0:2], dtype=torch.int64)
        if self.flip:
            column = torch.where(draws[..., 2, None] < 0.5, width - 1 - column, column)
        y, x = row + offset[..., 0, None], column + offset[..., 1, None]  # (*lead, B or 1, h), (…, w)
        outside = ((y < 0) | (y >= height))[..., :, None] | ((x < 0) | (x >= width))[..., None, :]
        outside = outside.unsqueeze(-3)  # the same for every channel
        if self.pad_mode == "reflect":
            y, x = (height - 1) - (height - 1 - y.abs()).abs(), (width - 1) - (width - 1 - x.abs()).abs()
        else:
            y, x = y.clamp(0, height - 1), x.clamp(0, width - 1)
        source = (y[..., :, None] * width + x[..., None, :]).flatten(-2).unsqueeze(-2)  # (…, 1, h·w)
        pixels = inputs.flatten(-2)
        images = torch.gather(pixels, -1, source.expand(pixels.shape)).view(inputs.shape)
        if self.crop and self.pad_mode == "zero":
            images = images.masked_fill(outside, 0)
        return images, outside


def _mark_near(draw: Tensor, positions: Tensor, side: int) -> Tensor:
    """Return which positions lie in [c − side/2, c + side/2), with the centre c uniform over the positions."""
    centre = (draw * len(positions)).long()
    return (positions >= centre - side // 2) & (positions < centre + side // 2)


# The training transforms of the published recipes; use "none" for data that are not images.
AUGMENTATIONS = {
    "none": Augmentation(),
    "mnist": Augmentation(crop=4, flip=True, cutout=16),
    "cifar-fedsol": Augmentation(crop=4, flip=True, cutout=16),
    "cifar-fedsmoo": Augmentation(crop=4, pad_mode="zero_after", crop_probability=0.5, flip=True),
    "flsam": Augmentation(crop=4, pad_mode="zero_after", flip=True, per_batch=True),
    "svhn": Augmentation(crop=4, flip=True),
    "cinic10": Augmentation(crop=4, pad_mode="reflect", flip=True),
    "med": Augmentation(flip=True),
}


def find_augmentation(name: str) -> Augmentation:
    """Return the augmentation of this name."""
    if name not in AUGMENTATIONS:
        raise SteppeError(f"The augmentation {quote(name)} is unknown{suggest_name(name, AUGMENTATIONS)}")
    return AUGMENTATIONS[name]
