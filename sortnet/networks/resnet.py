"""Residual networks: He's for CIFAR in two styles, and torchvision's for ImageNet."""

from collections.abc import Sequence

from torch import nn

from sortnet.blocks import Basic, Bottleneck, Subsample
from sortnet.networks import weight_init as initial
from sortnet.networks.network import Network, Plan

STYLES = ("he", "xu")


def cifar_resnet(plan: Plan, depth: int, *, style: str = "he") -> Network:
    """ResNet-20, 32, 56: three stages of (depth - 2) / 6 basic blocks, 16, 32, 64 channels.

    Style ``he`` is the published network: ReLU after the fusion, shortcuts without parameters.
    Style ``xu`` is the Caffe implementation that the paper most likely follows: no ReLU after the
    fusion (so that "x or F(x) may be negative"), projections of 2 x 2 with stride 2 and batch
    normalisation, biases, xavier, slower running statistics.
    """
    if style not in STYLES:
        raise ValueError(f"unknown style {style!r}; there are {', '.join(STYLES)}")
    xu = style == "xu"

    def shortcut(in_channels: int, out_channels: int, stride: int) -> nn.Module:
        if not xu:
            return Subsample(out_channels, stride)
        return nn.Sequential(
            nn.Conv2d(in_channels, out_channels, stride, stride), nn.BatchNorm2d(out_channels)
        )

    def block(in_channels: int, width: int, stride: int) -> nn.Module:
        same = in_channels == width and stride == 1
        downsample = None if same else shortcut(in_channels, width, stride)
        fusion = plan.fuse(width, "residual")
        return Basic(in_channels, width, stride, fusion, downsample, relu=not xu, bias=xu)

    stages: dict[str, nn.Module] = {
        "conv1": nn.Conv2d(plan.in_chans, 16, 3, 1, 1, bias=xu),
        "bn1": nn.BatchNorm2d(16),
        "relu": nn.ReLU(inplace=True),
    }
    in_channels = 16
    for i, width in enumerate((16, 32, 64)):
        strides = [1 if i == 0 else 2] + [1] * ((depth - 2) // 6 - 1)
        blocks = []
        for stride in strides:
            blocks.append(block(in_channels, width, stride))
            in_channels = width
        stages[f"layer{i + 1}"] = nn.Sequential(*blocks)
    network = _finished(plan, stages, in_channels)
    if xu:
        initial.xavier(network)
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = 0.05
    else:
        initial.msra(network)
    return network


def resnet(plan: Plan, block: type[Basic] | type[Bottleneck], depths: Sequence[int]) -> Network:
    """ResNet-18, 34, 50 for ImageNet: torchvision's and fb.resnet.torch's graph, key for key."""
    stages: dict[str, nn.Module] = {
        "conv1": nn.Conv2d(plan.in_chans, 64, 7, 2, 3, bias=False),
        "bn1": nn.BatchNorm2d(64),
        "relu": nn.ReLU(inplace=True),
        "maxpool": nn.MaxPool2d(3, 2, 1),
    }
    in_channels = 64
    for i, depth in enumerate(depths):
        width = 64 * 2**i
        out_channels = width * block.expansion
        blocks: list[nn.Module] = []
        for stride in [1 if i == 0 else 2] + [1] * (depth - 1):
            downsample = None
            if stride != 1 or in_channels != out_channels:
                downsample = nn.Sequential(
                    nn.Conv2d(in_channels, out_channels, 1, stride, bias=False),
                    nn.BatchNorm2d(out_channels),
                )
            blocks.append(
                block(in_channels, width, stride, plan.fuse(out_channels, "residual"), downsample)
            )
            in_channels = out_channels
        stages[f"layer{i + 1}"] = nn.Sequential(*blocks)
    network = _finished(plan, stages, in_channels)
    initial.msra(network, mode="fan_out")
    network.get_submodule("fc").apply(_as_torch_does)
    return network


def _as_torch_does(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        module.reset_parameters()


def _finished(plan: Plan, stages: dict[str, nn.Module], channels: int) -> Network:
    taps = {name: name for name in stages if name.startswith("layer")} | {"pool": "pool"}
    return Network(stages | plan.classifier(channels), taps, plan.size)
