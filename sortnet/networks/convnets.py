"""The chain-styled networks, LeNet, BigNet and AlexNet, and their two-branch forms (LeNet*, ...).

In the two-branch form, a `TwoBranch` block replaces each convolution; everything else is the same.
"""

from functools import partial
from typing import Self

import torch
from torch import nn

from sortnet.blocks import TwoBranch, conv_norm_act
from sortnet.networks import weight_init
from sortnet.networks.network import Network, NetworkOptions

DEEP_GAIN = 0.8
"""Initial gain of the second convolution of each branch, in networks of five blocks or more.

A product grows with the square of the responses. With xavier alone, the responses of BigNet*-SORT
are about 1 after the first block and hundreds or more after the last; with this gain they are 0.7
and 0.1, and those of AlexNet*-SORT stay at about 1. All fusions start from the same weights.
"""


def lenet(options: NetworkOptions, *, branched: bool = False, norm: bool = False) -> Network:
    """LeNet (section 4.1.1): three 5 x 5 convolutions, Caffe's cifar10_quick.

    Caffe pools in ceil mode (32-16-8-4) and averages over the part of the window within the
    image, as PyTorch does.
    """
    chain = _Chain(options, branched, norm)
    chain.conv(32, 5, padding=2).pool(nn.MaxPool2d(3, 2, ceil_mode=True))
    # There is no padding to count, but without this option torch.compile computes a wrong gradient
    # for windows that cross the border (torch 2.15).
    average = partial(nn.AvgPool2d, 3, 2, ceil_mode=True, count_include_pad=False)
    chain.conv(32, 5, padding=2).pool(average())
    chain.conv(64, 5, padding=2).pool(average())
    return chain.fully_connected(64)


def bignet(options: NetworkOptions, *, branched: bool = False, norm: bool = False) -> Network:
    """BigNet (section 4.1.1): eight 3 x 3 convolutions, the cited solution to Kaggle's CIFAR-10.

    The paper says ten, but also calls the branched form 19 layers deep, which is 8 * 2 + 3.
    """
    chain = _Chain(options, branched, norm)
    for width, depth in ((64, 2), (128, 2), (256, 4)):
        for _ in range(depth):
            chain.conv(width, 3, padding=1)
        chain.pool(nn.MaxPool2d(2), dropout=0.25)
    return chain.fully_connected(1024, 1024, dropout=0.5, gain=DEEP_GAIN)


def alexnet(options: NetworkOptions, *, branched: bool = False, norm: bool = False) -> Network:
    """AlexNet (section 4.2.1) as in Caffe's bvlc_alexnet: 227 x 227 images, groups, LRN."""
    chain = _Chain(options, branched, norm)
    chain.conv(96, 11, stride=4).response_norm().pool(nn.MaxPool2d(3, 2))
    chain.conv(256, 5, padding=2, groups=2).response_norm().pool(nn.MaxPool2d(3, 2))
    chain.conv(384, 3, padding=1)
    chain.conv(384, 3, padding=1, groups=2)
    chain.conv(256, 3, padding=1, groups=2).pool(nn.MaxPool2d(3, 2))
    return chain.fully_connected(4096, 4096, dropout=0.5, gain=DEEP_GAIN)


class _Chain:
    """Builds a network stage by stage, numbered as in Caffe: conv1 relu1 pool1 ... fc6 fc7."""

    def __init__(self, options: NetworkOptions, branched: bool, norm: bool) -> None:
        if not branched and options.fusion != "sum":
            raise ValueError(
                f"a chain has no branches to fuse by {options.fusion!r}: pass branched=True"
            )
        self.options, self.branched, self.norm = options, branched, norm
        self.channels = options.in_chans
        self.depth = 0
        self.stages: dict[str, nn.Module] = {}
        self.features: dict[str, str] = {}

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
                self.options.make_fusion(out_channels, "branches"),
                stride=stride,
                padding=padding,
                groups=groups,
                norm_layer=nn.BatchNorm2d if self.norm else None,
            )
            self.features[f"conv{self.depth}"] = f"conv{self.depth}"
        else:
            conv, *rest = conv_norm_act(
                self.channels,
                out_channels,
                kernel_size,
                stride=stride,
                padding=padding,
                groups=groups,
                norm_layer=nn.BatchNorm2d if self.norm else None,
            )
            names = ("bn", "relu") if self.norm else ("relu",)
            self.stages[f"conv{self.depth}"] = conv
            self.stages |= {f"{name}{self.depth}": m for name, m in zip(names, rest, strict=True)}
            self.features[f"conv{self.depth}"] = f"relu{self.depth}"
        self.channels = out_channels
        return self

    def response_norm(self) -> Self:
        self.stages[f"norm{self.depth}"] = nn.LocalResponseNorm(5, 1e-4, 0.75, 1.0)
        return self

    def pool(self, pool: nn.Module, dropout: float = 0.0) -> Self:
        self.stages[f"pool{self.depth}"] = pool
        self.features[f"pool{self.depth}"] = f"pool{self.depth}"
        if dropout:
            self.stages[f"drop{self.depth}"] = nn.Dropout(dropout)
        return self

    def fully_connected(self, *widths: int, dropout: float = 0.0, gain: float = 1.0) -> Network:
        if self.options.head is not None:
            return self._with_head(gain)
        in_features = self._flat_features()
        self.stages["flatten"] = nn.Flatten()
        for width in widths:
            self.depth += 1
            self.stages[f"fc{self.depth}"] = nn.Linear(in_features, width)
            self.stages[f"relu{self.depth}"] = nn.ReLU(inplace=True)
            self.features[f"fc{self.depth}"] = f"relu{self.depth}"
            if dropout:
                self.stages[f"drop{self.depth}"] = nn.Dropout(dropout)
            in_features = width
        self.stages[f"fc{self.depth + 1}"] = nn.Linear(in_features, self.options.num_classes)
        return self._network(gain)

    def _with_head(self, gain: float) -> Network:
        """Add a head after the last convolution, as bilinear CNNs do, without the last pooling."""
        for name in (f"pool{self.depth}", f"drop{self.depth}"):
            self.stages.pop(name, None)
            self.features.pop(name, None)
        self.stages |= self.options.make_classifier(self.channels)
        self.features["pool"] = "pool"
        return self._network(gain)

    def _flat_features(self) -> int:
        """Return the number of features after the last pooling, computed on the meta device."""
        images = torch.empty(
            1, self.options.in_chans, self.options.size, self.options.size, device="meta"
        )
        trunk = nn.Sequential(*self.stages.values())
        with torch.no_grad():
            try:
                return int(torch.func.functional_call(trunk, _on_meta(trunk), images).numel())
            except RuntimeError as error:
                side = self.options.size
                raise ValueError(
                    f"images of {side} x {side} are too small for this network"
                ) from error

    def _network(self, gain: float) -> Network:
        network = Network(self.stages, self.features, self.options.size)
        weight_init.xavier(network)
        for module in network.modules():
            if isinstance(module, TwoBranch):
                weight_init.scale_last_convolutions(module, gain)
        return network


def _on_meta(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.to("meta") for name, tensor in model.state_dict().items()}
