"""A branch that ends in batch normalization."""

from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor, nn

from sortnet.fusion import private
from sortnet.fusion.branches import Branch
from sortnet.fusion.formulas import HALF, sum_by_channel, widen
from sortnet.fusion.private import store


class NormInputs(NamedTuple):
    """The tensors of batch normalization; their gradients."""

    raw: Tensor
    weight: Tensor | None
    bias: Tensor | None
    mean: Tensor | None = None
    var: Tensor | None = None


class NormSaved(NamedTuple):
    """What batch normalization saves: its input, which PyTorch saves as well, and vectors."""

    raw: Tensor
    weight: Tensor | None
    bias: Tensor | None
    mean: Tensor
    invstd: Tensor


class NormSettings(NamedTuple):
    """What batch normalization depends on besides tensors.

    Attributes:
        from_batch: Whether mean and variance are computed from the batch.
        eps: Added to the variance.
    """

    from_batch: bool
    eps: float


class Normalized(Branch):
    """A branch that ends in batch normalization.

    Arguments:
        raw: The input of the normalization.
        norm: The module that normalizes it; an `nn.BatchNorm2d` can be fused.
    """

    replaces = nn.BatchNorm2d
    Inputs = NormInputs
    Saved = NormSaved
    extras = 1

    def __init__(self, raw: Tensor, norm: nn.Module) -> None:
        super().__init__(raw)
        self.module = norm

    def unsupported(self) -> str | None:
        """Return why this normalization is left to PyTorch, or None."""
        norm, raw = self.module, self.raw
        assert isinstance(norm, nn.BatchNorm2d)
        if raw.dim() != 4 or norm.num_features != raw.shape[1]:
            return "the input of nn.BatchNorm2d does not have the shape it needs"
        if norm.momentum is None and torch.compiler.is_compiling():
            return "cumulative running statistics are not compiled"
        if raw.numel() <= raw.shape[1]:
            return "batch normalization needs more than one value per channel"
        return None

    def inputs(self) -> NormInputs:
        """Return the tensors to normalize with, and update the running statistics."""
        norm = self.module
        assert isinstance(norm, nn.BatchNorm2d)
        mean, var, from_batch = _statistics(self.raw, norm)
        self.settings = NormSettings(from_batch, norm.eps)
        own = norm._parameters  # faster than a module's attributes
        return NormInputs(self.raw, own["weight"], own["bias"], mean, var)

    @classmethod
    def forward(cls, settings: NormSettings, inputs: NormInputs) -> tuple[Tensor, Tensor]:
        """Normalize; the extra is 1 / sqrt(var + eps)."""
        raw, weight, bias, mean, var = _widened(inputs)
        invstd = torch.rsqrt(var + settings.eps)
        scale = invstd if weight is None else invstd * weight
        shift = -mean * scale if bias is None else bias - mean * scale
        return raw * scale.view(-1, 1, 1) + shift.view(-1, 1, 1), invstd

    @classmethod
    def save(cls, inputs: NormInputs, *extras: Tensor) -> NormSaved:
        """Save the input of the normalization, not its output."""
        assert inputs.mean is not None
        return NormSaved(inputs.raw, inputs.weight, inputs.bias, inputs.mean, extras[0])

    @classmethod
    def recompute(cls, settings: NormSettings, saved: NormSaved) -> Tensor:
        """Normalize."""
        raw, weight, bias, mean, invstd = _widened(saved)
        scale = invstd if weight is None else invstd * weight
        x: Tensor = (raw - mean.view(-1, 1, 1)) * scale.view(-1, 1, 1)
        return x if bias is None else x + bias.view(-1, 1, 1)

    @classmethod
    def backward(cls, settings: NormSettings, saved: NormSaved, grad: Tensor) -> NormInputs:
        """Compute the gradients of batch normalization, for batch or running statistics."""
        raw, weight, bias, mean, invstd = saved
        x = widen(raw) - widen(mean).view(-1, 1, 1)
        wide = widen(store(grad.to(raw.dtype)))
        by_bias = sum_by_channel(wide)
        by_weight = sum_by_channel(wide * x) * invstd
        scale = invstd if weight is None else store(invstd * widen(weight))
        by_raw = wide * scale.view(-1, 1, 1)
        if settings.from_batch:  # the statistics depend on raw as well
            share = raw.shape[1] / raw.numel()
            slope = store(-share * by_weight * invstd * scale)
            offset = store(-share * by_bias * scale)
            by_raw = by_raw + x * slope.view(-1, 1, 1) + offset.view(-1, 1, 1)
        return NormInputs(
            by_raw.to(raw.dtype),
            None if weight is None else by_weight.to(weight.dtype),
            None if bias is None else by_bias.to(bias.dtype),
        )

    @classmethod
    def backward_by_pytorch(
        cls, settings: NormSettings, saved: NormSaved, grad: Tensor
    ) -> NormInputs:
        """Compute the same by PyTorch's operator, which is faster for large images."""
        if not settings.from_batch:
            return cls.backward(settings, saved, grad)
        raw, weight, bias, mean, invstd = saved
        wanted = [True, weight is not None, bias is not None]
        # the operator's own derivative takes the dependence of the statistics on raw into account
        batch = mean.detach(), invstd.detach()
        by_raw, by_weight, by_bias = private.batch_norm_backward(
            grad.to(raw.dtype), raw, weight, None, None, *batch, True, settings.eps, wanted
        )
        return NormInputs(
            by_raw,
            by_weight if weight is not None else None,
            by_bias if bias is not None else None,
        )

    @classmethod
    def differentiable(cls, settings: NormSettings, saved: NormSaved) -> NormSaved:
        """Recompute the saved statistics, so that second derivatives pass through them."""
        if not settings.from_batch:
            return saved
        var, mean = torch.var_mean(widen(saved.raw), (0, 2, 3), correction=0)
        return saved._replace(mean=mean, invstd=torch.rsqrt(var + settings.eps))


def defer_batch_norm(module: nn.Module, x: Tensor) -> Tensor | Branch:
    """Compute ``module(x)``, except for batch normalization as its last step.

    The fusion computes that step (`Normalized`). A sequence with hooks is called as a whole.
    """
    if isinstance(module, nn.BatchNorm2d):
        return Normalized(x, module)
    if is_plain_sequential(module) and len(module) and not private.hooked(module):
        *steps, last = module
        for step in steps:
            x = step(x)
        return defer_batch_norm(last, x)
    response: Tensor = module(x)
    return response


def is_plain_sequential(module: nn.Module) -> TypeGuard[nn.Sequential]:
    """Return True for an `nn.Sequential` whose `forward` is not overridden."""
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def _widened(tensors: tuple[Tensor | None, ...]) -> tuple[Any, ...]:
    return tuple([None if x is None else widen(x) for x in tensors])


def _statistics(raw: Tensor, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor, bool]:
    """Return the mean and variance to normalize with, and whether they are those of the batch."""
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
        # in half precision the operator's statistics have the dtype of the running ones
        exact = raw.dtype not in HALF or getattr(running[0], "dtype", None) == torch.float32
        if exact and not torch.compiler.is_compiling():
            mean, var = private.batch_norm_update_stats(raw, *running, factor)
            return mean, var, True
        var, mean = torch.var_mean(widen(raw), (0, 2, 3), correction=0)
        if running[0] is not None and running[1] is not None:
            count = raw.numel() // raw.shape[1]
            unbiased = var * (count / (count - 1))
            running[0].lerp_(mean.to(running[0].dtype), factor)
            running[1].lerp_(unbiased.to(running[1].dtype), factor)
    return mean, var, True
