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
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from sortnet.fusion.formulas import widen


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
