"""The fusion of two branches as a function: section 3.1 of the paper.

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

The rules, on purpose stricter than those of ``a + b``: both branches have the same shape (nothing
is broadcast) and are floating point. The result has the dtype that ``a + b`` has. As soon as a
second-order term takes part, half precision is computed in float32 and rounded once; what float16
cannot hold is its largest value, in the output as in the local derivative, and not infinity.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

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


def sort(a: Tensor, b: Tensor, term: str = "prod", eps: float = EPS) -> Tensor:
    r"""Fuse two branches by their sum and a second-order term.

    .. math:: y = a + b + a \odot b \qquad\text{or}\qquad
              y = a + b + \sqrt{\sigma(a) \odot \sigma(b) + \varepsilon}

    References:
        SORT: Second-Order Response Transform for Visual Recognition (Wang et al., 2017),
        equation 1. https://arxiv.org/abs/1703.06993

    Arguments:
        a: One branch's responses, of any shape.
        b: The other branch's, of the same shape.
        term: ``prod``, as in two-branch blocks, or ``root``, as in residual blocks.
        eps: The number under the root that keeps its gradient finite.

    Example:
        >>> a, b = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 0.0])
        >>> sort(a, b)
        tensor([7., 2.])
        >>> sort(torch.tensor([4.0]), torch.tensor([-1.0]), term="root")
        tensor([3.0100])
    """
    if term not in SECOND_ORDER:
        raise ValueError(f"unknown term {term!r}; there are {', '.join(SECOND_ORDER)}")
    return fuse(a, b, ("sum", term), eps)


def fuse(
    a: Tensor, b: Tensor, terms: Sequence[str], eps: float = EPS, gate: Tensor | None = None
) -> Tensor:
    """Add up the given terms of two branches.

    Arguments:
        a: One branch's responses; the input `x` in a residual block.
        b: The other branch's, of the same shape; `F(x)` in a residual block.
        terms: Names out of `TERMS`, as `parse` gives them.
        eps: The number under the root.
        gate: Weights of the second-order terms, one for each channel (the second dimension).

    Example:
        >>> fuse(torch.tensor([1.0]), torch.tensor([3.0]), ("max", "prod"))
        tensor([6.])
    """
    if has_torch_function((a, b)):  # torch.fx proxies: one node in the graph, not its insides
        result: Tensor = handle_torch_function(fuse, (a, b), a, b, terms, eps, gate)
        return result
    if a.shape != b.shape:
        shapes = f"{tuple(a.shape)} and {tuple(b.shape)}"
        raise ValueError(f"the branches differ in shape, {shapes}; a fusion does not broadcast")
    if not (a.is_floating_point() and b.is_floating_point()):
        raise ValueError(f"branches must be floating point, not {a.dtype} and {b.dtype}")
    if gate is not None:
        return _gated(a, b, terms, eps, gate)
    if not set(terms) & set(SECOND_ORDER):
        return _value(a, b, terms, eps)  # exactly the plain network's operations
    if torch.compiler.is_exporting():  # an exported graph has no backward pass
        return _narrow(_value(_widen(a), _widen(b), terms, eps), _dtype(a, b))
    function = _SecondOrder if torch.compiler.is_compiling() else _WithTangents
    fused: Tensor = function.apply(a, b, tuple(terms), eps)
    return fused


def _gated(a: Tensor, b: Tensor, terms: Sequence[str], eps: float, gate: Tensor) -> Tensor:
    second = fuse(a, b, [term for term in terms if term in SECOND_ORDER], eps)
    y = gate.view(-1, *[1] * (a.dim() - 2)) * second
    if first := [term for term in terms if term in FIRST_ORDER]:
        y = fuse(a, b, first, eps) + y
    return y.to(_dtype(a, b))


def _dtype(a: Tensor, b: Tensor) -> torch.dtype:
    """The dtype of ``a + b`` where the shapes are equal."""
    return a.dtype if a.dtype == b.dtype else torch.promote_types(a.dtype, b.dtype)


def _value(a: Tensor, b: Tensor, terms: Sequence[str], eps: float) -> Tensor:
    """The sum of the terms, as the table above has them."""
    values = []
    for term in terms:
        match term:
            case "sum":
                values.append(a + b)
            case "max":
                values.append(torch.maximum(a, b))
            case "prod":
                values.append(a * b)
            case "root":
                values.append(torch.sqrt(F.relu(a) * F.relu(b) + eps))
            case "square":
                values.append(a * a)
    return sum(values[1:], start=values[0])


def _partials(a: Tensor, b: Tensor, terms: Sequence[str], eps: float) -> tuple[Tensor, Tensor]:
    """The derivatives of `_value` by a and by b; for ``sum+prod`` those of equation 2, 1 + b."""
    by_a, by_b = torch.zeros_like(a), torch.zeros_like(b)
    for term in terms:
        match term:
            case "sum":
                by_a, by_b = by_a + 1, by_b + 1
            case "max":  # a tie is shared, as torch.maximum does
                tie = 0.5 * (a == b)
                by_a, by_b = by_a + (a > b) + tie, by_b + (b > a) + tie
            case "prod":
                by_a, by_b = by_a + b, by_b + a
            case "root":  # the mask is strict: relu has no slope at zero
                half = 0.5 / torch.sqrt(F.relu(a) * F.relu(b) + eps)
                by_a, by_b = by_a + half * F.relu(b) * (a > 0), by_b + half * F.relu(a) * (b > 0)
            case "square":
                by_a = by_a + 2 * a
    return by_a, by_b


def _widen(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _narrow(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Back to `dtype`; float16 saturates, since the product of 300 and 300 is beyond it."""
    if x.dtype == dtype:
        return x
    if dtype == torch.float16:
        largest = torch.finfo(dtype).max
        x = x.clamp(-largest, largest)
    return x.to(dtype)


class _SecondOrder(torch.autograd.Function):
    """A fusion with a second-order term, which keeps nothing but the two branches.

    The local derivative is limited to what the branch's dtype can hold, but its product with the
    incoming gradient is not: a loss scaled too high must still show as infinity to a GradScaler.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor, terms: Sequence[str], eps: float) -> Tensor:
        return _narrow(_value(_widen(a), _widen(b), terms, eps), _dtype(a, b))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ANN401
        a, b, ctx.terms, ctx.eps = inputs
        ctx.save_for_backward(a, b)
        ctx.save_for_forward(a, b)

    @staticmethod
    def _slopes(ctx: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        a, b = ctx.saved_tensors
        by_a, by_b = _partials(_widen(a), _widen(b), ctx.terms, ctx.eps)
        return _narrow(by_a, a.dtype), _narrow(by_b, b.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:  # noqa: ANN401
        by_a, by_b = _SecondOrder._slopes(ctx)
        return (grad * by_a).to(by_a.dtype), (grad * by_b).to(by_b.dtype), None, None


class _WithTangents(_SecondOrder):
    """The same with forward-mode derivatives, for torch.func; torch.compile takes none."""

    @staticmethod
    def jvp(ctx: Any, along_a: Tensor, along_b: Tensor, *_: None) -> Tensor:  # noqa: ANN401
        by_a, by_b = _SecondOrder._slopes(ctx)
        return by_a * along_a + by_b * along_b
