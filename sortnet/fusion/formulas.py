"""The formulas of the joint function, forward and backward, as functions of tensors alone.

`sortnet.fusion.kernels` runs them as they stand or has kernels made of them. Their inputs are
those of branch a, those of branch b, the gate if there is one and, backward, the gradient and the
response, if b is told from it.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sortnet.fusion.terms import (
    gate_slope,
    limited,
    narrow,
    slopes,
    solved_slopes,
    value,
    value_again,
    widen,
)

Inputs = Sequence[Any]
"""Of a formula, for one branch: raw, and where it is normalised weight, bias, mean and spread.

The spread is the variance in the forward formula, and 1 / sqrt(variance + eps), which that one
gives, in the backward formula. Of a branch that is made again the backward formula gets, in place
of raw, what it is made of.
"""


class Kind(NamedTuple):
    """How a branch is made: its name in the formulas, and what else it takes to go back.

    `train` says that it is normalised by the batch's own statistics; `again` makes it again, given
    what it is made of and the settings; `solved` says that it is told from the fused response.
    """

    name: str
    train: bool = False
    eps: float = 0.0
    again: Callable[..., Tensor] | None = None
    settings: tuple[Hashable, ...] = ()
    solved: bool = False


class Options(NamedTuple):
    """What a formula is about: the branches, how many inputs each has, the fusion, its dtype."""

    a: Kind
    b: Kind
    counts: tuple[int, int]
    terms: tuple[str, ...]
    eps: float
    relu: bool
    dtype: torch.dtype
    gated: bool


def apart(options: Options, inputs: Inputs) -> tuple[Inputs, Inputs, Inputs]:
    """The inputs of a, of b, and what follows them."""
    first, second = options.counts
    return inputs[:first], inputs[first : first + second], inputs[first + second :]


def _split(options: Options, inputs: Inputs) -> tuple[Inputs, Inputs, Tensor | None, Inputs]:
    """The same with the gate, in the shape of one image, before what follows it."""
    a, b, rest = apart(options, inputs)
    if not options.gated:
        return a, b, None, rest
    response = next(x for x in (a[0], b[0]) if x is not None)
    return a, b, shaped(rest[0], response), rest[1:]


def shaped(gate: Tensor, response: Tensor) -> Tensor:
    """One number for each channel, the second dimension, in the shape of one image."""
    return widen(gate).view(-1, *[1] * (response.dim() - 2))


def forward(options: Options, *inputs: Any) -> tuple[Tensor, ...]:  # noqa: ANN401
    """The forward formula: make both branches, fuse them, activate; with the spreads found."""
    a, b, gate, _ = _split(options, inputs)
    a, b = _spread(options.a, a), _spread(options.b, b)
    y = value(_made(options.a, a), _made(options.b, b), options.terms, options.eps, gate)
    y = narrow(torch.relu(y) if options.relu else y, options.dtype)
    branches = (options.a, a), (options.b, b)
    return y, *(inputs[4] for kind, inputs in branches if kind.name == "normalised")


def _spread(kind: Kind, inputs: Inputs) -> Inputs:
    if kind.name != "normalised":
        return inputs
    return *inputs[:4], torch.rsqrt(inputs[4] + kind.eps)


def pull(options: Options, *inputs: Any) -> tuple[Tensor, ...]:  # noqa: ANN401
    """The backward formula: gradients by both branches, or by what is normalised, and the gate."""
    a, b, gate, (grad, y) = _split(options, inputs)
    a, b = _again(options.a, a), _again(options.b, b)
    dtypes = [grad.dtype if raw is None else raw.dtype for raw in (a[0], b[0])]
    terms, eps, grad = options.terms, options.eps, widen(grad)
    p = _made_again(options.a, a)
    by_gate = []
    if options.b.solved:
        grad = torch.where(y > 0, grad, 0.0) if options.relu else grad
        by_a, by_b = solved_slopes(widen(y), p, terms, eps)
    else:
        q = _made_again(options.b, b)
        if options.relu:  # the response, made again, is one tensor less to keep and to read
            grad = torch.where(value_again(p, q, terms, eps, gate) > 0, grad, 0.0)
        by_a, by_b = slopes(p, q, terms, eps, gate)
        if gate is not None:
            by_gate = [_by_channel(grad * gate_slope(p, q, terms, eps))]
    by_a, by_b = grad * limited(by_a, dtypes[0]), grad * limited(by_b, dtypes[1])
    if options.a.name == "rectified":
        by_a = torch.where(a[0] > 0, by_a, 0.0)
    if options.b.name == "rectified" and not options.b.solved:
        by_b = torch.where(b[0] > 0, by_b, 0.0)
    return by_a.to(dtypes[0]), by_b.to(dtypes[1]), *by_gate


def _again(kind: Kind, inputs: Inputs) -> Inputs:
    """The inputs with a response that was not kept but can be made."""
    if kind.again is None:
        return inputs
    return kind.again(*inputs[1:], *kind.settings), *inputs[1:]


def _by_channel(x: Tensor) -> Tensor:
    """The sum for each channel, image by image."""
    return (x.sum(tuple(range(2, x.dim()))) if x.dim() > 2 else x).sum(0)


def pull_all(options: Options, *inputs: Any) -> tuple[Tensor | None, ...]:  # noqa: ANN401
    """The same with batch normalisation's gradients: three for each branch, then the gate's."""
    a, b, _, _ = _split(options, inputs)
    by_a, by_b, *by_gate = pull(options, *inputs)
    left, right = _unnormalised(options.a, a, by_a), _unnormalised(options.b, b, by_b)
    return *left, *right, *by_gate


def _unnormalised(kind: Kind, inputs: Inputs, grad: Tensor) -> tuple[Tensor | None, ...]:
    if kind.name != "normalised":
        return grad, None, None
    raw, weight, _, mean, invstd = inputs
    x, wide = widen(raw) - mean.view(-1, 1, 1), widen(_stored(grad))
    by_bias = _by_channel(wide)
    by_weight = _by_channel(wide * x) * invstd
    share = raw.shape[1] / raw.numel()
    scale = invstd if weight is None else _stored(invstd * weight)
    slope = _stored(-share * by_weight * invstd * scale)
    offset = _stored(-share * by_bias * scale)
    by_raw = wide * scale.view(-1, 1, 1) + x * slope.view(-1, 1, 1) + offset.view(-1, 1, 1)
    found = by_weight if weight is None else by_weight.to(weight.dtype)
    return by_raw.to(raw.dtype), found, by_bias


def _stored(x: Tensor) -> Tensor:
    """The same tensor, which Inductor then stores: else it computes it again at every use."""
    return x.as_strided(x.shape, x.stride())


def _made(kind: Kind, inputs: Inputs) -> Tensor:
    x: Tensor = widen(inputs[0])
    if kind.name == "rectified":
        return torch.relu(x)
    if kind.name == "normalised":
        _, weight, bias, mean, invstd = inputs
        scale = invstd if weight is None else invstd * weight
        shift = -mean * scale if bias is None else bias - mean * scale
        x = x * scale.view(-1, 1, 1) + shift.view(-1, 1, 1)
    return x


def _made_again(kind: Kind, inputs: Inputs) -> Tensor:
    """The same in other words, for the reason that `slopes` gives."""
    x: Tensor = widen(inputs[0])
    if kind.name == "rectified":
        return x.clamp_min(0)
    if kind.name == "normalised":
        _, weight, bias, mean, invstd = inputs
        scale = invstd if weight is None else invstd * weight
        x = (x - mean.view(-1, 1, 1)) * scale.view(-1, 1, 1)
        x = x if bias is None else x + bias.view(-1, 1, 1)
    return x
