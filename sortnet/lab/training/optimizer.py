"""The optimizer of a recipe: SGD or AdamW, and its own weight decay for normalization."""

import torch
from torch import nn

from sortnet.errors import UsageError
from sortnet.fusion.private import NormBase
from sortnet.lab.recipes import Recipe
from sortnet.lab.training.hardware import FUSED, Machine

BUFFERS = {
    "sgd": {"momentum_buffer": ""},
    "adamw": {"exp_avg": "", "exp_avg_sq": ":squares"},
}
"""The buffers of each optimizer, and the suffix of a parameter's name in a checkpoint."""


def create_optimizer(
    network: nn.Module, recipe: Recipe, machine: Machine
) -> torch.optim.Optimizer:
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
    groups = [group for group in groups if group["params"]]
    if recipe.optimizer == "adamw":
        if machine.precision == "float16":  # AdamW does not count the steps that a scaler skips
            raise UsageError("AdamW does not work with float16; choose bfloat16 or float32")
        return torch.optim.AdamW(
            groups,
            recipe.learning_rate(0),
            weight_decay=recipe.decay,
            fused=True if machine.device.type in FUSED else None,
        )
    return machine.sgd(
        groups,
        lr=recipe.learning_rate(0),
        momentum=recipe.momentum,
        decay=recipe.decay,
        nesterov=recipe.nesterov,
    )
