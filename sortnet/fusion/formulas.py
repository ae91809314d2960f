"""The formulas: what a fusion computes, and its derivatives. Section 3 of the paper.

Equation 1 fuses the responses of two branches as ``y = a + b + g(a * b)``. A fusion is named by
its terms, joined by ``+``:

=========== ================================ ========================================
term        value                            in the paper
=========== ================================ ========================================
``sum``     a + b                            the linear fusion
``max``     max(a, b)                        Maxout
``prod``    a * b                            g = identity, in two-branch blocks
``root``    sqrt(relu(a) * relu(b) + eps)    g = square root, in residual blocks
``square``  a * a                            the control of section 3.3: no cross term
=========== ================================ ========================================

`value` computes the sum of the terms, `derivatives` its partial derivatives (equation 2).
"""

from collections.abc import Sequence
from numbers import Real

import torch
from torch import Tensor

from sortnet.limits import LIMITS

EPS = 1e-4
"""The paper's ε under the root (section 3.1); the authors' Caffe layer has 0.01."""

FIRST_ORDER = ("sum", "max")
SECOND_ORDER = ("prod", "root", "square")
TERMS = FIRST_ORDER + SECOND_ORDER

HALF = (torch.float16, torch.bfloat16)
"""The dtypes of half precision."""

SORT = {"branches": ("sum", "prod"), "residual": ("sum", "root")}
"""What the paper calls SORT, by kind of block."""


def parse(fusion: str, block: str = "branches") -> tuple[str, ...]:
    """Split the name of a fusion into its terms.

    Arguments:
        fusion: Terms joined by ``+``. ``sort`` stands for the paper's choice for the block.
        block: ``branches`` or ``residual``.

    Example:
        >>> parse("sum+max+prod")
        ('sum', 'max', 'prod')
        >>> parse("sort", block="residual")
        ('sum', 'root')
    """
    if block not in SORT:
        raise ValueError(f"unknown kind of block {block!r}; there are {', '.join(SORT)}")
    terms: list[str] = []
    for name in fusion.split("+"):
        term = name.strip()
        if term != "sort" and term not in TERMS:
            known = ", ".join(TERMS)
            raise ValueError(
                f"unknown term {term!r} in fusion {fusion!r}; there are {known}, sort"
            )
        terms += SORT[block] if term == "sort" else (term,)
    if len(set(terms)) < len(terms):
        raise ValueError(f"fusion {fusion!r} has a term twice: {'+'.join(terms)}")
    return tuple(terms)


def check_eps(eps: object) -> None:
    """Raise if `eps` would let the root or its derivative be infinite or NaN."""
    needed = f"eps is {eps!r}, but must be {LIMITS['eps']}: it keeps the root's slope finite"
    if isinstance(eps, bool) or not isinstance(eps, Real):
        raise TypeError(needed)
    if not LIMITS["eps"].allows(eps):
        raise ValueError(needed)


def value(
    a: Tensor, b: Tensor, terms: Sequence[str], eps: float, gate: Tensor | None = None
) -> Tensor:
    """Compute the sum of the terms; second-order terms are multiplied by the gate."""
    values = []
    for term in terms:
        match term:
            case "sum":
                values.append(a + b)
            case "max":
                values.append(torch.maximum(a, b))
            case "prod":
                values.append(_times(gate, a * b))
            case "root":
                values.append(_times(gate, torch.sqrt(torch.relu(a) * torch.relu(b) + eps)))
            case "square":
                values.append(_times(gate, a * a))
    return sum(values[1:], start=values[0])


def _times(gate: Tensor | None, x: Tensor) -> Tensor:
    return x if gate is None else gate * x


def derivatives(
    a: Tensor, b: Tensor, terms: Sequence[str], eps: float, gate: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute dy/da and dy/db of `value`; for ``sum+prod``, 1 + b and 1 + a (equation 2).

    Shares no subexpression with `value`; otherwise the compiler merges them and keeps the result
    alive until backward. Products have b first: a result takes the memory layout of its first
    operand, and b always has the layout of the network, while a may be recomputed.
    """
    by_a = by_b = torch.zeros((), dtype=a.dtype, device=a.device)
    for term in terms:
        match term:
            case "sum":
                by_a, by_b = by_a + 1, by_b + 1
            case "max":  # ties are split evenly, as in torch.maximum
                left = torch.where(a > b, 1.0, torch.where(a < b, 0.0, 0.5)).to(a.dtype)
                by_a, by_b = by_a + left, by_b + (1 - left)
            case "prod":
                by_a, by_b = by_a + _times(gate, b), by_b + _times(gate, a)
            case "root":  # strict masks: the derivative of relu at zero is zero
                p, q = a.clamp_min(0), b.clamp_min(0)
                half = _times(gate, 0.5 * torch.rsqrt(q * p + eps))
                by_a = by_a + torch.where(a > 0, half * q, 0.0)
                by_b = by_b + torch.where(b > 0, half * p, 0.0)
            case "square":
                by_a = by_a + _times(gate, 2 * a)
    return by_a, by_b


def gate_derivative(a: Tensor, b: Tensor, terms: Sequence[str], eps: float) -> Tensor:
    """Compute dy/dgate of `value`: the sum of the second-order terms.

    Shares no subexpression with `value`, for the reason given in `derivatives`.
    """
    total = torch.zeros((), dtype=a.dtype, device=a.device)
    for term in terms:
        match term:
            case "prod":
                total = total + b * a
            case "root":
                under = b.clamp_min(0) * a.clamp_min(0) + eps
                total = total + under * torch.rsqrt(under)
            case "square":
                total = total + a.square()
    return total


def recomputed_value(
    a: Tensor, b: Tensor, terms: Sequence[str], eps: float, gate: Tensor | None = None
) -> Tensor:
    """Compute `value` in backward, without its subexpressions (see `derivatives`)."""
    y = _times(gate, gate_derivative(a, b, terms, eps))
    for term in terms:
        match term:
            case "sum":
                y = y + (b + a)
            case "max":
                y = y + torch.where(a > b, a, b)
    return y


def sum_dtype(a: Tensor, b: Tensor) -> torch.dtype:
    """Return the dtype of ``a + b`` for tensors of equal shape."""
    return a.dtype if a.dtype == b.dtype else torch.promote_types(a.dtype, b.dtype)


def widen(x: Tensor) -> Tensor:
    """Convert half precision to float32: in float16, 300 * 300 is infinite."""
    return x.float() if x.dtype in HALF else x


def sum_by_channel(x: Tensor) -> Tensor:
    """Sum over all dimensions except the second, image by image."""
    return (x.sum(tuple(range(2, x.dim()))) if x.dim() > 2 else x).sum(0)
