"""Heads: from a map of responses to one vector, and what the paper compares SORT with.

Section 3.4 puts bilinear pooling (Lin et al., 2015) and compact bilinear pooling (Gao et al.,
2016) on BigNet*. Both are second-order too, but over pairs of channels and with a price.
"""

import torch
from torch import Tensor, nn

EPS = 1e-8
"""Under every root here: keeps the slope at zero finite."""


class Average(nn.Module):
    """The mean over all positions, as at the end of a residual network.

    Example:
        >>> Average(64)(torch.ones(2, 64, 8, 8)).shape
        torch.Size([2, 64])
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.features = channels
        self.pool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x: Tensor) -> Tensor:
        """Map :math:`(N, C, H, W)` to :math:`(N, C)`."""
        pooled: Tensor = self.pool(x)
        return pooled.flatten(1)


class Bilinear(nn.Module):
    r"""The outer product of the responses with themselves, averaged over positions.

    .. math:: z = \frac{1}{HW} \sum_p x_p x_p^\top, \qquad y = \ell_2(\mathrm{ssqrt}(z))

    References:
        Bilinear CNN Models for Fine-grained Visual Recognition (Lin et al., 2015).

    Example:
        >>> Bilinear(16)(torch.ones(2, 16, 4, 4)).shape
        torch.Size([2, 256])
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.features = channels * channels

    def forward(self, x: Tensor) -> Tensor:
        """Map :math:`(N, C, H, W)` to :math:`(N, C^2)`."""
        with _full_precision(x):
            x = _at_least_float32(x).flatten(2)
            z = x @ x.mT / x.shape[2]
            return normalised(z.flatten(1))


class CompactBilinear(nn.Module):
    r"""Bilinear pooling through two count sketches and their convolution.

    .. math:: z = \frac{1}{HW} \sum_p \mathcal{F}^{-1}\!\left(\mathcal{F}(S_1 x_p) \odot
              \mathcal{F}(S_2 x_p)\right), \qquad y = \ell_2(\mathrm{ssqrt}(z))

    The sketches are buffers, drawn from `seed` alone: they travel with the weights and leave the
    global random state as it was.

    References:
        Compact Bilinear Pooling (Gao et al., 2016).

    Arguments:
        channels: The responses' channels.
        features: The length of the sketch.
        seed: Of the sketches.

    Example:
        >>> CompactBilinear(16, features=64)(torch.ones(2, 16, 4, 4)).shape
        torch.Size([2, 64])
    """

    bucket: Tensor
    sign: Tensor

    def __init__(self, channels: int, features: int = 8192, seed: int = 0) -> None:
        super().__init__()
        self.features = features
        draw = torch.Generator().manual_seed(seed)
        self.register_buffer("bucket", torch.randint(features, (2, channels), generator=draw))
        sign = torch.randint(2, (2, channels), generator=draw) * 2.0 - 1.0
        self.register_buffer("sign", sign)

    def forward(self, x: Tensor) -> Tensor:
        """Map :math:`(N, C, H, W)` to :math:`(N, features)`."""
        with _full_precision(x):
            x = _at_least_float32(x).flatten(2).mT
            product = self._spectrum(x, 0) * self._spectrum(x, 1)
            # The inverse transform is linear, so one of the mean does for all positions.
            z = torch.fft.irfft(product.mean(1), n=self.features)
            return normalised(z)

    def _spectrum(self, x: Tensor, which: int) -> Tensor:
        sketch = x.new_zeros(*x.shape[:-1], self.features)
        sketch = sketch.index_add(-1, self.bucket[which], x * self.sign[which].to(x.dtype))
        spectrum: Tensor = torch.fft.rfft(sketch, n=self.features)
        return spectrum


HEADS: dict[str, type[Average] | type[Bilinear] | type[CompactBilinear]] = {
    "average": Average,
    "bilinear": Bilinear,
    "compact": CompactBilinear,
}


def normalised(z: Tensor) -> Tensor:
    """Signed square root, then length one: what follows both kinds of bilinear pooling.

    The root is ``z / sqrt(|z| + eps)``, which is smooth through zero.
    """
    z = z * torch.rsqrt(z.abs() + EPS)
    return z * torch.rsqrt(z.square().sum(-1, keepdim=True) + EPS)


def _full_precision(x: Tensor) -> torch.autocast:
    device = "cpu" if x.device.type == "meta" else x.device.type  # meta knows no autocast
    return torch.autocast(device, enabled=False)


def _at_least_float32(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
