"""The blocks whose branches meet in a fusion: Figure 1 of the paper.

Every block is given its fusion as a module, and its `forward` reads as its equation. A branch says
what its last step is (`Normalized`, `Rectified`), so that `fuse_branches` can take that step
together with the fusion. Attribute names are torchvision's, so that weights can be exchanged.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sortnet.fusion import Branch, Normalized, Recomputed, Rectified, fuse_branches


class TwoBranch(nn.Module):
    r"""Two branches of two small convolutions in place of one large one (section 3.1).

    .. math:: y = F_1(x) \oplus F_2(x), \qquad F_m(x) = \sigma(\theta'_m\,\sigma(\theta_m x))

    A kernel of k x k becomes two cascaded ones of (k+1)/2 x (k+1)/2 in each branch, which keeps
    the receptive field. The padding is shared out between the two, the first taking the odd one;
    the stride is the second one's, for otherwise the receptive field would grow with it.

    Arguments:
        in_channels: Input channels.
        out_channels: Output channels, of all four convolutions.
        kernel_size: The side of the kernel that is replaced, odd.
        fusion: Takes the two branches' responses.
        stride: The stride of the convolution replaced.
        padding: Its padding.
        groups: Its groups, kept in all four convolutions.
        norm: Whether batch normalisation follows each convolution.

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
        norm: bool = False,
    ) -> None:
        super().__init__()
        if kernel_size % 2 == 0:
            raise ValueError(
                f"kernel_size is {kernel_size}, but only an odd one can be split in two"
            )
        small = (kernel_size + 1) // 2

        def branch() -> nn.Sequential:
            conv = partial(
                convolution, out_channels=out_channels, kernel_size=small, groups=groups, norm=norm
            )
            first = conv(in_channels, padding=(padding + 1) // 2)
            second = conv(out_channels, padding=padding // 2, stride=stride)
            return nn.Sequential(*first, *second[:-1])  # the last ReLU is the fusion's to take

        self.branch1 = branch()
        self.branch2 = branch()
        self.fusion = fusion

    def forward(self, x: Tensor) -> Tensor:
        """Map :math:`(N, in_channels, H, W)` to :math:`(N, out_channels, H', W')`."""
        return fuse_branches(self.fusion, Rectified(self.branch1(x)), Rectified(self.branch2(x)))


def convolution(
    in_channels: int,
    out_channels: int,
    kernel_size: int,
    *,
    stride: int = 1,
    padding: int = 0,
    groups: int = 1,
    norm: bool = False,
) -> list[nn.Module]:
    """A convolution and its activation, with batch normalisation between them if asked for."""
    conv = nn.Conv2d(
        in_channels, out_channels, kernel_size, stride, padding, groups=groups, bias=not norm
    )
    return [conv, *([nn.BatchNorm2d(out_channels)] if norm else []), nn.ReLU(inplace=True)]


class Basic(nn.Module):
    r"""The residual block of two 3 x 3 convolutions (He et al., 2016).

    .. math:: y = \sigma(x \oplus F(x)), \qquad F = BN\,\theta_2\,\sigma\,BN\,\theta_1

    Arguments:
        in_channels: Input channels.
        width: Output channels.
        stride: The first convolution's stride.
        fusion: Takes the shortcut and the residual response.
        downsample: The shortcut where shapes differ; the identity otherwise.
        relu: Whether the fused response is activated, as in the original.
        bias: Whether the convolutions have biases.
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
        relu: bool = True,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, 3, stride, 1, bias=bias)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=bias)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = downsample or nn.Identity()
        self.fusion = fusion
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        """Map :math:`(N, in_channels, H, W)` to :math:`(N, width, H / stride, W / stride)`."""
        f = F.relu(self.bn1(self.conv1(x)), inplace=True)
        f = self.conv2(f)
        shortcut = _shortcut(self.downsample, x)
        return fuse_branches(self.fusion, shortcut, Normalized(f, self.bn2), relu=self.relu)


class Bottleneck(nn.Module):
    r"""The residual block of 1 x 1, 3 x 3 and 1 x 1 convolutions (He et al., 2016).

    .. math:: y = \sigma(x \oplus F(x)),
              \qquad F = BN\,\theta_3\,\sigma\,BN\,\theta_2\,\sigma\,BN\,\theta_1

    The stride is in the 3 x 3 convolution, as in fb.resnet.torch and torchvision.

    Arguments:
        in_channels: Input channels.
        width: The inner channels; the output has four times as many.
        stride: The second convolution's stride.
        fusion: Takes the shortcut and the residual response.
        downsample: The shortcut where shapes differ; the identity otherwise.
    """

    expansion = 4

    def __init__(
        self,
        in_channels: int,
        width: int,
        stride: int,
        fusion: nn.Module,
        downsample: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, width * self.expansion, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(width * self.expansion)
        self.downsample = downsample or nn.Identity()
        self.fusion = fusion

    def forward(self, x: Tensor) -> Tensor:
        """Map :math:`(N, in_channels, H, W)` to :math:`(N, 4 width, H / stride, W / stride)`."""
        f = F.relu(self.bn1(self.conv1(x)), inplace=True)
        f = F.relu(self.bn2(self.conv2(f)), inplace=True)
        f = self.conv3(f)
        shortcut = _shortcut(self.downsample, x)
        return fuse_branches(self.fusion, shortcut, Normalized(f, self.bn3), relu=True)


def _shortcut(downsample: nn.Module, x: Tensor) -> Tensor | Branch:
    if isinstance(downsample, nn.Identity):
        return x
    if isinstance(downsample, Subsample):
        settings = downsample.out_channels, downsample.stride
        return Recomputed(downsample(x), (x,), _subsampled, settings)
    if isinstance(downsample, nn.Sequential):
        conv, norm = downsample
        return Normalized(conv(x), norm)
    response: Tensor = downsample(x)
    return response


class PreActivation(nn.Module):
    r"""The pre-activation block of wide residual networks (Zagoruyko and Komodakis, 2016).

    .. math:: y = x \oplus F(x), \qquad F = \theta_2\,\sigma\,BN\,\theta_1\,\sigma\,BN

    Where shapes differ the shortcut is a 1 x 1 convolution of the activated input, as in their
    code.

    Arguments:
        in_channels: Input channels.
        width: Output channels.
        stride: The first convolution's stride.
        fusion: Takes the shortcut and the residual response.
    """

    def __init__(self, in_channels: int, width: int, stride: int, fusion: nn.Module) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = nn.Conv2d(in_channels, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        same = in_channels == width and stride == 1
        self.downsample = None if same else nn.Conv2d(in_channels, width, 1, stride, bias=False)
        self.fusion = fusion

    def forward(self, x: Tensor) -> Tensor:
        """Map :math:`(N, in_channels, H, W)` to :math:`(N, width, H / stride, W / stride)`."""
        active = F.relu(self.bn1(x), inplace=True)
        f = F.relu(self.bn2(self.conv1(active)), inplace=True)
        return fuse_branches(self.fusion, self._shortcut(x, active), self.conv2(f))

    def _shortcut(self, x: Tensor, active: Tensor) -> Tensor | Branch:
        if self.downsample is None:
            return x
        sources = active, self.downsample.weight
        return Recomputed(self.downsample(active), sources, _pointwise, self.downsample.stride[:1])


def _pointwise(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """A 1 x 1 convolution as a matrix product."""
    x = x[:, :, ::stride, ::stride].permute(0, 2, 3, 1)
    return F.linear(x, weight.flatten(1).to(x.dtype)).permute(0, 3, 1, 2)


class Subsample(nn.Module):
    """The shortcut without parameters (He's option A): every second pixel, zeros as new channels.

    Arguments:
        out_channels: Output channels; those that the input lacks come last and are zero.
        stride: Every how many pixels one is kept.
    """

    def __init__(self, out_channels: int, stride: int) -> None:
        super().__init__()
        self.out_channels, self.stride = out_channels, stride

    def forward(self, x: Tensor) -> Tensor:
        """Map :math:`(N, C, H, W)` to :math:`(N, out_channels, H / stride, W / stride)`."""
        x = x[:, :, :: self.stride, :: self.stride]
        return F.pad(x, (0, 0, 0, 0, 0, self.out_channels - x.shape[1]))

    def extra_repr(self) -> str:
        """The arguments."""
        return f"{self.out_channels}, stride={self.stride}"


def _subsampled(x: Tensor, out_channels: int, stride: int) -> Tensor:
    """What `Subsample` does, in other operations."""
    x = x[:, :, ::stride, ::stride]
    images, channels, *sides = x.shape
    zeros = x.new_zeros(images, out_channels, *sides)
    return torch.slice_scatter(zeros, x, dim=1, end=channels)
