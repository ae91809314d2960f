"""The blocks whose branches are fused: Figure 1 of the paper.

Every block takes its fusion as a module, and its `forward` reads as its equation. Where a branch
ends in batch normalization or ReLU, the block does not compute that step but passes it on:
``Normalized(u, bn)`` stands for ``bn(u)`` and ``Rectified(u, act)`` for ``act(u)``, so that
`fuse_branches` can compute it together with the fusion. Attribute names are torchvision's and
timm's, so that weights can be exchanged.
"""

from collections.abc import Callable
from functools import partial
from inspect import signature

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sortnet.fusion import (
    Branch,
    Normalized,
    Recomputed,
    Rectified,
    defer_batch_norm,
    fuse_branches,
)
from sortnet.fusion.branches import RecomputedSaved, RecomputedSettings
from sortnet.fusion.formulas import widen

Layer = Callable[..., nn.Module]
"""A class of layers, or a function that makes one."""


class TwoBranch(nn.Module):
    r"""Two branches of two small convolutions in place of one large one (section 3.1).

    .. math:: y = F_1(x) \oplus F_2(x), \qquad F_m(x) = \sigma(\theta'_m\,\sigma(\theta_m x))

    In each branch, two (k+1)/2 x (k+1)/2 convolutions replace the k x k convolution, which keeps
    the receptive field. They share the padding; the first takes the odd pixel. The second has the
    stride: in the first, it would enlarge the receptive field.

    Arguments:
        in_channels: Input channels.
        out_channels: Output channels of all four convolutions.
        kernel_size: Side of the kernel that is replaced; odd.
        fusion: Takes the responses of the two branches.
        stride: Stride of the convolution that is replaced.
        padding: Its padding.
        groups: Its groups, kept in all four convolutions.
        norm_layer: Normalization after each convolution, called with the number of channels.
        act_layer: Activation.

    Example:
        >>> import torch
        >>> from sortnet.fusion import Fusion
        >>> TwoBranch(3, 32, 5, Fusion("sort"), padding=2)(torch.zeros(1, 3, 32, 32)).shape
        torch.Size([1, 32, 32, 32])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        fusion: nn.Module,
        *,
        stride: int = 1,
        padding: int = 0,
        groups: int = 1,
        norm_layer: Layer | None = None,
        act_layer: Layer = nn.ReLU,
    ) -> None:
        super().__init__()
        if kernel_size % 2 == 0:
            raise ValueError(
                f"kernel_size is {kernel_size}, but only an odd one can be split in two"
            )
        small = (kernel_size + 1) // 2

        conv = partial(
            conv_norm_act,
            out_channels=out_channels,
            kernel_size=small,
            groups=groups,
            norm_layer=norm_layer,
            act_layer=act_layer,
        )

        def branch() -> nn.Sequential:
            first = conv(in_channels, padding=(padding + 1) // 2)
            second = conv(out_channels, padding=padding // 2, stride=stride)
            return nn.Sequential(*first, *second[:-1])  # `forward` applies the last activation

        self.branch1 = branch()
        self.branch2 = branch()
        self.act = in_place(act_layer)
        self.fusion = fusion

    def forward(self, x: Tensor) -> Tensor:
        """Map :math:`(N, in_channels, H, W)` to :math:`(N, out_channels, H', W')`."""
        f1 = Rectified(self.branch1(x), self.act)
        f2 = Rectified(self.branch2(x), self.act)
        return fuse_branches(self.fusion, f1, f2)


def conv_norm_act(
    in_channels: int,
    out_channels: int,
    kernel_size: int,
    *,
    stride: int = 1,
    padding: int = 0,
    groups: int = 1,
    norm_layer: Layer | None = None,
    act_layer: Layer = nn.ReLU,
) -> list[nn.Module]:
    """Return a convolution, its normalization if there is one, and its activation."""
    bias = norm_layer is None
    conv = nn.Conv2d(
        in_channels, out_channels, kernel_size, stride, padding, groups=groups, bias=bias
    )
    norm = [] if norm_layer is None else [norm_layer(out_channels)]
    return [conv, *norm, in_place(act_layer)]


def in_place(act_layer: Layer) -> nn.Module:
    """Return an activation that overwrites its input, if the layer has such an option."""
    able = "inplace" in signature(act_layer).parameters
    return act_layer(inplace=True) if able else act_layer()


class Basic(nn.Module):
    r"""The residual block of two 3 x 3 convolutions (He et al., 2016).

    .. math:: y = \sigma(x \oplus F(x)), \qquad F = BN\,\theta_2\,\sigma\,BN\,\theta_1

    Arguments:
        in_channels: Input channels.
        width: Output channels.
        stride: Stride of the first convolution.
        fusion: Takes the shortcut and the residual response.
        downsample: The shortcut where shapes differ; the identity by default.
        final_act: Whether the output is activated, as in the original.
        bias: Whether the convolutions have biases.
        norm_layer: Normalization, called with the number of channels.
        act_layer: Activation.
    """

    expansion = 1

    def __init__(
        self,
        in_channels: int,
        width: int,
        stride: int,
        fusion: nn.Module,
        downsample: nn.Module | None = None,
        *,
        final_act: bool = True,
        bias: bool = False,
        norm_layer: Layer = nn.BatchNorm2d,
        act_layer: Layer = nn.ReLU,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, 3, stride, 1, bias=bias)
        self.bn1 = norm_layer(width)
        self.act1 = in_place(act_layer)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=bias)
        self.bn2 = norm_layer(width)
        self.downsample = downsample or nn.Identity()
        self.fusion = fusion
        # not in place: a fusion may save its output
        self.act2 = act_layer() if final_act else None

    def forward(self, x: Tensor) -> Tensor:
        """Map :math:`(N, in_channels, H, W)` to :math:`(N, width, H / stride, W / stride)`."""
        f = self.act1(self.bn1(self.conv1(x)))
        f = Normalized(self.conv2(f), self.bn2)  # bn2(conv2(f))
        return fuse_branches(self.fusion, shortcut(self.downsample, x), f, act=self.act2)


class Bottleneck(nn.Module):
    r"""The residual block of 1 x 1, 3 x 3 and 1 x 1 convolutions (He et al., 2016).

    .. math:: y = \sigma(x \oplus F(x)),
              \qquad F = BN\,\theta_3\,\sigma\,BN\,\theta_2\,\sigma\,BN\,\theta_1

    The 3 x 3 convolution has the stride, as in fb.resnet.torch and torchvision.

    Arguments:
        in_channels: Input channels.
        width: Inner channels; the output has four times as many.
        stride: Stride of the second convolution.
        fusion: Takes the shortcut and the residual response.
        downsample: The shortcut where shapes differ; the identity by default.
        norm_layer: Normalization, called with the number of channels.
        act_layer: Activation.
    """

    expansion = 4

    def __init__(
        self,
        in_channels: int,
        width: int,
        stride: int,
        fusion: nn.Module,
        downsample: nn.Module | None = None,
        *,
        norm_layer: Layer = nn.BatchNorm2d,
        act_layer: Layer = nn.ReLU,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, 1, bias=False)
        self.bn1 = norm_layer(width)
        self.act1 = in_place(act_layer)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = norm_layer(width)
        self.act2 = in_place(act_layer)
        self.conv3 = nn.Conv2d(width, width * self.expansion, 1, bias=False)
        self.bn3 = norm_layer(width * self.expansion)
        self.downsample = downsample or nn.Identity()
        self.fusion = fusion
        self.act3 = act_layer()

    def forward(self, x: Tensor) -> Tensor:
        """Map :math:`(N, in_channels, H, W)` to :math:`(N, 4 width, H / stride, W / stride)`."""
        f = self.act1(self.bn1(self.conv1(x)))
        f = self.act2(self.bn2(self.conv2(f)))
        f = Normalized(self.conv3(f), self.bn3)  # bn3(conv3(f))
        return fuse_branches(self.fusion, shortcut(self.downsample, x), f, act=self.act3)


class PreActivation(nn.Module):
    r"""The pre-activation block of wide residual networks (Zagoruyko and Komodakis, 2016).

    .. math:: y = x \oplus F(x), \qquad F = \theta_2\,\sigma\,BN\,\theta_1\,\sigma\,BN

    Where shapes differ, the shortcut is a 1 x 1 convolution of the activated input, as in their
    code.

    Arguments:
        in_channels: Input channels.
        width: Output channels.
        stride: Stride of the first convolution.
        fusion: Takes the shortcut and the residual response.
        norm_layer: Normalization, called with the number of channels.
        act_layer: Activation.
    """

    def __init__(
        self,
        in_channels: int,
        width: int,
        stride: int,
        fusion: nn.Module,
        *,
        norm_layer: Layer = nn.BatchNorm2d,
        act_layer: Layer = nn.ReLU,
    ) -> None:
        super().__init__()
        self.bn1 = norm_layer(in_channels)
        self.act1 = in_place(act_layer)
        self.conv1 = nn.Conv2d(in_channels, width, 3, stride, 1, bias=False)
        self.bn2 = norm_layer(width)
        self.act2 = in_place(act_layer)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        same = in_channels == width and stride == 1
        self.downsample = None if same else nn.Conv2d(in_channels, width, 1, stride, bias=False)
        self.fusion = fusion

    def forward(self, x: Tensor) -> Tensor:
        """Map :math:`(N, in_channels, H, W)` to :math:`(N, width, H / stride, W / stride)`."""
        active = self.act1(self.bn1(x))
        f = self.conv2(self.act2(self.bn2(self.conv1(active))))
        shortcut = x if self.downsample is None else projection(self.downsample, active)
        return fuse_branches(self.fusion, shortcut, f)


class Subsample(nn.Module):
    """The shortcut without parameters (He's option A): every second pixel, zeros as new channels.

    Arguments:
        out_channels: Output channels; those beyond the input's are zero.
        stride: Distance between the pixels that are kept.
    """

    def __init__(self, out_channels: int, stride: int) -> None:
        super().__init__()
        self.out_channels, self.stride = out_channels, stride

    def forward(self, x: Tensor) -> Tensor:
        """Map :math:`(N, C, H, W)` to :math:`(N, out_channels, H / stride, W / stride)`."""
        # Equal to x[:, :, ::stride, ::stride], whose backward would not be channels_last: what
        # follows it in backward would read two layouts at once, at a tenth of the speed.
        x = F.avg_pool2d(x, 1, self.stride)
        return F.pad(x, (0, 0, 0, 0, 0, self.out_channels - x.shape[1]))

    def extra_repr(self) -> str:
        """Return the arguments."""
        return f"{self.out_channels}, stride={self.stride}"


def shortcut(downsample: nn.Module, x: Tensor) -> Tensor | Branch:
    """Compute ``downsample(x)``, except for a last step that the fusion can compute."""
    if isinstance(downsample, Subsample):
        return Subsampled(downsample, x)
    return defer_batch_norm(downsample, x)


class Subsampled(Recomputed):
    """The branch ``subsample(x)``, recomputed from x."""

    replaces = Subsample

    def __init__(self, subsample: Subsample, x: Tensor) -> None:
        super().__init__(subsample, x, subsample.out_channels, subsample.stride)

    @classmethod
    def recompute(cls, settings: RecomputedSettings, saved: RecomputedSaved) -> Tensor:
        """Subsample, by other operations than `Subsample`."""
        x = saved.x[:, :, :: settings.stride, :: settings.stride]
        images, channels, *sides = x.shape
        zeros = x.new_zeros(images, settings.out_channels, *sides)
        return widen(torch.slice_scatter(zeros, x, dim=1, end=channels))


def projection(conv: nn.Module, x: Tensor) -> Tensor | Branch:
    """Return the branch ``conv(x)``, which a fusion can recompute from x."""
    return Projected(conv, x) if isinstance(conv, nn.Conv2d) else conv(x)


class Projected(Recomputed):
    """The branch ``conv(x)`` of a 1 x 1 convolution, recomputed from x as a matrix product."""

    replaces = nn.Conv2d

    def __init__(self, conv: nn.Conv2d, x: Tensor) -> None:
        super().__init__(conv, x, conv.out_channels, conv.stride[0])

    def unsupported(self) -> str | None:
        """Return why the convolution is not a product with its weight, or None."""
        conv = self.module
        assert isinstance(conv, nn.Conv2d)
        pointwise = conv.kernel_size == (1, 1) and conv.padding == (0, 0) and conv.groups == 1
        if pointwise and conv.bias is None and conv.stride[0] == conv.stride[1]:
            return None
        return "the convolution of the shortcut is not 1 x 1 without a bias"

    @classmethod
    def recompute(cls, settings: RecomputedSettings, saved: RecomputedSaved) -> Tensor:
        """Multiply each pixel by the weight."""
        assert saved.weight is not None
        x = saved.x[:, :, :: settings.stride, :: settings.stride].permute(0, 2, 3, 1)
        y = F.linear(x, saved.weight.flatten(1).to(x.dtype))
        return widen(y.permute(0, 3, 1, 2))
