"""Local contrast normalisation, the preprocessing of SVHN (section 4.1.1 of the paper).

Both kinds begin with global contrast normalisation: an image's mean is subtracted, and it is
divided by its l2 norm. Then, with G a 7 x 7 Gaussian of deviation 2 on a zero-padded image,

    centred = x - G * x
    y = centred / max(s, mean of s, 1e-4)

in each channel, where the mean is over the positions of that channel of that image.

- ``lcn``: s = sqrt(G * centred^2), in every channel: the method as it was published.
- ``lcn-pylearn2``: s = sqrt(G * x^2), and only the first channel is normalised: what the code
  did that the paper's citation used, by two oversights.
"""

from collections.abc import Callable

import torch
from torch import Tensor

WINDOW, SIGMA, FLOOR = 7, 2.0, 1e-4


def lcn(images: Tensor) -> Tensor:
    """Local contrast normalisation of every channel: uint8 (n, 3, h, w) to float32."""
    x = _contrast(images)
    centred = x - _blurred(x)
    return centred / _divisor(centred)


def pylearn2(images: Tensor) -> Tensor:
    """The same as pylearn2 did it: uint8 (n, 3, h, w) to float32."""
    x = _contrast(images)
    first = x[:, :1]
    x[:, :1] = (first - _blurred(first)) / _divisor(first)
    return x


KINDS: dict[str, Callable[[Tensor], Tensor]] = {"lcn": lcn, "lcn-pylearn2": pylearn2}


def _contrast(images: Tensor) -> Tensor:
    x = images.to(torch.float32)
    x = x - x.mean((1, 2, 3), keepdim=True)
    norm = x.square().sum((1, 2, 3), keepdim=True).sqrt()
    return x / torch.where(norm < 1e-8, 1.0, norm)  # an image of one colour stays zero


def _blurred(x: Tensor) -> Tensor:
    """G * x: a Gaussian is a column times a row, so a matrix on either side of x does it."""
    return _band(x.shape[-2]).to(x) @ x @ _band(x.shape[-1]).to(x).T


def _band(side: int) -> Tensor:
    """The matrix that blurs a line of so many pixels, as if there were zeros around them."""
    distance = (torch.arange(side)[:, None] - torch.arange(side)).abs()
    reach = WINDOW // 2
    weights = torch.exp(-torch.arange(-reach, reach + 1).square() / (2 * SIGMA**2))
    band = torch.exp(-distance.square() / (2 * SIGMA**2)) / weights.sum()
    return torch.where(distance <= reach, band, 0.0)


def _divisor(x: Tensor) -> Tensor:
    s = _blurred(x.square()).clamp(min=0).sqrt()
    return s.maximum(s.mean((2, 3), keepdim=True)).clamp(min=FLOOR)
