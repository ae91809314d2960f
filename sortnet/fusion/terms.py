"""What a fusion is made of: its terms, their values and their slopes. Section 3 of the paper.

Equation 1 fuses the responses of two branches as ``y = a + b + g(a * b)``. A fusion is written as
its terms, joined by ``+``:

=========== ================================ ======================================
term        value                            where the paper has it
=========== ================================ ======================================
``sum``     a + b                            the linear fusion
``max``     max(a, b)                        Maxout
``prod``    a * b                            g = identity, in two-branch blocks
``root``    sqrt(relu(a) * relu(b) + eps)    g = square root, in residual blocks
``square``  a * a                            the control of section 3.3: no crossing
=========== ================================ ======================================
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

SORT = {"branches": ("sum", "prod"), "residual": ("sum", "root")}
"""What the paper calls SORT, by the kind of block it stands in."""


def parse(fusion: str, block: str = "branches") -> tuple[str, ...]:
    """Split a fusion's name into its terms.

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
    """Refuse an eps that would let the root's slope, or its value, be infinite or NaN."""
    needed = f"eps is {eps!r}, but must be {LIMITS['eps']}: it keeps the root's slope finite"
    if isinstance(eps, bool) or not isinstance(eps, Real):
        raise TypeError(needed)
    if not LIMITS["eps"].allows(eps):
        raise ValueError(needed)


def value(
    a: Tensor, b: Tensor, terms: Sequence[str], eps: float, gate: Tensor | None = None
) -> Tensor:
    """The sum of the terms, as the table above has them; those of second order times the gate."""
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


def slopes(
    a: Tensor, b: Tensor, terms: Sequence[str], eps: float, gate: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The derivatives of `value` by a and by b; for ``sum+prod`` those of equation 2, 1 + b.

    Shares no subexpression with `value`; otherwise the compiler merges them and keeps the result
    alive until backward. Products have b first, because results take the layout of what comes
    first, and b's is that of the network, also where a is recomputed.
    """
    by_a = by_b = torch.zeros((), dtype=a.dtype, device=a.device)
    for term in terms:
        match term:
            case "sum":
                by_a, by_b = by_a + 1, by_b + 1
            case "max":  # a tie is shared, as torch.maximum does
                left = torch.where(a > b, 1.0, torch.where(a < b, 0.0, 0.5)).to(a.dtype)
                by_a, by_b = by_a + left, by_b + (1 - left)
            case "prod":
                by_a, by_b = by_a + _times(gate, b), by_b + _times(gate, a)
            case "root":  # the mask is strict: relu has no slope at zero
                p, q = a.clamp_min(0), b.clamp_min(0)
                half = _times(gate, 0.5 * torch.rsqrt(q * p + eps))
                by_a = by_a + torch.where(a > 0, half * q, 0.0)
                by_b = by_b + torch.where(b > 0, half * p, 0.0)
            case "square":
                by_a = by_a + _times(gate, 2 * a)
    return by_a, by_b


def recomputed_value(
    a: Tensor, b: Tensor, terms: Sequence[str], eps: float, gate: Tensor | None = None
) -> Tensor:
    """What `value` gives, without its subexpressions, for the reason that `slopes` gives."""
    y = _times(gate, gate_slope(a, b, terms, eps))
    for term in terms:
        match term:
            case "sum":
                y = y + (b + a)
            case "max":
                y = y + torch.where(a > b, a, b)
    return y


def gate_slope(a: Tensor, b: Tensor, terms: Sequence[str], eps: float) -> Tensor:
    """The derivative of `value` by the gate: the second-order terms, by other operations."""
    slope = torch.zeros((), dtype=a.dtype, device=a.device)
    for term in terms:
        match term:
            case "prod":
                slope = slope + b * a
            case "root":
                under = b.clamp_min(0) * a.clamp_min(0) + eps
                slope = slope + under * torch.rsqrt(under)
            case "square":
                slope = slope + a.square()
    return slope


def sum_dtype(a: Tensor, b: Tensor) -> torch.dtype:
    """The dtype of ``a + b`` where the shapes are equal."""
    return a.dtype if a.dtype == b.dtype else torch.promote_types(a.dtype, b.dtype)


def widen(x: Tensor) -> Tensor:
    """Half precision in float32: in float16 the product of 300 and 300 is infinite."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
