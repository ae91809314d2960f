"""What is done to training images, as functions of a whole batch.

Everything random is drawn for a step's global batch from (seed, step) alone. Every kind of number
is drawn whether it is used or not: switching one part off leaves the others as they were.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sortnet.errors import UsageError
from sortnet.lab.data.seeds import generator

JITTER = 0.4
"""How far brightness, contrast and saturation go: factors of 1 - 0.4 to 1 + 0.4.

The paper is silent. The value is fb.resnet.torch's; that the order of the three is drawn for a
batch, not for an image, is ours.
"""

BRIGHTNESS, CONTRAST = 0, 1  # and saturation, 2: the rows of Draws.factors

GREY = (0.299, 0.587, 0.114)
"""What each colour adds to the brightness (ITU-R BT.601)."""


@dataclass(frozen=True)
class Augmentation:
    """What is done to training images; as it stands, nothing.

    Attributes:
        pad: By how many pixels small images are padded before a crop of their size; 0: no crop.
            The padding is the data set's mean colour, zero once it is normalised (to half a grey
            level), which is what padding a normalised image with zeros gives.
        reflect: Whether the padding mirrors the image instead.
        flip: Whether images are mirrored half of the time, where the data's classes allow it.
        jitter: Whether brightness, contrast and saturation are changed.
        area: Large images: a random crop of this share of the area, of aspect 3/4 to 4/3, is
            resized to the network's size. Without it the short side is resized to 256/224 of
            that size and a square is cropped anywhere. (``pad`` is for small images only.)
    """

    pad: int = 0
    reflect: bool = False
    flip: bool = False
    jitter: bool = False
    area: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.pad < 0:
            raise UsageError(f"images cannot be padded by {self.pad} pixels; 0 is none")
        if self.area is not None and not 0 < self.area[0] <= self.area[1] <= 1:
            raise UsageError(f"shares of an image's area go from above 0 to 1, not {self.area}")


class Draws(NamedTuple):
    """The random numbers of a batch of n images."""

    corner: Tensor
    """Where crops begin, (n, 2), uniform in 0..1."""
    flip: Tensor
    """Which images are mirrored, (n,)."""
    factors: Tensor
    """Of brightness, contrast and saturation, (3, n)."""
    order: tuple[int, ...]
    """In which the three are applied."""

    def part(self, share: slice) -> "Draws":
        """Those of some of the images."""
        return Draws(self.corner[share], self.flip[share], self.factors[:, share], self.order)


def draw(count: int, seed: int, step: int) -> Draws:
    """The random numbers of a step's global batch of so many images."""
    source = generator("augment", seed, step)
    corner = torch.rand(count, 2, generator=source)
    flip = torch.rand(count, generator=source) < 0.5
    factors = 1 + JITTER * (2 * torch.rand(3, count, generator=source) - 1)
    order = torch.randperm(3, generator=source).tolist()
    return Draws(corner, flip, factors, tuple(order))


def moved(images: Tensor, draws: Draws, augmentation: Augmentation, fill: Tensor) -> Tensor:
    """Pad, crop and mirror images as drawn, where they are.

    Arguments:
        images: Shape (n, 3, s, s); they may be changed.
        draws: Of these images, on the CPU.
        augmentation: Its ``pad``, ``reflect`` and ``flip`` are followed.
        fill: The padding, (3,), in the images' unit.
    """
    span = 2 * augmentation.pad + 1
    corners = (draws.corner * span).to(torch.int64).clamp_(max=span - 1)
    if images.device.type != "cpu":
        return _gathered(images, corners, draws.flip, augmentation, fill)
    if augmentation.flip:
        pixels, chosen = images.numpy(), draws.flip.numpy()
        pixels[chosen] = pixels[chosen, :, :, ::-1]
    if not augmentation.pad:
        return images
    return _cropped(_padded(images, augmentation, fill), corners, images.shape[-1])


def _gathered(
    images: Tensor, corners: Tensor, flip: Tensor, augmentation: Augmentation, fill: Tensor
) -> Tensor:
    """Do the same by one gather: bit for bit as on the CPU, without a loop over images."""
    count, side, device = len(images), images.shape[-1], images.device
    corners, flip = corners.to(device, non_blocking=True), flip.to(device, non_blocking=True)
    rows = cols = torch.arange(side, device=device).expand(count, side)
    padded = images
    if augmentation.pad:
        padded = _padded(images, augmentation, fill)
        rows, cols = rows + corners[:, :1], cols + corners[:, 1:]
    if augmentation.flip:  # mirrored before the crop: column c of the padding is width - 1 - c
        cols = torch.where(flip[:, None], padded.shape[-1] - 1 - cols, cols)
    image = torch.arange(count, device=device)[:, None, None, None]
    colour = torch.arange(3, device=device)[None, :, None, None]
    return padded[image, colour, rows[:, None, :, None], cols[:, None, None, :]]


def _padded(images: Tensor, augmentation: Augmentation, fill: Tensor) -> Tensor:
    pad, side = augmentation.pad, images.shape[-1]
    if augmentation.reflect:
        if pad >= side:
            raise UsageError(f"images of {side} pixels cannot be mirrored by a pad of {pad}")
        spots = torch.arange(-pad, side + pad, device=images.device).abs()
        spots = torch.where(spots < side, spots, 2 * (side - 1) - spots)
        return images.index_select(2, spots).index_select(3, spots)
    padded = images.new_empty(*images.shape[:2], side + 2 * pad, side + 2 * pad)
    padded[:] = fill.to(images.device, images.dtype).view(3, 1, 1)
    padded[:, :, pad : pad + side, pad : pad + side] = images
    return padded


def _cropped(padded: Tensor, corners: Tensor, side: int) -> Tensor:
    # numpy's slices, in a loop, take a third of the time of torch's advanced indexing.
    source = padded.numpy()
    out = np.empty((*source.shape[:2], side, side), source.dtype)
    for image, padding, (top, left) in zip(out, source, corners.tolist(), strict=True):
        image[...] = padding[:, top : top + side, left : left + side]
    return torch.from_numpy(out)


def jittered(images: Tensor, draws: Draws) -> Tensor:
    """Change brightness, contrast and saturation, in the drawn order.

    Each mixes the image with another one: with black, with its mean grey, with its own grey
    version g. Whatever the order, the result is a*x + b*g + c with numbers a, b, c of each image,
    which are worked out first: that takes one pass over the pixels instead of three.

    Arguments:
        images: Floating point, (n, 3, h, w); they are changed.
        draws: Of these images.
    """
    red, green, blue = images.unbind(1)
    grey = red * GREY[0] + green * GREY[1] + blue * GREY[2]
    mean = grey.mean((1, 2))
    a, b, c = torch.ones_like(mean), torch.zeros_like(mean), torch.zeros_like(mean)
    factors = draws.factors.to(images.device)
    for kind in draws.order:
        f = factors[kind]
        if kind == BRIGHTNESS:
            a, b, c = f * a, f * b, f * c
        elif kind == CONTRAST:
            a, b, c = f * a, f * b, c + (1 - f) * (a + b) * mean
        else:
            a, b = f * a, f * b + (1 - f) * (a + b)
    shade = grey * b.view(-1, 1, 1) + c.view(-1, 1, 1)
    return images.mul_(a.view(-1, 1, 1, 1)).add_(shade[:, None])
