"""Wide residual networks (Zagoruyko and Komodakis, 2016)."""

from torch import nn

from sortnet.blocks import PreActivation
from sortnet.networks import weight_init
from sortnet.networks.network import Network, NetworkOptions


def wide_resnet(options: NetworkOptions, depth: int, *, width: int = 10) -> Network:
    """WRN-28: three stages of (depth - 4) / 6 pre-activation blocks, 16, 32, 64 times `width`.

    The paper does not state the width; the results it cites for comparison have width 10.
    """
    if not isinstance(width, int) or width < 1:
        raise ValueError(f"width is {width!r}, but must be an integer of at least 1")
    stages: dict[str, nn.Module] = {"conv1": nn.Conv2d(options.in_chans, 16, 3, 1, 1, bias=False)}
    in_channels = 16
    for i in range(3):
        out_channels = 16 * 2**i * width
        blocks = []
        for stride in [1 if i == 0 else 2] + [1] * ((depth - 4) // 6 - 1):
            fusion = options.make_fusion(out_channels, "residual")
            blocks.append(PreActivation(in_channels, out_channels, stride, fusion))
            in_channels = out_channels
        stages[f"layer{i + 1}"] = nn.Sequential(*blocks)
    features = {name: name for name in stages if name.startswith("layer")} | {"pool": "pool"}
    stages |= {"bn": nn.BatchNorm2d(in_channels), "relu": nn.ReLU(inplace=True)}
    network = Network(stages | options.make_classifier(in_channels), features, options.size)
    weight_init.kaiming(network)
    return network
