"""Local contrast normalization, the preprocessing of SVHN (section 4.1.1 of the paper).

Both kinds start with global contrast normalization: subtract an image's mean and divide by its l2
norm. Then, with G a 7 x 7 Gaussian of deviation 2 on a zero-padded image,

    centered = x - G * x
    y = centered / max(s, mean of s, 1e-4)

in each channel, where the mean is over the positions of that channel of that image.

- ``lcn``: s = sqrt(G * centered^2), in every channel: the published method.
- ``lcn-pylearn2``: s = sqrt(G * x^2), and only the first channel is normalized: what the code
  cited by the paper did, by two oversights.
"""

from collections.abc import Callable

import torch
from torch import Tensor

WINDOW, SIGMA, FLOOR = 7, 2.0, 1e-4


def lcn(images: Tensor) -> Tensor:
    """Normalize the local contrast of every channel: uint8 (n, 3, h, w) to float32."""
    x = _contrast(images)
    centered = x - _blur(x)
    return centered / _divisor(centered)


def pylearn2(images: Tensor) -> Tensor:
    """Normalize the local contrast as pylearn2 did: uint8 (n, 3, h, w) to float32."""
    x = _contrast(images)
    first = x[:, :1]
    x[:, :1] = (first - _blur(first)) / _divisor(first)
    return x


KINDS: dict[str, Callable[[Tensor], Tensor]] = {"lcn": lcn, "lcn-pylearn2": pylearn2}


def _contrast(images: Tensor) -> Tensor:
    x = images.to(torch.float32)
    x = x - x.mean((1, 2, 3), keepdim=True)
    norm = x.square().sum((1, 2, 3), keepdim=True).sqrt()
    return x / torch.where(norm < 1e-8, 1.0, norm)  # an image of one color stays zero


def _blur(x: Tensor) -> Tensor:
    """Compute G * x; a Gaussian is separable, so it is a matrix product on either side."""
    return _band(x.shape[-2]).to(x) @ x @ _band(x.shape[-1]).to(x).T


def _band(side: int) -> Tensor:
    """Return the matrix that blurs a zero-padded line of `side` pixels."""
    distance = (torch.arange(side)[:, None] - torch.arange(side)).abs()
    reach = WINDOW // 2
    weights = torch.exp(-torch.arange(-reach, reach + 1).square() / (2 * SIGMA**2))
    band = torch.exp(-distance.square() / (2 * SIGMA**2)) / weights.sum()
    return torch.where(distance <= reach, band, 0.0)


def _divisor(x: Tensor) -> Tensor:
    s = _blur(x.square()).clamp(min=0).sqrt()
    return s.maximum(s.mean((2, 3), keepdim=True)).clamp(min=FLOOR)
