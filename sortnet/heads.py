"""Heads: pool feature maps to one vector.

Section 3.4 compares SORT with bilinear pooling (Lin et al., 2015) and compact bilinear pooling
(Gao et al., 2016) on BigNet*. Both are second-order as well, but over pairs of channels, and
costly.
"""

import torch
from torch import Tensor, nn

EPS = 1e-8
"""Added under every root here to keep the derivative at zero finite."""


class Average(nn.Module):
    """Average pooling over all positions, as in residual networks.

    Example:
        >>> Average(64)(torch.ones(2, 64, 8, 8)).shape
        torch.Size([2, 64])
    """

    def __init__(self, in_channels: int) -> None:
        super().__init__()
        self.out_features = in_channels
        self.pool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x: Tensor) -> Tensor:
        """Map :math:`(N, C, H, W)` to :math:`(N, C)`."""
        if x.stride(1) == 1 and not torch.compiler.is_compiling():  # channels_last
            # Equal to pooling, whose backward is not channels_last: layers before it would read
            # two layouts at once, at a tenth of the speed.
            return x.permute(0, 2, 3, 1).flatten(1, 2).mean(1)
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

    def __init__(self, in_channels: int) -> None:
        super().__init__()
        self.out_features = in_channels * in_channels

    def forward(self, x: Tensor) -> Tensor:
        """Map :math:`(N, C, H, W)` to :math:`(N, C^2)`."""
        with _full_precision(x):
            x = _at_least_float32(x).flatten(2)
            z = x @ x.mT / x.shape[2]
            return normalize(z.flatten(1))


class CompactBilinear(nn.Module):
    r"""Bilinear pooling through two count sketches and their convolution.

    .. math:: z = \frac{1}{HW} \sum_p \mathcal{F}^{-1}\!\left(\mathcal{F}(S_1 x_p) \odot
              \mathcal{F}(S_2 x_p)\right), \qquad y = \ell_2(\mathrm{ssqrt}(z))

    The sketches are buffers drawn from `seed`: they are saved with the weights, and the global
    random state is not used.

    References:
        Compact Bilinear Pooling (Gao et al., 2016).

    Arguments:
        in_channels: Input channels.
        out_features: Length of the sketch.
        seed: Seed of the sketches.

    Example:
        >>> CompactBilinear(16, out_features=64)(torch.ones(2, 16, 4, 4)).shape
        torch.Size([2, 64])
    """

    bucket: Tensor
    sign: Tensor

    def __init__(self, in_channels: int, out_features: int = 8192, seed: int = 0) -> None:
        super().__init__()
        self.out_features = out_features
        draw = torch.Generator().manual_seed(seed)
        self.register_buffer(
            "bucket", torch.randint(out_features, (2, in_channels), generator=draw)
        )
        sign = torch.randint(2, (2, in_channels), generator=draw) * 2.0 - 1.0
        self.register_buffer("sign", sign)

    def forward(self, x: Tensor) -> Tensor:
        """Map :math:`(N, C, H, W)` to :math:`(N, out_features)`."""
        with _full_precision(x):
            x = _at_least_float32(x).flatten(2).mT
            product = self._spectrum(x, 0) * self._spectrum(x, 1)
            # The inverse transform is linear: one transform of the mean is enough.
            z = torch.fft.irfft(product.mean(1), n=self.out_features)
            return normalize(z)

    def _spectrum(self, x: Tensor, which: int) -> Tensor:
        sketch = x.new_zeros(*x.shape[:-1], self.out_features)
        sketch = sketch.index_add(-1, self.bucket[which], x * self.sign[which].to(x.dtype))
        spectrum: Tensor = torch.fft.rfft(sketch, n=self.out_features)
        return spectrum


HEADS: dict[str, type[Average] | type[Bilinear] | type[CompactBilinear]] = {
    "average": Average,
    "bilinear": Bilinear,
    "compact": CompactBilinear,
}


def normalize(z: Tensor) -> Tensor:
    """Apply the signed square root and l2 normalization, as both kinds of bilinear pooling do.

    The root is ``z / sqrt(|z| + eps)``, which is smooth through zero.
    """
    z = z * torch.rsqrt(z.abs() + EPS)
    return z * torch.rsqrt(z.square().sum(-1, keepdim=True) + EPS)


def _full_precision(x: Tensor) -> torch.autocast:
    device = "cpu" if x.device.type == "meta" else x.device.type  # meta has no autocast
    return torch.autocast(device, enabled=False)


def _at_least_float32(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
