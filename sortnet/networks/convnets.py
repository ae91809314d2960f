"""The chain-styled networks, LeNet, BigNet and AlexNet, and their two-branch forms (LeNet*, ...).

Branched, each convolution becomes a `TwoBranch` block; everything else stays.
"""

from functools import partial
from typing import Self

import torch
from torch import nn

from sortnet.blocks import TwoBranch, convolution
from sortnet.networks import weight_init as initial
from sortnet.networks.network import Network, Plan

DEEP = 0.8
"""Factor on each branch's second convolution at the start, in networks of five blocks and more.

A product grows with the square of the responses: with xavier alone those of BigNet*-SORT are 1
behind the first block and hundreds or more behind the last, with this factor 0.7 and 0.1, and
those of AlexNet*-SORT stay at about 1. It is the same for every fusion, so that all start from
one point.
"""


def lenet(plan: Plan, *, branched: bool = False, norm: bool = False) -> Network:
    """LeNet (section 4.1.1): three 5 x 5 convolutions, Caffe's cifar10_quick.

    Caffe pools with ceil mode (32-16-8-4) and averages over the part of the window that lies
    within the image, which is what PyTorch does too.
    """
    chain = _Chain(plan, branched, norm)
    chain.conv(32, 5, padding=2).pool(nn.MaxPool2d(3, 2, ceil_mode=True))
    # Without padding there is none to count, but told not to, torch.compile takes the gradient of
    # windows that reach over the border rightly, too (torch 2.15).
    average = partial(nn.AvgPool2d, 3, 2, ceil_mode=True, count_include_pad=False)
    chain.conv(32, 5, padding=2).pool(average())
    chain.conv(64, 5, padding=2).pool(average())
    return chain.fully_connected(64)


def bignet(plan: Plan, *, branched: bool = False, norm: bool = False) -> Network:
    """BigNet (section 4.1.1): eight 3 x 3 convolutions, the cited solution to Kaggle's CIFAR-10.

    The paper says ten, but also calls the branched form 19 layers deep, which is 8 * 2 + 3.
    """
    chain = _Chain(plan, branched, norm)
    for width, depth in ((64, 2), (128, 2), (256, 4)):
        for _ in range(depth):
            chain.conv(width, 3, padding=1)
        chain.pool(nn.MaxPool2d(2), dropout=0.25)
    return chain.fully_connected(1024, 1024, dropout=0.5, gain=DEEP)


def alexnet(plan: Plan, *, branched: bool = False, norm: bool = False) -> Network:
    """AlexNet (section 4.2.1) as in Caffe's bvlc_alexnet: 227 x 227 images, groups, LRN."""
    chain = _Chain(plan, branched, norm)
    chain.conv(96, 11, stride=4).response_norm().pool(nn.MaxPool2d(3, 2))
    chain.conv(256, 5, padding=2, groups=2).response_norm().pool(nn.MaxPool2d(3, 2))
    chain.conv(384, 3, padding=1)
    chain.conv(384, 3, padding=1, groups=2)
    chain.conv(256, 3, padding=1, groups=2).pool(nn.MaxPool2d(3, 2))
    return chain.fully_connected(4096, 4096, dropout=0.5, gain=DEEP)


class _Chain:
    """Stages as they are added, numbered as Caffe does: conv1 relu1 pool1 conv2 ... fc6 fc7."""

    def __init__(self, plan: Plan, branched: bool, norm: bool) -> None:
        if not branched and plan.fusion != "sum":
            raise ValueError(
                f"a chain has no branches to fuse by {plan.fusion!r}: ask for branched=True"
            )
        self.plan, self.branched, self.norm = plan, branched, norm
        self.channels = plan.in_chans
        self.depth = 0
        self.stages: dict[str, nn.Module] = {}
        self.taps: dict[str, str] = {}

    def conv(
        self,
        out_channels: int,
        kernel_size: int,
        *,
        stride: int = 1,
        padding: int = 0,
        groups: int = 1,
    ) -> Self:
        self.depth += 1
        if self.branched:
            self.stages[f"conv{self.depth}"] = TwoBranch(
                self.channels,
                out_channels,
                kernel_size,
                self.plan.fuse(out_channels, "branches"),
                stride=stride,
                padding=padding,
                groups=groups,
                norm=self.norm,
            )
            self.taps[f"conv{self.depth}"] = f"conv{self.depth}"
        else:
            conv, *rest = convolution(
                self.channels,
                out_channels,
                kernel_size,
                stride=stride,
                padding=padding,
                groups=groups,
                norm=self.norm,
            )
            names = ("bn", "relu") if self.norm else ("relu",)
            self.stages[f"conv{self.depth}"] = conv
            self.stages |= {f"{name}{self.depth}": m for name, m in zip(names, rest, strict=True)}
            self.taps[f"conv{self.depth}"] = f"relu{self.depth}"
        self.channels = out_channels
        return self

    def response_norm(self) -> Self:
        self.stages[f"norm{self.depth}"] = nn.LocalResponseNorm(5, 1e-4, 0.75, 1.0)
        return self

    def pool(self, pool: nn.Module, dropout: float = 0.0) -> Self:
        self.stages[f"pool{self.depth}"] = pool
        self.taps[f"pool{self.depth}"] = f"pool{self.depth}"
        if dropout:
            self.stages[f"drop{self.depth}"] = nn.Dropout(dropout)
        return self

    def fully_connected(self, *widths: int, dropout: float = 0.0, gain: float = 1.0) -> Network:
        if self.plan.head is not None:
            return self._with_head(gain)
        features = self._features()
        self.stages["flatten"] = nn.Flatten()
        for width in widths:
            self.depth += 1
            self.stages[f"fc{self.depth}"] = nn.Linear(features, width)
            self.stages[f"relu{self.depth}"] = nn.ReLU(inplace=True)
            self.taps[f"fc{self.depth}"] = f"relu{self.depth}"
            if dropout:
                self.stages[f"drop{self.depth}"] = nn.Dropout(dropout)
            features = width
        self.stages[f"fc{self.depth + 1}"] = nn.Linear(features, self.plan.num_classes)
        return self._network(gain)

    def _with_head(self, gain: float) -> Network:
        """A head reads the last convolution's responses, as bilinear CNNs read before pool5."""
        for name in (f"pool{self.depth}", f"drop{self.depth}"):
            self.stages.pop(name, None)
            self.taps.pop(name, None)
        self.stages |= self.plan.classifier(self.channels)
        self.taps["pool"] = "pool"
        return self._network(gain)

    def _features(self) -> int:
        """How many numbers the last pooling gives, found by running the stages on nothing."""
        images = torch.empty(1, self.plan.in_chans, self.plan.size, self.plan.size, device="meta")
        trunk = nn.Sequential(*self.stages.values())
        with torch.no_grad():
            try:
                return int(torch.func.functional_call(trunk, _on_meta(trunk), images).numel())
            except RuntimeError as error:
                side = self.plan.size
                raise ValueError(
                    f"images of {side} x {side} are too small for this net"
                ) from error

    def _network(self, gain: float) -> Network:
        network = Network(self.stages, self.taps, self.plan.size)
        initial.xavier(network)
        for module in network.modules():
            if isinstance(module, TwoBranch):
                initial.damp(module, gain)
        return network


def _on_meta(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.to("meta") for name, tensor in model.state_dict().items()}
