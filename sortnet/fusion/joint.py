"""Last steps of two branches, their fusion and its activation, as one function.

Written out, ``relu(x + bn(u) + sqrt(relu(x) * relu(bn(u)) + eps))`` keeps three more tensors for
the backward pass than ``relu(x + bn(u))`` does. But x is kept anyway, as the input of the block's
first convolution, u as that of the batch normalisation, and the result as the next block's input.
So the function here is told what the branches are made of, keeps just that, and makes them again
in the backward pass. docs/cost.md has the derivation.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sortnet.fusion import kernels
from sortnet.fusion.terms import limited, narrow, slopes, solved_slopes, sum_dtype, value, widen


class Rectified(NamedTuple):
    """A branch that ends in ReLU."""

    raw: Tensor

    def response(self) -> Tensor:
        """The branch's response, by itself."""
        return F.relu(self.raw, inplace=True)


class Normalised(NamedTuple):
    """A branch that ends in batch normalisation."""

    raw: Tensor
    norm: nn.Module

    def response(self) -> Tensor:
        """The branch's response, by itself."""
        response: Tensor = self.norm(self.raw)
        return response


class Remade(NamedTuple):
    """A branch made from tensors that are kept anyway, by something cheap enough to do twice.

    `again` does it the second time. For a compiler's sake it should use other operations than
    made `raw`: it would take equal ones for one, and keep the result.
    """

    raw: Tensor
    sources: tuple[Tensor, ...]
    again: Callable[..., Tensor]

    def response(self) -> Tensor:
        """The branch's response, by itself."""
        return self.raw


class Solved(NamedTuple):
    """A branch that can be told from the fused response, which what follows keeps anyway."""

    raw: Tensor

    def response(self) -> Tensor:
        """The branch's response, by itself."""
        return self.raw


Branch = Tensor | Rectified | Normalised | Remade | Solved
Inputs = tuple[Any, ...]
"""Of a formula, for one branch: raw, and where it is normalised mean, scale and bias."""


class Options(NamedTuple):
    """What a formula is about: the branches' kinds, the fusion, and the result's dtype."""

    a: str
    b: str
    terms: tuple[str, ...]
    eps: float
    relu: bool
    dtype: torch.dtype


class _Part(NamedTuple):
    """A branch taken apart: its kind, its tensors, and what is needed to make it again."""

    kind: str
    tensors: tuple[Tensor | None, ...]
    extra: Any = None


def fused(a: Branch, b: Branch, terms: tuple[str, ...], eps: float, relu: bool) -> Tensor:
    """Fuse two branches, one of the terms being of second order.

    The caller has made sure that this can be done: shapes, dtypes, kinds of normalisation.
    """
    raws = [branch if isinstance(branch, Tensor) else branch.raw for branch in (a, b)]
    left, right = _taken_apart(a, terms), _taken_apart(b, terms)
    options = Options(left.kind, right.kind, terms, eps, relu, sum_dtype(*raws))
    kernel = kernels.pay(raws[0])
    if not torch.is_grad_enabled():
        inputs = (*_inputs(left.kind, left.tensors), *_inputs(right.kind, right.tensors))
        response: Tensor = kernels.run(kernel, _fuse, options, *inputs)
        return response
    extras = (left.extra, right.extra, len(left.tensors), kernel)
    y: Tensor = _Joint.apply(options, extras, *left.tensors, *right.tensors)
    return y


def _taken_apart(branch: Branch, terms: tuple[str, ...]) -> _Part:
    if isinstance(branch, Tensor):
        return _Part("plain", (branch,))
    if isinstance(branch, Rectified):
        return _Part("rectified", (branch.raw,))
    if isinstance(branch, Remade):
        return _Part("plain", (branch.raw, *branch.sources), branch.again)
    if isinstance(branch, Solved):
        return _Part("solved" if terms == ("sum", "root") else "plain", (branch.raw,))
    raw, norm = branch
    assert isinstance(norm, nn.BatchNorm2d)
    mean, var, train = _statistics(raw, norm)
    tensors = (raw, norm.weight, norm.bias, mean, torch.rsqrt(var + norm.eps))
    return _Part("normalised", tensors, (train, norm.eps))


def _statistics(raw: Tensor, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor, bool]:
    """Mean and variance as batch normalisation takes them, its running ones brought up to date."""
    if not norm.training and norm.running_mean is not None and norm.running_var is not None:
        return norm.running_mean, norm.running_var, False
    running = (norm.running_mean, norm.running_var) if norm.training else (None, None)
    factor = 0.0 if norm.momentum is None else norm.momentum
    if norm.training and norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
        if norm.momentum is None:
            factor = 1.0 / float(norm.num_batches_tracked)
    with torch.no_grad():
        if not torch.compiler.is_compiling():
            mean, var = torch.batch_norm_update_stats(raw, *running, factor)
            return mean, var, True
        var, mean = torch.var_mean(widen(raw), (0, 2, 3), correction=0)
        if running[0] is not None and running[1] is not None:
            count = raw.numel() // raw.shape[1]
            running[0].lerp_(mean, factor)
            running[1].lerp_(var * (count / (count - 1)), factor)
    return mean, var, True


class _Joint(torch.autograd.Function):
    """Fusion by `value`, its gradient by `slopes`, both on branches made on the spot."""

    @staticmethod
    def forward(ctx: Any, options: Options, extras: Any, *tensors: Any) -> Tensor:  # noqa: ANN401
        extra_a, extra_b, count, kernel = extras
        a, b = tensors[:count], tensors[count:]
        inputs = (*_inputs(options.a, a), *_inputs(options.b, b))
        y: Tensor = kernels.run(kernel, _fuse, options, *inputs)
        kept = (*_kept(options.a, a, extra_a), *_kept(options.b, b, extra_b))
        ctx.save_for_backward(y if options.relu or options.b == "solved" else None, *kept)
        ctx.options, ctx.extras = options, extras
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # noqa: ANN401
        options = ctx.options
        extra_a, extra_b, count, kernel = ctx.extras
        y, *kept = ctx.saved_tensors
        a = _again(options.a, kept[:count], extra_a)
        b = _again(options.b, kept[count:], extra_b)
        inputs = (*_inputs(options.a, a), *_inputs(options.b, b))
        by_a, by_b = kernels.run(kernel, _pull, options, *inputs, grad, y)
        by_a = _gradients(options.a, a, extra_a, by_a)
        return None, None, *by_a, *_gradients(options.b, b, extra_b, by_b)


def _fuse(options: Options, *inputs: Any) -> Tensor:  # noqa: ANN401
    """The forward formula: make both branches, fuse them, activate."""
    a, b = _made(options.a, inputs[:4]), _made(options.b, inputs[4:])
    y = value(a, b, options.terms, options.eps)
    return narrow(torch.relu(y) if options.relu else y, options.dtype)


def _pull(options: Options, *inputs: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401
    """The backward formula: the gradients by both branches, or by what is normalised."""
    a, b, grad, y = inputs[:4], inputs[4:8], inputs[8], inputs[9]
    dtypes = [grad.dtype if raw is None else raw.dtype for raw in (a[0], b[0])]
    grad = widen(grad)
    if options.relu:
        grad = torch.where(y > 0, grad, 0.0)
    p = _made_again(options.a, a)
    if options.b == "solved":
        by_a, by_b = solved_slopes(widen(y), p, options.eps)
    else:
        by_a, by_b = slopes(p, _made_again(options.b, b), options.terms, options.eps)
    by_a, by_b = grad * limited(by_a, dtypes[0]), grad * limited(by_b, dtypes[1])
    if options.a == "rectified":
        by_a = torch.where(a[0] > 0, by_a, 0.0)
    if options.b == "rectified":
        by_b = torch.where(b[0] > 0, by_b, 0.0)
    return by_a.to(dtypes[0]), by_b.to(dtypes[1])


def _made(kind: str, inputs: Inputs) -> Tensor:
    raw, mean, scale, bias = inputs
    x: Tensor = widen(raw)
    if kind == "rectified":
        return torch.relu(x)
    if kind == "normalised":
        x = x * scale + (bias - mean * scale)
    return x


def _made_again(kind: str, inputs: Inputs) -> Tensor:
    """The same in other words, for the reason that `slopes` gives."""
    raw, mean, scale, bias = inputs
    x: Tensor = widen(raw)
    if kind == "rectified":
        return x.clamp_min(0)
    if kind == "normalised":
        x = (x - mean) * scale + bias
    return x


def _inputs(kind: str, tensors: Sequence[Any]) -> Inputs:
    """What the formulas take of a branch: raw, and if it is normalised mean, scale and bias."""
    if kind != "normalised":
        return tensors[0], None, None, None
    raw, weight, bias, mean, invstd = tensors
    scale = invstd if weight is None else invstd * weight
    bias = torch.zeros_like(mean) if bias is None else bias
    return raw, *(x.view(-1, 1, 1) for x in (mean, scale, bias))


def _kept(kind: str, tensors: Sequence[Any], extra: Any) -> tuple[Any, ...]:  # noqa: ANN401
    """The tensors without the response where it can be made again."""
    needless = kind == "solved" or (kind == "plain" and extra is not None)
    return (None if needless else tensors[0], *tensors[1:])


def _again(kind: str, kept: Sequence[Any], extra: Any) -> tuple[Any, ...]:  # noqa: ANN401
    """The kept tensors and what can be made of them."""
    if kind == "plain" and extra is not None:
        return (extra(*kept[1:]), *kept[1:])
    if kind == "normalised" and extra[0] and kernels.differentiating():
        # Derivatives of the gradient go through the statistics, too.
        var, mean = torch.var_mean(widen(kept[0]), (0, 2, 3), correction=0)
        return (*kept[:3], mean, torch.rsqrt(var + extra[1]))
    return tuple(kept)


def _gradients(kind: str, tensors: Sequence[Any], extra: Any, grad: Tensor) -> tuple[Any, ...]:  # noqa: ANN401
    """The gradients by a branch's tensors, given that by its response."""
    if kind != "normalised":
        return (grad, *[None] * (len(tensors) - 1))
    raw, weight, bias, mean, invstd = tensors
    train, eps = extra
    if not train:
        return _frozen(tensors, grad)
    mask = [True, weight is not None, bias is not None]
    batch = mean.detach(), invstd.detach()  # its own derivative knows that these come of raw
    by_raw, by_weight, by_bias = torch.ops.aten.native_batch_norm_backward(
        grad, raw, weight, None, None, *batch, True, eps, mask
    )
    return by_raw, by_weight, by_bias, None, None


def _frozen(tensors: Sequence[Any], grad: Tensor) -> tuple[Any, ...]:
    """The gradients of a normalisation by running statistics, which is linear."""
    raw, weight, bias, _, invstd = tensors
    _, mean, scale, _ = _inputs("normalised", tensors)
    wide = widen(grad)
    by_weight = None if weight is None else (wide * (raw - mean)).sum((0, 2, 3)) * invstd
    by_bias = None if bias is None else wide.sum((0, 2, 3))
    return (wide * scale).to(raw.dtype), by_weight, by_bias, None, None
