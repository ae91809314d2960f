"""The formulas of the joint function, forward and backward, as functions of tensors alone.

`sortnet.fusion.kernels` runs them as they stand or has kernels made of them. Their inputs are
those of branch a, those of branch b, the gate if there is one and, backward, the gradient and the
response.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sortnet.fusion.terms import gate_slope, limited, narrow, slopes, solved_slopes, value, widen

Inputs = Sequence[Any]
"""Of a formula, for one branch: raw, and where it is normalised weight, bias, mean and spread.

The spread is the variance in the forward formula, and 1 / sqrt(variance + eps), which that one
gives, in the backward formula.
"""


class Options(NamedTuple):
    """What a formula is about: the branches' kinds, the fusion, and the result's dtype."""

    a: str
    b: str
    terms: tuple[str, ...]
    eps: float
    relu: bool
    dtype: torch.dtype
    norm_eps: tuple[float, float]
    gated: bool


def _split(options: Options, inputs: Inputs) -> tuple[Inputs, Inputs, Tensor | None, Inputs]:
    """The inputs of a, of b, the gate in the shape of one image, and what follows them."""
    first, second = (5 if name == "normalised" else 1 for name in (options.a, options.b))
    a, b, rest = inputs[:first], inputs[first : first + second], inputs[first + second :]
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
    a, b = _spread(a, options.norm_eps[0]), _spread(b, options.norm_eps[1])
    y = value(_made(options.a, a), _made(options.b, b), options.terms, options.eps, gate)
    y = narrow(torch.relu(y) if options.relu else y, options.dtype)
    return y, *a[4:], *b[4:]


def _spread(inputs: Inputs, eps: float) -> Inputs:
    return *inputs[:4], *(torch.rsqrt(var + eps) for var in inputs[4:])


def pull(options: Options, *inputs: Any) -> tuple[Tensor, ...]:  # noqa: ANN401
    """The backward formula: gradients by both branches, or by what is normalised, and the gate."""
    a, b, gate, (grad, y) = _split(options, inputs)
    dtypes = [grad.dtype if raw is None else raw.dtype for raw in (a[0], b[0])]
    grad = widen(grad)
    if options.relu:
        grad = torch.where(y > 0, grad, 0.0)
    p = _made_again(options.a, a)
    by_gate = []
    if options.b == "solved":
        by_a, by_b = solved_slopes(widen(y), p, options.eps)
    else:
        q = _made_again(options.b, b)
        by_a, by_b = slopes(p, q, options.terms, options.eps, gate)
        if gate is not None:
            by_gate = [_by_channel(grad * gate_slope(p, q, options.terms, options.eps))]
    by_a, by_b = grad * limited(by_a, dtypes[0]), grad * limited(by_b, dtypes[1])
    if options.a == "rectified":
        by_a = torch.where(a[0] > 0, by_a, 0.0)
    if options.b == "rectified":
        by_b = torch.where(b[0] > 0, by_b, 0.0)
    return by_a.to(dtypes[0]), by_b.to(dtypes[1]), *by_gate


def _by_channel(x: Tensor) -> Tensor:
    """The sum for each channel, image by image."""
    return (x.sum(tuple(range(2, x.dim()))) if x.dim() > 2 else x).sum(0)


def pull_all(options: Options, *inputs: Any) -> tuple[Tensor | None, ...]:  # noqa: ANN401
    """The same with batch normalisation's gradients: three for each branch, then the gate's."""
    a, b, _, _ = _split(options, inputs)
    by_a, by_b, *by_gate = pull(options, *inputs)
    left, right = _unnormalised(options.a, a, by_a), _unnormalised(options.b, b, by_b)
    return *left, *right, *by_gate


def _unnormalised(name: str, inputs: Inputs, grad: Tensor) -> tuple[Tensor | None, ...]:
    if name != "normalised":
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


def _made(name: str, inputs: Inputs) -> Tensor:
    x: Tensor = widen(inputs[0])
    if name == "rectified":
        return torch.relu(x)
    if name == "normalised":
        _, weight, bias, mean, invstd = inputs
        scale = invstd if weight is None else invstd * weight
        shift = -mean * scale if bias is None else bias - mean * scale
        x = x * scale.view(-1, 1, 1) + shift.view(-1, 1, 1)
    return x


def _made_again(name: str, inputs: Inputs) -> Tensor:
    """The same in other words, for the reason that `slopes` gives."""
    x: Tensor = widen(inputs[0])
    if name == "rectified":
        return x.clamp_min(0)
    if name == "normalised":
        _, weight, bias, mean, invstd = inputs
        scale = invstd if weight is None else invstd * weight
        x = (x - mean.view(-1, 1, 1)) * scale.view(-1, 1, 1)
        x = x if bias is None else x + bias.view(-1, 1, 1)
    return x
