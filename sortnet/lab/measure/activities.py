"""The activity of second-order terms: their share of the output, how often they act, sign."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from sortnet.fusion import Fusion, fuse


@dataclass(frozen=True)
class Activity:
    """The second-order term of one fusion, over a batch of images.

    Attributes:
        name: Path of the fusion in the network.
        share: The term's share of the output, in sums of magnitudes.
        active: The fraction of positions at which both branches are positive, so that the term is
            more than its constant.
        sign: The term's mean divided by its mean magnitude: 1 if it is never negative, as without
            a gate, -1 if it is never positive.
    """

    name: str
    share: float
    active: float
    sign: float


def activity(network: nn.Module, images: Tensor) -> list[Activity]:
    """Measure the second-order term of each fusion of a network, in order.

    Arguments:
        network: Any network; it is run in its current mode, training or evaluation.
        images: :math:`(N, C, H, W)`.

    Example:
        >>> from sortnet.networks import create_model
        >>> net = create_model("lenet", fusion="sort", branched=True)
        >>> [part.name for part in activity(net, torch.rand(2, 3, 32, 32))]
        ['conv1.fusion', 'conv2.fusion', 'conv3.fusion']
    """
    found: dict[str, Activity] = {}

    def record(name: str, fusion: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(fusion, Fusion)
        a, b = inputs
        term = fuse(a, b, fusion.second_order, fusion.eps, fusion.gate)
        rest = (output - term).abs().sum()
        size = term.abs().sum()
        both = ((a > 0) & (b > 0)).float().mean()
        found[name] = Activity(
            name, float(size / (size + rest)), float(both), float(term.sum() / size)
        )

    hooks = [
        module.register_forward_hook(partial(record, name))
        for name, module in network.named_modules()
        if isinstance(module, Fusion) and module.second_order
    ]
    try:
        with torch.no_grad():
            network(images)
    finally:
        for hook in hooks:
            hook.remove()
    return list(found.values())
