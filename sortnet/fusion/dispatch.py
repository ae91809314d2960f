"""The one place that decides whether a fusion runs jointly or by PyTorch's own operations.

Both give the same numbers in every mode of PyTorch; docs/correctness.md says how that is tested.
"""

import torch
from torch import Tensor, nn

from sortnet.fusion import kernels, private
from sortnet.fusion.branches import Branch, Normalized

TENSORS = (Tensor, nn.Parameter)
"""Exact types: a subclass may give its operations a meaning of its own."""


def obstacle(second_order: bool, *tensors: Tensor) -> str | None:
    """Say why tensors cannot be fused jointly, or nothing if they can.

    Arguments:
        second_order: Whether the fusion has a second-order term.
        tensors: All that takes part; the first is a branch's response.
    """
    if not second_order:
        return "there is no second-order term: it stays the plain network, bit for bit"
    if not private.COMPLETE:
        return "this version of PyTorch lacks what the joint path needs"
    if any(type(x) not in TENSORS for x in tensors):
        return "a tensor is of a subclass"
    if private.exporting() or private.tracing():
        return "the model is being exported: the graph is to have PyTorch's operations only"
    if private.transformed():
        return "torch.func or forward-mode differentiation is active"
    if not torch.compiler.is_compiling() and private.observed():
        return "a mode observes each operation"
    return kernels.obstacle(tensors[0])


def module_obstacle(fusion: nn.Module, a: Branch, b: Branch, second_order: bool) -> str | None:
    """Say why a fusion module and its branches cannot be fused jointly, or nothing.

    Arguments:
        fusion: The module, a `Fusion` that has its forward from there.
        a: A branch.
        b: The other one.
        second_order: Whether the fusion has a second-order term.
    """
    raw, norms = a.raw, [x.norm for x in (a, b) if isinstance(x, Normalized)]
    if type(raw) not in TENSORS or type(b.raw) not in TENSORS:
        return "a tensor is of a subclass"
    if raw.dim() != 4 or raw.shape != b.raw.shape:
        return "the branches are not images of one shape"
    for norm in norms:
        if type(norm) is not nn.BatchNorm2d or norm.num_features != raw.shape[1]:
            return f"a branch ends in {type(norm).__name__}, not in nn.BatchNorm2d"
        if norm.momentum is None and torch.compiler.is_compiling():
            return "a cumulative average is not compiled"
        if raw.numel() <= raw.shape[1]:
            return "batch normalization needs more than one value per channel"
    parameters = [p for m in (fusion, *norms) for p in m._parameters.values() if p is not None]
    found = obstacle(second_order, raw, b.raw, *parameters)
    if found is None and private.hooked(fusion, *norms):
        return "a hook is registered on the fusion or on a normalization"
    return found
