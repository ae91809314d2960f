"""Decide whether a fusion runs fused or by PyTorch's own operations: `why_not_fused`.

The functional form, the module and converted models all ask this one function. Both paths give
the same numbers in every mode of PyTorch; docs/correctness.md says how that is tested.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sortnet.fusion import kernels, private
from sortnet.fusion.branches import Branch, as_branch
from sortnet.fusion.formulas import SECOND_ORDER

TENSORS = (Tensor, nn.Parameter)
"""Exact types: a subclass may redefine its operations."""


def why_not_fused(
    fusion: nn.Module | Sequence[str],
    a: Tensor | Branch,
    b: Tensor | Branch,
    *,
    act: nn.Module | None = None,
    gate: Tensor | None = None,
) -> str | None:
    """Return why ``act(fusion(a, b))`` runs by PyTorch's own operations, or None if it is fused.

    Arguments:
        fusion: The module, or the terms of the functional form.
        a: A branch, or its response.
        b: The other branch.
        act: The activation that follows, if any.
        gate: The gate of the functional form.

    Example:
        >>> x = torch.ones(2, 8, 4, 4)
        >>> why_not_fused(("sum",), x, x)
        'there is no second-order term: it stays the plain network, bit for bit'
    """
    if isinstance(fusion, nn.Module):
        if getattr(type(fusion), "fused_forward", None) is not type(fusion).forward:
            return f"{type(fusion).__name__} has its own forward"
        terms, gate = fusion.terms, fusion.gate
    else:
        terms = fusion
    if not any(term in SECOND_ORDER for term in terms):
        return "there is no second-order term: it stays the plain network, bit for bit"
    if not private.COMPLETE:
        return "this version of PyTorch lacks what the fused path needs"
    a, b = as_branch(a), as_branch(b)
    modules = [m for m in (fusion, a.module, b.module, act) if isinstance(m, nn.Module)]
    return (
        _tensors(a.raw, b.raw, gate)
        or _modules(a, b, act, modules)
        or _modes()
        or _kernel(a.raw)
        or ("a hook or a replaced forward would be skipped" if private.hooked(*modules) else None)
    )


def _tensors(a: Tensor, b: Tensor, gate: Tensor | None) -> str | None:
    for x in (a, b, gate):
        if x is not None and type(x) not in TENSORS:
            return "a tensor is an instance of a subclass"
    if a.shape != b.shape:
        return "the branches differ in shape"
    if not (a.is_floating_point() and b.is_floating_point()):
        return "the branches are not floating point"
    return None


def _modules(
    a: Branch, b: Branch, act: nn.Module | None, modules: Sequence[nn.Module]
) -> str | None:
    for branch in (a, b):
        if branch.module is not None:
            if type(branch.module) is not branch.replaces:
                return f"a branch ends in {type(branch.module).__name__}"
            if (reason := branch.unsupported()) is not None:
                return reason
    if act is not None and type(act) is not nn.ReLU:
        return f"{type(act).__name__} follows the fusion, not nn.ReLU"
    for module in modules:
        for x in module._parameters.values():
            if x is not None and type(x) not in TENSORS:
                return "a parameter is an instance of a subclass"
    return None


def _modes() -> str | None:
    if private.exporting() or private.tracing():
        return "the model is being exported: its graph has PyTorch's operations only"
    if private.transformed():
        return "torch.func or forward-mode differentiation is active"
    if not torch.compiler.is_compiling() and private.observed():
        return "a mode observes each operation"
    return None


def _kernel(x: Tensor) -> str | None:
    mode = kernels.get_mode()
    if mode == "plain":
        return "the mode is plain"
    if mode == "eager" or torch.compiler.is_compiling():
        return None
    if x.numel() < kernels.min_elements(x):
        return "the tensor is too small for a kernel to be worthwhile"
    if not kernels.available(x.device.type):
        return f"there is no compiler for device {x.device.type}"
    return None
