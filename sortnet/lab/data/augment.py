"""Augmentation of training images, as functions of a whole batch.

All random numbers of a step's global batch are sampled from (seed, step). They are sampled whether
they are used or not, so that switching one augmentation off does not change the others.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sortnet.errors import UsageError
from sortnet.lab.data.seeds import generator

JITTER = 0.4
"""Range of brightness, contrast and saturation: factors from 1 - 0.4 to 1 + 0.4.

The paper does not say. The value is fb.resnet.torch's; sampling the order of the three per batch,
not per image, is ours.
"""

BRIGHTNESS, CONTRAST = 0, 1  # and saturation, 2: the rows of AugmentParams.factors

GRAY = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in the luminance (ITU-R BT.601)."""


@dataclass(frozen=True)
class Augmentation:
    """Augmentation of training images; by default none.

    Attributes:
        pad: Padding of small images before a random crop of their size; 0 for no crop. The
            padding is the dataset's mean color, so it is zero after normalization (up to half a
            gray level).
        reflect: Pad by reflection instead.
        flip: Mirror half of the images, if the dataset's classes allow it.
        jitter: Change brightness, contrast and saturation.
        area: For large images: range of the cropped fraction of the area, of aspect 3/4 to 4/3,
            resized to the network's size. Without it the short side is resized to 256/224 of that
            size and a random square is cropped. (``pad`` is for small images only.)
    """

    pad: int = 0
    reflect: bool = False
    flip: bool = False
    jitter: bool = False
    area: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.pad < 0:
            raise UsageError(f"images cannot be padded by {self.pad} pixels; 0 means no padding")
        if self.area is not None and not 0 < self.area[0] <= self.area[1] <= 1:
            raise UsageError(f"area must be two fractions above 0 and up to 1, not {self.area}")


class AugmentParams(NamedTuple):
    """The random numbers of a batch of n images."""

    corner: Tensor
    """Corner of the crops, (n, 2), uniform in 0..1."""
    flip: Tensor
    """Which images are mirrored, (n,)."""
    factors: Tensor
    """Factors of brightness, contrast and saturation, (3, n)."""
    order: tuple[int, ...]
    """Order in which the three are applied."""

    def shard(self, part: slice) -> "AugmentParams":
        """Return the random numbers of some of the images."""
        return AugmentParams(self.corner[part], self.flip[part], self.factors[:, part], self.order)


def sample_params(count: int, seed: int, step: int) -> AugmentParams:
    """Sample the random numbers of a step's global batch of `count` images."""
    source = generator("augment", seed, step)
    corner = torch.rand(count, 2, generator=source)
    flip = torch.rand(count, generator=source) < 0.5
    factors = 1 + JITTER * (2 * torch.rand(3, count, generator=source) - 1)
    order = torch.randperm(3, generator=source).tolist()
    return AugmentParams(corner, flip, factors, tuple(order))


def crop_and_flip(
    images: Tensor, params: AugmentParams, augmentation: Augmentation, fill: Tensor
) -> Tensor:
    """Pad, crop and mirror images on their device.

    Arguments:
        images: Shape (n, 3, s, s); may be changed in place.
        params: Random numbers of these images, on the CPU.
        augmentation: Its ``pad``, ``reflect`` and ``flip`` are used.
        fill: Color of the padding, (3,), in the images' range.
    """
    span = 2 * augmentation.pad + 1
    corners = (params.corner * span).to(torch.int64).clamp_(max=span - 1)
    if images.device.type != "cpu":
        return _crop_and_flip_on_device(images, corners, params.flip, augmentation, fill)
    if augmentation.flip:
        pixels, flip = images.numpy(), params.flip.numpy()
        pixels[flip] = pixels[flip, :, :, ::-1]
    if not augmentation.pad:
        return images
    return _crop(_pad(images, augmentation, fill), corners, images.shape[-1])


def _crop_and_flip_on_device(
    images: Tensor, corners: Tensor, flip: Tensor, augmentation: Augmentation, fill: Tensor
) -> Tensor:
    """Do the same by one gather, bit for bit as on the CPU, without a loop over images."""
    count, side, device = len(images), images.shape[-1], images.device
    corners, flip = corners.to(device, non_blocking=True), flip.to(device, non_blocking=True)
    rows = cols = torch.arange(side, device=device).expand(count, side)
    padded = images
    if augmentation.pad:
        padded = _pad(images, augmentation, fill)
        rows, cols = rows + corners[:, :1], cols + corners[:, 1:]
    if augmentation.flip:  # before the crop: column c of the padded image becomes width - 1 - c
        cols = torch.where(flip[:, None], padded.shape[-1] - 1 - cols, cols)
    image = torch.arange(count, device=device)[:, None, None, None]
    color = torch.arange(3, device=device)[None, :, None, None]
    return padded[image, color, rows[:, None, :, None], cols[:, None, None, :]]


def _pad(images: Tensor, augmentation: Augmentation, fill: Tensor) -> Tensor:
    pad, side = augmentation.pad, images.shape[-1]
    if augmentation.reflect:
        if pad >= side:
            raise UsageError(f"images of {side} pixels cannot be reflected by a padding of {pad}")
        index = torch.arange(-pad, side + pad, device=images.device).abs()
        index = torch.where(index < side, index, 2 * (side - 1) - index)
        return images.index_select(2, index).index_select(3, index)
    padded = images.new_empty(*images.shape[:2], side + 2 * pad, side + 2 * pad)
    padded[:] = fill.to(images.device, images.dtype).view(3, 1, 1)
    padded[:, :, pad : pad + side, pad : pad + side] = images
    return padded


def _crop(padded: Tensor, corners: Tensor, side: int) -> Tensor:
    # A loop over numpy slices takes a third of the time of torch's advanced indexing.
    source = padded.numpy()
    out = np.empty((*source.shape[:2], side, side), source.dtype)
    for image, padding, (top, left) in zip(out, source, corners.tolist(), strict=True):
        image[...] = padding[:, top : top + side, left : left + side]
    return torch.from_numpy(out)


def color_jitter(images: Tensor, params: AugmentParams) -> Tensor:
    """Change brightness, contrast and saturation, in the sampled order.

    Each blends the image with another one: black, its mean gray, its grayscale version g. In any
    order the result is a*x + b*g + c, with numbers a, b, c per image. Computing those first needs
    one pass over the pixels instead of three.

    Arguments:
        images: Floating point, (n, 3, h, w); changed in place.
        params: Random numbers of these images.
    """
    red, green, blue = images.unbind(1)
    gray = red * GRAY[0] + green * GRAY[1] + blue * GRAY[2]
    mean = gray.mean((1, 2))
    a, b, c = torch.ones_like(mean), torch.zeros_like(mean), torch.zeros_like(mean)
    factors = params.factors.to(images.device)
    for kind in params.order:
        f = factors[kind]
        if kind == BRIGHTNESS:
            a, b, c = f * a, f * b, f * c
        elif kind == CONTRAST:
            a, b, c = f * a, f * b, c + (1 - f) * (a + b) * mean
        else:
            a, b = f * a, f * b + (1 - f) * (a + b)
    shade = gray * b.view(-1, 1, 1) + c.view(-1, 1, 1)
    return images.mul_(a.view(-1, 1, 1, 1)).add_(shade[:, None])
