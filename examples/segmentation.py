"""Segment images: a small U-Net learns, pixel by pixel, which shape a client's pictures show."""

import torch
from torch import Tensor, nn

import steppe

SIZE = 16


def draw(pictures: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return noisy pictures (n, 1, 16, 16) of a disc or a square, and the class of every pixel: 0, 1 or 2."""
    g = torch.Generator().manual_seed(seed)
    kind = torch.randint(1, 3, (pictures, 1, 1), generator=g)
    centre = torch.randint(5, SIZE - 5, (pictures, 2, 1, 1), generator=g)
    row, column = (torch.arange(SIZE).view(1, -1, 1) - centre[:, 0]).abs(), (torch.arange(SIZE) - centre[:, 1]).abs()
    inside = torch.where(kind == 1, row**2 + column**2 <= 16, torch.maximum(row, column) <= 3)
    pixels = kind * inside
    bright = torch.where(pixels == 1, 1.0, torch.where(pixels == 2, 0.5, 0.0))
    return (bright + 0.15 * torch.randn(pictures, SIZE, SIZE, generator=g))[:, None], pixels


def block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU())


class UNet(nn.Module):
    """A U-Net with one level and one skip connection. Outputs are (n, classes, height, width)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down, self.deep, self.up = block(1, width), block(width, 2 * width), block(3 * width, width)
        self.pool, self.grow = nn.MaxPool2d(2), nn.Upsample(scale_factor=2)
        self.out = nn.Conv2d(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.down(x)
        coarse = self.deep(self.pool(fine))
        return self.out(self.up(torch.cat([fine, self.grow(coarse)], 1)))


torch.manual_seed(0)
data = steppe.from_arrays(*draw(160, seed=1), *draw(60, seed=2))
result = steppe.run("fedsam", UNet(), data, metrics=["iou", "accuracy"], clients=8, per_round=4, rounds=8, epochs=2,
                    batch=10, optimiser="adamw", lr=0.02, progress=False)  # fmt: skip
for r in result.history[::2]:
    print(f"round {r['round']}: loss {r['loss']:.3f}, IoU {r['iou']:.3f}, pixels right {r['accuracy']:.3f}")

picture, pixels = draw(1, seed=3)
with torch.no_grad():
    found = result.model(picture).argmax(1)[0]
print("\n".join("".join(".o#"[k] for k in row) for row in found[::2].tolist()))
print(f"right: {(found == pixels[0]).float().mean():.0%} of the pixels of a new picture")
