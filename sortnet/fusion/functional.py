"""The fusion of two branches as a function.

The rules are stricter than those of ``a + b``: both branches have the same shape (nothing is
broadcast) and are floating point. The result has the dtype of ``a + b``. With a second-order term,
half precision is computed in float32 and rounded once, forward and backward. What float16 cannot
represent is infinite, as everywhere in PyTorch, so that a GradScaler sees it.
"""

from collections.abc import Sequence

from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from sortnet.fusion.branches import Branch
from sortnet.fusion.dispatch import why_not_fused
from sortnet.fusion.formulas import EPS, SECOND_ORDER, check_eps, sum_dtype, value, widen
from sortnet.fusion.fused import run_fused, shaped_gate


def sort(a: Tensor, b: Tensor, term: str = "prod", eps: float = EPS) -> Tensor:
    r"""Fuse two branches by their sum and a second-order term.

    .. math:: y = a + b + a \odot b \qquad\text{or}\qquad
              y = a + b + \sqrt{\sigma(a) \odot \sigma(b) + \varepsilon}

    References:
        SORT: Second-Order Response Transform for Visual Recognition (Wang et al., 2017),
        equation 1. https://arxiv.org/abs/1703.06993

    Arguments:
        a: The response of one branch, of any shape.
        b: The response of the other branch, of the same shape.
        term: ``prod``, as in two-branch blocks, or ``root``, as in residual blocks.
        eps: Added under the root to keep its gradient finite; above 0.

    Example:
        >>> import torch
        >>> a, b = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 0.0])
        >>> sort(a, b)
        tensor([7., 2.])
        >>> sort(torch.tensor([4.0]), torch.tensor([-1.0]), term="root")
        tensor([3.0100])
    """
    if term not in SECOND_ORDER:
        raise ValueError(f"unknown term {term!r}; there are {', '.join(SECOND_ORDER)}")
    check_eps(eps)
    return fuse(a, b, ("sum", term), eps)


def fuse(
    a: Tensor, b: Tensor, terms: Sequence[str], eps: float = EPS, gate: Tensor | None = None
) -> Tensor:
    """Add up the given terms of two branches.

    Arguments:
        a: The response of one branch; the input `x` in a residual block.
        b: The response of the other branch, of the same shape; `F(x)` in a residual block.
        terms: Names from `TERMS`, as returned by `parse`.
        eps: Added under the root.
        gate: Weights of the second-order terms, one per channel (the second dimension).

    Example:
        >>> import torch
        >>> fuse(torch.tensor([1.0]), torch.tensor([3.0]), ("max", "prod"))
        tensor([6.])
    """
    if has_torch_function((a, b)):  # torch.fx proxies: one node in the graph, not its insides
        result: Tensor = handle_torch_function(fuse, (a, b), a, b, terms, eps, gate)
        return result
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        kinds = f"{type(a).__name__} and {type(b).__name__}"
        raise TypeError(f"a fusion takes two tensors of one shape, not {kinds}")
    if a.shape != b.shape:
        shapes = f"{tuple(a.shape)} and {tuple(b.shape)}"
        raise ValueError(f"the branches differ in shape, {shapes}; a fusion does not broadcast")
    if not (a.is_floating_point() and b.is_floating_point()):
        raise ValueError(f"branches must be floating point, not {a.dtype} and {b.dtype}")
    if not set(terms) & set(SECOND_ORDER):
        return value(a, b, terms, eps)  # exactly the operations of the plain network
    if why_not_fused(terms, a, b, gate=gate) is None:
        return run_fused(Branch(a), Branch(b), tuple(terms), eps, gate=gate)
    weight = None if gate is None else shaped_gate(gate, a)
    y = value(widen(a), widen(b), terms, eps, weight)
    dtype = sum_dtype(a, b)
    return y if y.dtype == dtype else y.to(dtype)  # an exported graph asserts a dtype at each `to`
