"""Wide residual networks (Zagoruyko and Komodakis, 2016)."""

from torch import nn

from sortnet.blocks import PreActivation
from sortnet.networks import weight_init as initial
from sortnet.networks.network import Network, Plan


def wide_resnet(plan: Plan, depth: int, *, width: int = 10) -> Network:
    """WRN-28: three stages of (depth - 4) / 6 pre-activation blocks, 16, 32, 64 times `width`.

    The paper does not state its width; the results it cites beside its own are of width 10.
    """
    if not isinstance(width, int) or width < 1:
        raise ValueError(f"width is {width!r}, but must be a whole number of 1 or more")
    stages: dict[str, nn.Module] = {"conv1": nn.Conv2d(plan.in_chans, 16, 3, 1, 1, bias=False)}
    in_channels = 16
    for i in range(3):
        out_channels = 16 * 2**i * width
        blocks = []
        for stride in [1 if i == 0 else 2] + [1] * ((depth - 4) // 6 - 1):
            fusion = plan.fuse(out_channels, "residual")
            # batch normalization follows every block, and saves what it normalizes
            blocks.append(PreActivation(in_channels, out_channels, stride, fusion))
            in_channels = out_channels
        stages[f"layer{i + 1}"] = nn.Sequential(*blocks)
    taps = {name: name for name in stages if name.startswith("layer")} | {"pool": "pool"}
    stages |= {"bn": nn.BatchNorm2d(in_channels), "relu": nn.ReLU(inplace=True)}
    network = Network(stages | plan.classifier(in_channels), taps, plan.size)
    initial.msra(network)
    return network
