"""What a branch is made of: how it responds, what it saves, how it is recomputed, its gradients.

Written out, ``relu(x + bn(u) + sqrt(relu(x) * relu(bn(u)) + eps))`` saves three more tensors for
backward than ``relu(x + bn(u))``. But x is saved anyway, as the input of the block's first
convolution, and u as that of the batch normalization. So a block says what its branches are made
of, and the fusion saves just that and recomputes the branches in backward. docs/cost.md has the
derivation.

The static methods are formulas: functions of tensors and of hashable settings alone, so that they
can be compiled (`sortnet.fusion.kernels`). `recompute` shares no subexpression with `forward`;
otherwise the compiler merges them and keeps the result alive until backward.
"""

from collections.abc import Callable, Hashable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sortnet.fusion import private
from sortnet.fusion.private import store
from sortnet.fusion.terms import widen

Settings = tuple[Any, ...]
Tensors = tuple[Any, ...]


class Branch:
    """A branch that is used as it is: the response itself is saved.

    Arguments:
        raw: The response.
    """

    settings: Settings = ()
    extras: ClassVar[int] = 0
    """How many tensors `forward` returns besides the response."""

    def __init__(self, raw: Tensor) -> None:
        self.raw = raw

    def response(self) -> Tensor:
        """Compute the response by PyTorch's own operations."""
        return self.raw

    def inputs(self) -> Tensors:
        """Return the tensors of which `forward` computes the response."""
        return (self.raw,)

    @staticmethod
    def forward(settings: Settings, *inputs: Any) -> Tensors:  # noqa: ANN401
        """Compute the response, in float32 at least, and the extras."""
        return (widen(inputs[0]),)

    @staticmethod
    def saved(inputs: Tensors, extras: Tensors) -> Tensors:
        """Return what is saved for backward."""
        return inputs

    @staticmethod
    def recompute(settings: Settings, *saved: Any) -> Tensor:  # noqa: ANN401
        """Compute the response from what was saved."""
        return widen(saved[0])

    @staticmethod
    def backward(settings: Settings, grad: Tensor, *saved: Any) -> Tensors:  # noqa: ANN401
        """Compute the gradients by the inputs from the gradient by the response."""
        return (grad.to(saved[0].dtype),)


class Rectified(Branch):
    """A branch that ends in ReLU.

    Arguments:
        raw: What ReLU is applied to; nothing else may use it.
    """

    def response(self) -> Tensor:
        """Apply ReLU."""
        return F.relu(self.raw, inplace=True)

    @staticmethod
    def forward(settings: Settings, *inputs: Any) -> Tensors:  # noqa: ANN401
        """Apply ReLU."""
        return (torch.relu(widen(inputs[0])),)

    @staticmethod
    def recompute(settings: Settings, *saved: Any) -> Tensor:  # noqa: ANN401
        """Apply ReLU."""
        return widen(saved[0]).clamp_min(0)

    @staticmethod
    def backward(settings: Settings, grad: Tensor, *saved: Any) -> Tensors:  # noqa: ANN401
        """Mask the gradient."""
        return (torch.where(saved[0] > 0, grad, 0.0).to(saved[0].dtype),)


class Recomputed(Branch):
    """A branch computed from tensors that are saved anyway, cheap enough to compute twice.

    Arguments:
        raw: The response, with its own graph.
        sources: The tensors that are saved in its place.
        again: Computes the response from the sources and the settings. For the compiler's sake
            by other operations than computed `raw`.
        settings: What else `again` takes.
    """

    def __init__(
        self,
        raw: Tensor,
        sources: tuple[Tensor, ...],
        again: Callable[..., Tensor],
        settings: tuple[Hashable, ...] = (),
    ) -> None:
        super().__init__(raw)
        self.sources = sources
        self.settings = (again, raw.dtype, *settings)

    def inputs(self) -> Tensors:
        """Return the response and its sources."""
        return self.raw, *self.sources

    @staticmethod
    def saved(inputs: Tensors, extras: Tensors) -> Tensors:
        """Save the sources in place of the response."""
        return inputs[1:]

    @staticmethod
    def recompute(settings: Settings, *saved: Any) -> Tensor:  # noqa: ANN401
        """Compute the response from the sources."""
        again, _, *rest = settings
        response: Tensor = again(*saved, *rest)
        return widen(response)

    @staticmethod
    def backward(settings: Settings, grad: Tensor, *saved: Any) -> Tensors:  # noqa: ANN401
        """Pass the gradient on to the response; its own graph leads to the sources."""
        return grad.to(settings[1]), *[None] * len(saved)


class Normalized(Branch):
    """A branch that ends in batch normalization.

    Arguments:
        raw: What is normalized.
        norm: The module that normalizes, an `nn.BatchNorm2d` where the fused path is used.
    """

    extras: ClassVar[int] = 1

    def __init__(self, raw: Tensor, norm: nn.Module) -> None:
        super().__init__(raw)
        self.norm = norm

    def response(self) -> Tensor:
        """Call the module."""
        response: Tensor = self.norm(self.raw)
        return response

    def inputs(self) -> Tensors:
        """Return raw, weight, bias, mean and variance; running statistics are updated."""
        norm = self.norm
        assert isinstance(norm, nn.BatchNorm2d)
        mean, var, train = _statistics(self.raw, norm)
        self.settings = (train, norm.eps)
        own = norm._parameters  # a module's attributes are slow to find
        return self.raw, own["weight"], own["bias"], mean, var

    @staticmethod
    def forward(settings: Settings, *inputs: Any) -> Tensors:  # noqa: ANN401
        """Normalize; the extra is 1 / sqrt(var + eps)."""
        raw, weight, bias, mean, var = _widened(inputs)
        invstd = torch.rsqrt(var + settings[1])
        scale = invstd if weight is None else invstd * weight
        shift = -mean * scale if bias is None else bias - mean * scale
        return raw * scale.view(-1, 1, 1) + shift.view(-1, 1, 1), invstd

    @staticmethod
    def saved(inputs: Tensors, extras: Tensors) -> Tensors:
        """Save raw, which batch normalization does, too, and numbers per channel."""
        return *inputs[:4], *extras

    @staticmethod
    def recompute(settings: Settings, *saved: Any) -> Tensor:  # noqa: ANN401
        """Normalize."""
        raw, weight, bias, mean, invstd = _widened(saved)
        scale = invstd if weight is None else invstd * weight
        x: Tensor = (raw - mean.view(-1, 1, 1)) * scale.view(-1, 1, 1)
        return x if bias is None else x + bias.view(-1, 1, 1)

    @staticmethod
    def backward(settings: Settings, grad: Tensor, *saved: Any) -> Tensors:  # noqa: ANN401
        """Compute batch normalization's gradients, by batch or by running statistics."""
        raw, weight, bias, mean, invstd = saved
        x = widen(raw) - widen(mean).view(-1, 1, 1)
        wide = widen(store(grad.to(raw.dtype)))
        by_bias = sum_by_channel(wide)
        by_weight = sum_by_channel(wide * x) * invstd
        scale = invstd if weight is None else store(invstd * widen(weight))
        by_raw = wide * scale.view(-1, 1, 1)
        if settings[0]:  # the statistics depend on raw, too
            share = raw.shape[1] / raw.numel()
            slope = store(-share * by_weight * invstd * scale)
            offset = store(-share * by_bias * scale)
            by_raw = by_raw + x * slope.view(-1, 1, 1) + offset.view(-1, 1, 1)
        return (
            by_raw.to(raw.dtype),
            None if weight is None else by_weight.to(weight.dtype),
            None if bias is None else by_bias.to(bias.dtype),
            None,
            None,
        )

    @staticmethod
    def backward_by_pytorch(settings: Settings, grad: Tensor, *saved: Any) -> Tensors:  # noqa: ANN401
        """Compute the same by PyTorch's operator, which is faster for large images."""
        if not settings[0]:
            return Normalized.backward(settings, grad, *saved)
        raw, weight, bias, mean, invstd = saved
        wanted = [True, weight is not None, bias is not None]
        # its own derivative knows that the statistics depend on raw
        batch = mean.detach(), invstd.detach()
        by_raw, by_weight, by_bias = private.batch_norm_backward(
            grad.to(raw.dtype), raw, weight, None, None, *batch, True, settings[1], wanted
        )
        return (
            by_raw,
            by_weight if weight is not None else None,
            by_bias if bias is not None else None,
            None,
            None,
        )

    @staticmethod
    def differentiable(settings: Settings, *saved: Any) -> Tensors:  # noqa: ANN401
        """Return what was saved with statistics that gradients of gradients can pass through."""
        if not settings[0]:
            return saved
        var, mean = torch.var_mean(widen(saved[0]), (0, 2, 3), correction=0)
        return *saved[:3], mean, torch.rsqrt(var + settings[1])


def _widened(tensors: Tensors) -> Tensors:
    return tuple([None if x is None else widen(x) for x in tensors])


def sum_by_channel(x: Tensor) -> Tensor:
    """Sum over all but the second dimension, image by image."""
    return (x.sum(tuple(range(2, x.dim()))) if x.dim() > 2 else x).sum(0)


def _statistics(raw: Tensor, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor, bool]:
    """Return mean and variance as batch normalization takes them, and whether they are raw's."""
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
