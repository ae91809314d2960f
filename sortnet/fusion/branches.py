"""Kinds of branches: how each computes its response, what it saves, its gradients.

Written out, ``relu(x + bn(u) + sqrt(relu(x) * relu(bn(u)) + eps))`` saves three more tensors for
backward than ``relu(x + bn(u))``. But x is saved anyway, as the input of the block's first
convolution, and u as the input of the batch normalization. So a block passes the last step of a
branch to the fusion instead of computing it (`Normalized`, `Rectified`); the fusion saves the
input of that step and recomputes the branch in backward. docs/cost.md has the derivation.

The class methods of a branch are formulas: functions of tensors and hashable settings alone, so
that they can be compiled (`sortnet.fusion.kernels`). `recompute` shares no subexpression with
`forward`; otherwise the compiler merges them and keeps the result alive until backward.
"""

from collections.abc import Hashable
from typing import Any, ClassVar, NamedTuple, TypeGuard

import torch
from torch import Tensor, nn

from sortnet.fusion import private
from sortnet.fusion.formulas import widen
from sortnet.fusion.private import store


class Raw(NamedTuple):
    """The only tensor of a branch, as its input and as what it saves."""

    raw: Tensor


class Branch:
    """A branch whose response is already computed, and is saved.

    Arguments:
        raw: The response.

    Attributes:
        raw: The tensor that the last step of the branch is applied to.
        module: The last step, which the formulas replace; None if there is no such step.
        settings: What the formulas depend on besides tensors.
    """

    replaces: ClassVar[type[nn.Module] | None] = None
    """The type of `module` that the formulas replace; any other type is called instead."""
    Inputs: ClassVar[Any] = Raw
    """The tensors that `forward` takes; gradients have the same fields."""
    Saved: ClassVar[Any] = Raw
    """The tensors saved for backward."""
    extras: ClassVar[int] = 0
    """How many tensors `forward` returns besides the response, for `save`."""

    module: nn.Module | None = None
    settings: Hashable = None

    def __init__(self, raw: Tensor) -> None:
        self.raw = raw

    def response(self) -> Tensor:
        """Compute the response by PyTorch's own operations."""
        response: Tensor = self.raw if self.module is None else self.module(self.raw)
        return response

    def unsupported(self) -> str | None:
        """Return why the formulas cannot replace this module, or None."""
        return None

    def inputs(self) -> Any:  # noqa: ANN401
        """Return the tensors that `forward` takes, as `Inputs`."""
        return Raw(self.raw)

    @classmethod
    def forward(cls, settings: Any, inputs: Any) -> tuple[Tensor, ...]:  # noqa: ANN401
        """Compute the response, in float32 or wider, and the extras."""
        return (widen(inputs.raw),)

    @classmethod
    def save(cls, inputs: Any, *extras: Tensor) -> Any:  # noqa: ANN401
        """Return the tensors to save for backward, as `Saved`."""
        return inputs

    @classmethod
    def recompute(cls, settings: Any, saved: Any) -> Tensor:  # noqa: ANN401
        """Compute the response from the saved tensors."""
        return widen(saved.raw)

    @classmethod
    def backward(cls, settings: Any, saved: Any, grad: Tensor) -> Any:  # noqa: ANN401
        """Compute the gradients of the inputs from the gradient of the response."""
        return Raw(grad.to(saved.raw.dtype))


def as_branch(x: Tensor | Branch) -> Branch:
    """Return a `Branch`; a tensor is the response of one."""
    return x if isinstance(x, Branch) else Branch(x)


class Rectified(Branch):
    """A branch that ends in ReLU.

    Arguments:
        raw: The input of ReLU; nothing else may use it.
        act: The module that is applied to it; an `nn.ReLU` can be fused.
    """

    replaces = nn.ReLU

    def __init__(self, raw: Tensor, act: nn.Module) -> None:
        super().__init__(raw)
        self.module = act

    @classmethod
    def forward(cls, settings: None, inputs: Raw) -> tuple[Tensor]:
        """Apply ReLU."""
        return (torch.relu(widen(inputs.raw)),)

    @classmethod
    def recompute(cls, settings: None, saved: Raw) -> Tensor:
        """Apply ReLU."""
        return widen(saved.raw).clamp_min(0)

    @classmethod
    def backward(cls, settings: None, saved: Raw, grad: Tensor) -> Raw:
        """Mask the gradient."""
        return Raw(torch.where(saved.raw > 0, grad, 0.0).to(saved.raw.dtype))


class RecomputedInputs(NamedTuple):
    """The response of the module, its input, its weight; only the response has a gradient."""

    raw: Tensor
    x: Tensor | None = None
    weight: Tensor | None = None


class RecomputedSaved(NamedTuple):
    """The input and the weight of the module."""

    x: Tensor
    weight: Tensor | None


class RecomputedSettings(NamedTuple):
    """The dtype of the response, and what the module does."""

    dtype: torch.dtype
    out_channels: int
    stride: int


class Recomputed(Branch):
    """A branch computed by a module whose input is saved anyway, cheap enough to compute twice.

    The module computes the response, whose own graph leads to the input and the weight. A subclass
    defines `recompute`, by other operations than those of the module.

    Arguments:
        module: The module.
        x: Its input.
        out_channels: Channels of the response.
        stride: Of the module.
    """

    Inputs = RecomputedInputs
    Saved = RecomputedSaved

    def __init__(self, module: nn.Module, x: Tensor, out_channels: int, stride: int) -> None:
        super().__init__(module(x))
        self.module, self.x = module, x
        self.settings = RecomputedSettings(self.raw.dtype, out_channels, stride)

    def response(self) -> Tensor:
        """Return the response of the module."""
        return self.raw

    def inputs(self) -> RecomputedInputs:
        """Return the response, and what it is recomputed from."""
        assert self.module is not None
        return RecomputedInputs(self.raw, self.x, self.module._parameters.get("weight"))

    @classmethod
    def save(cls, inputs: RecomputedInputs, *extras: Tensor) -> RecomputedSaved:
        """Save the input and the weight of the module, not the response."""
        assert inputs.x is not None
        return RecomputedSaved(inputs.x, inputs.weight)

    @classmethod
    def backward(
        cls, settings: RecomputedSettings, saved: RecomputedSaved, grad: Tensor
    ) -> RecomputedInputs:
        """Pass the gradient to the response; its own graph computes the rest."""
        return RecomputedInputs(grad.to(settings.dtype))


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
        """Recompute the saved statistics such that second derivatives pass through them."""
        if not settings.from_batch:
            return saved
        var, mean = torch.var_mean(widen(saved.raw), (0, 2, 3), correction=0)
        return saved._replace(mean=mean, invstd=torch.rsqrt(var + settings.eps))


def defer_norm(module: nn.Module, x: Tensor) -> Tensor | Branch:
    """Compute ``module(x)``, except for batch normalization as its last step.

    The fusion computes that step (`Normalized`). A sequence with hooks is called as a whole.
    """
    if isinstance(module, nn.BatchNorm2d):
        return Normalized(x, module)
    if is_plain_sequential(module) and len(module) and not private.hooked(module):
        *steps, last = module
        for step in steps:
            x = step(x)
        return defer_norm(last, x)
    response: Tensor = module(x)
    return response


def is_plain_sequential(module: nn.Module) -> TypeGuard[nn.Sequential]:
    """Return True for an `nn.Sequential` whose `forward` is not overridden."""
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def _widened(tensors: tuple[Tensor | None, ...]) -> tuple[Any, ...]:
    return tuple([None if x is None else widen(x) for x in tensors])


def sum_by_channel(x: Tensor) -> Tensor:
    """Sum over all dimensions except the second, image by image."""
    return (x.sum(tuple(range(2, x.dim()))) if x.dim() > 2 else x).sum(0)


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
        exact = (
            raw.dtype == widen(raw).dtype or getattr(running[0], "dtype", None) == torch.float32
        )
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
