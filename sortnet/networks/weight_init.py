"""Weight initialization, as in the original implementations of the networks."""

import math
from typing import Literal

from torch import nn

from sortnet.blocks import TwoBranch


def xavier(model: nn.Module) -> None:
    """Caffe's ``xavier``: uniform with variance 1 / fan-in; biases zero."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            bound = math.sqrt(3 / module.weight[0].numel())
            nn.init.uniform_(module.weight, -bound, bound)
            _zero_bias(module)


def kaiming(model: nn.Module, mode: Literal["fan_in", "fan_out"] = "fan_in") -> None:
    """He's: normal with variance 2 / fan in convolutions; linear layers as in `xavier`."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode=mode, nonlinearity="relu")
            _zero_bias(module)
        elif isinstance(module, nn.Linear):
            xavier(module)


def scale_last_convolutions(block: TwoBranch, gain: float) -> None:
    """Scale the weights of the last convolution of each branch."""
    for branch in (block.branch1, block.branch2):
        *_, last = (module for module in branch if isinstance(module, nn.Conv2d))
        last.weight.data.mul_(gain)


def _zero_bias(module: nn.Conv2d | nn.Linear) -> None:
    if module.bias is not None:
        nn.init.zeros_(module.bias)
