"""The optimizer of a recipe: SGD with momentum, and its own weight decay for normalization."""

import torch
from torch import nn

from sortnet.errors import UsageError
from sortnet.fusion.private import NormBase
from sortnet.lab.recipes import Recipe
from sortnet.lab.training.hardware import Machine


def create_optimizer(network: nn.Module, recipe: Recipe, machine: Machine) -> torch.optim.SGD:
    """Return the optimizer of a network's trainable parameters."""
    norms = {
        id(p)
        for module in network.modules()
        if isinstance(module, NormBase)
        for p in module.parameters()
    }
    trainable = [p for p in network.parameters() if p.requires_grad]
    if not trainable:
        raise UsageError("all weights are frozen: there is nothing to train")
    groups = [
        {"params": [p for p in trainable if id(p) not in norms]},
        {"params": [p for p in trainable if id(p) in norms]},
    ]
    if recipe.norm_decay is not None:
        groups[1]["weight_decay"] = recipe.norm_decay  # type: ignore[assignment]
    return machine.sgd(
        [group for group in groups if group["params"]],
        lr=recipe.learning_rate(0),
        momentum=recipe.momentum,
        decay=recipe.decay,
        nesterov=recipe.nesterov,
    )
