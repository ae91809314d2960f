"""Residual networks: ResNets for CIFAR in two styles, and torchvision's for ImageNet."""

from collections.abc import Sequence

from torch import nn

from sortnet.blocks import Basic, Bottleneck, Subsample
from sortnet.networks import weight_init
from sortnet.networks.network import Network, NetworkOptions

STYLES = ("he", "xu")


def cifar_resnet(options: NetworkOptions, depth: int, *, style: str = "he") -> Network:
    """ResNet-20, 32, 56: three stages of (depth - 2) / 6 basic blocks, 16, 32, 64 channels.

    Style ``he`` is the published network: ReLU after the fusion, shortcuts without parameters.
    Style ``xu`` is the Caffe implementation that the paper most likely used: no ReLU after the
    fusion (so that "x or F(x) may be negative"), 2 x 2 projections with stride 2 and batch
    normalization, biases, xavier initialization, a smaller momentum of the running statistics.
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
        fusion = options.make_fusion(width, "residual")
        return Basic(in_channels, width, stride, fusion, downsample, final_act=not xu, bias=xu)

    stages: dict[str, nn.Module] = {
        "conv1": nn.Conv2d(options.in_chans, 16, 3, 1, 1, bias=xu),
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
    network = _with_classifier(options, stages, in_channels)
    if xu:
        weight_init.xavier(network)
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = 0.05
    else:
        weight_init.kaiming(network)
    return network


def resnet(
    options: NetworkOptions, block: type[Basic] | type[Bottleneck], depths: Sequence[int]
) -> Network:
    """ResNet-18, 34, 50 for ImageNet, with the same graph and keys as torchvision."""
    stages: dict[str, nn.Module] = {
        "conv1": nn.Conv2d(options.in_chans, 64, 7, 2, 3, bias=False),
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
            fusion = options.make_fusion(out_channels, "residual")
            blocks.append(block(in_channels, width, stride, fusion, downsample))
            in_channels = out_channels
        stages[f"layer{i + 1}"] = nn.Sequential(*blocks)
    network = _with_classifier(options, stages, in_channels)
    weight_init.kaiming(network, mode="fan_out")
    classifier = network.get_submodule("fc")
    assert isinstance(classifier, nn.Linear)
    classifier.reset_parameters()
    return network


def _with_classifier(
    options: NetworkOptions, stages: dict[str, nn.Module], channels: int
) -> Network:
    features = {name: name for name in stages if name.startswith("layer")} | {"pool": "pool"}
    return Network(stages | options.make_classifier(channels), features, options.size)
