"""Last steps of two branches, their fusion and its activation, as one function.

Written out, ``relu(x + bn(u) + sqrt(relu(x) * relu(bn(u)) + eps))`` keeps three more tensors for
the backward pass than ``relu(x + bn(u))`` does. But x is kept anyway, as the input of the block's
first convolution, and u as that of the batch normalisation. So the function here is told what the
branches are made of, keeps just that, and in the backward pass makes them again, and from them
what the activation lets through. docs/cost.md has the derivation.
"""

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sortnet.fusion import kernels
from sortnet.fusion.formulas import Inputs, Kind, Options, apart, forward, pull, pull_all
from sortnet.fusion.terms import sum_dtype, widen


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

    `again`, given the sources and the settings, does it the second time; where it only moves
    numbers about, the kernel reads them where they are. For a compiler's sake it should use other
    operations than made `raw`: it would take equal ones for one, and keep the result.
    """

    raw: Tensor
    sources: tuple[Tensor, ...]
    again: Callable[..., Tensor]
    settings: tuple[Hashable, ...] = ()

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
LARGEST_IMAGE = 1 << 19
"""Numbers in one image's response from which PyTorch's own backward pass of batch normalisation
is faster than a kernel that sums image by image: the image must stay in the cache for that."""


_PLAIN, _RECTIFIED = Kind("plain"), Kind("rectified")


def fused(
    a: Branch,
    b: Branch,
    terms: tuple[str, ...],
    eps: float,
    relu: bool,
    gate: Tensor | None = None,
) -> Tensor:
    """Fuse two branches, one of the terms being of second order.

    The caller has made sure that this can be done: shapes, dtypes, kinds of normalisation.
    """
    left, a_tensors = _taken_apart(a)
    right, b_tensors = _taken_apart(b)
    gates = () if gate is None else (gate,)
    counts, dtype = (len(a_tensors), len(b_tensors)), sum_dtype(a_tensors[0], b_tensors[0])
    if gate is None and _solvable(a, b, terms, dtype):  # with one, y may have two values of b
        right = right._replace(solved=True)
    options = Options(left, right, counts, terms, eps, relu, dtype, gate is not None)
    kernel, tensors = kernels.pay(a_tensors[0]), (*a_tensors, *b_tensors, *gates)
    if not torch.is_grad_enabled():
        y: Tensor = kernels.run(kernel, forward, options, tensors)[0]
    else:
        y = _Joint.apply(options, kernel, *tensors)
    return y


def _solvable(a: Branch, b: Branch, terms: tuple[str, ...], dtype: torch.dtype) -> bool:
    """Whether y is kept in place of b, which then can be told from it.

    Of two rectified branches as well: what follows them keeps y in most cases, and then b is
    saved; otherwise nothing is lost. But half precision does not tell whether a small b was there.
    """
    if isinstance(b, Solved):
        return terms == ("sum", "root") and b.raw.dtype == dtype
    if not (isinstance(a, Rectified) and isinstance(b, Rectified)):
        return False
    exact = b.raw.dtype == dtype and dtype in (torch.float32, torch.float64)
    return exact and terms == ("sum", "prod")


def _taken_apart(branch: Branch) -> tuple[Kind, Inputs]:
    if isinstance(branch, Tensor):
        return _PLAIN, (branch,)
    if isinstance(branch, Normalised):
        raw, norm = branch
        assert isinstance(norm, nn.BatchNorm2d)
        mean, var, train = _statistics(raw, norm)
        own = norm._parameters  # a module's attributes are slow to find
        tensors = (raw, own["weight"], own["bias"], mean, var)
        return Kind("normalised", train, norm.eps), tensors
    if isinstance(branch, Rectified):
        return _RECTIFIED, (branch.raw,)
    if isinstance(branch, Remade):
        again, settings = branch.again, branch.settings
        return Kind("plain", again=again, settings=settings), (branch.raw, *branch.sources)
    return _PLAIN, (branch.raw,)


def _statistics(raw: Tensor, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor, bool]:
    """Mean and variance as batch normalisation takes them, its running ones brought up to date."""
    own, train = norm._buffers, norm.training
    running = own["running_mean"], own["running_var"]
    if not train and running[0] is not None and running[1] is not None:
        return running[0], running[1], False
    factor = 0.0 if norm.momentum is None else norm.momentum
    if train and (tracked := own["num_batches_tracked"]) is not None:
        tracked.add_(1)
        if norm.momentum is None:
            factor = 1.0 / float(tracked)
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
    def forward(ctx: Any, options: Options, kernel: bool, *tensors: Any) -> Tensor:  # noqa: ANN401
        y: Tensor
        y, *spreads = kernels.run(kernel, forward, options, tensors)
        a, b, gates = apart(options, tensors)
        kept = *_kept(options.a, a, spreads[:1]), *_kept(options.b, b, spreads[-1:]), *gates
        ctx.save_for_backward(y if options.b.solved else None, *kept)
        ctx.plan = options, kernel
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # noqa: ANN401
        options, kernel = ctx.plan
        y, *kept = ctx.saved_tensors
        a, b, gates = apart(options, kept)
        a, b = _statistics_again(options.a, a), _statistics_again(options.b, b)
        inputs = *a, *b, *gates, grad, y
        if kernel and _sums_pay(grad, options.a, options.b):
            found = kernels.run(kernel, pull_all, options, inputs)
            by_a, by_b, rest = found[:3], found[3:6], found[6:]
        else:
            first, second, *rest = kernels.run(kernel, pull, options, inputs)
            by_a, by_b = (first,), (second,)
        by_gate = [x.to(gate.dtype) for gate, x in zip(gates, rest, strict=False)]
        by_tensors = *_gradients(options.a, a, by_a), *_gradients(options.b, b, by_b)
        return None, None, *by_tensors, *by_gate


def _sums_pay(grad: Tensor, *kinds: Kind) -> bool:
    """Whether the kernel should do batch normalisation's backward pass, too; by size alone.

    So should a compiler, which then stores the gradient by the branch, and does not compute it
    again for the sums and for the result.
    """
    normalised = [kind.train for kind in kinds if kind.name == "normalised"]
    if not normalised or not all(normalised):
        return False
    if not (kernels.active() or torch.compiler.is_compiling()):
        return False
    return grad.is_cpu and grad.numel() < LARGEST_IMAGE * grad.shape[0]


def _kept(kind: Kind, tensors: Inputs, spread: Inputs) -> Inputs:
    """The tensors without the response where it can be made again."""
    if kind.name == "normalised":
        return *tensors[:4], *spread
    return (None, *tensors[1:]) if kind.again or kind.solved else tensors


def _statistics_again(kind: Kind, kept: Inputs) -> Inputs:
    """The kept tensors; derivatives of the gradient go through the statistics, too."""
    if not kind.train or not kernels.differentiating():
        return kept
    var, mean = torch.var_mean(widen(kept[0]), (0, 2, 3), correction=0)
    return *kept[:3], mean, torch.rsqrt(var + kind.eps)


_normalised_backward = torch.ops.aten.native_batch_norm_backward.default


def _gradients(kind: Kind, tensors: Inputs, found: Inputs) -> Inputs:
    """The gradients by a branch's tensors, given that by its response or all that there are."""
    if kind.name != "normalised":
        return found[0], *[None] * (len(tensors) - 1)
    raw, weight, bias, mean, invstd = tensors
    if not kind.train:
        found = _frozen(tensors, found[0])
    elif len(found) == 1:
        # its own derivative knows that the statistics come of raw
        batch = mean.detach(), invstd.detach()
        wanted = [True, weight is not None, bias is not None]
        found = _normalised_backward(
            found[0], raw, weight, None, None, *batch, True, kind.eps, wanted
        )
    by_weight = None if weight is None else found[1]
    return found[0], by_weight, None if bias is None else found[2], None, None


def _frozen(tensors: Inputs, grad: Tensor) -> Inputs:
    """The gradients of a normalisation by running statistics, which is linear."""
    raw, weight, _, mean, invstd = tensors
    wide = widen(grad)
    scale = invstd if weight is None else invstd * weight
    by_weight = (wide * (raw - mean.view(-1, 1, 1))).sum((0, 2, 3)) * invstd
    return (wide * scale.view(-1, 1, 1)).to(raw.dtype), by_weight, wide.sum((0, 2, 3))
