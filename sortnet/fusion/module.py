"""The fusion as a module, which is what a block is given, and `join`, which is how it calls it."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.overrides import has_torch_function

from sortnet.fusion import joint, kernels
from sortnet.fusion.functional import differentiable_once, fuse
from sortnet.fusion.joint import Branch, Normalised
from sortnet.fusion.terms import EPS, SECOND_ORDER, parse

GATES = {"zero": 0.0, "one": 1.0}


class Fusion(nn.Module):
    r"""Fuse two branches by the terms of its name.

    With a gate the second-order part of the fusion is weighted by a learnable number per channel,

    .. math:: y = a + b + \gamma_c \, g(a \odot b),

    which goes beyond the paper: from ``zero`` a converted network starts out exactly as it was.
    Without one a fusion has neither parameters nor state.

    Arguments:
        terms: ``sum``, ``max``, ``prod``, ``root``, ``square`` joined by ``+``, or ``sort``.
        block: The kind of block it stands in, which tells what ``sort`` means: ``branches``
            (``sum+prod``) or ``residual`` (``sum+root``).
        eps: The number under the root.
        gate: ``zero`` or ``one``, the gate's first value; none without it.
        channels: How many channels a gate has; they are the branches' second dimension.

    Example:
        >>> Fusion("sort", block="residual")
        Fusion(sum+root)
        >>> Fusion("sum+max+prod")(torch.ones(2, 8, 4, 4), torch.ones(2, 8, 4, 4)).unique()
        tensor([4.])
    """

    def __init__(
        self,
        terms: str = "sort",
        *,
        block: str = "branches",
        eps: float = EPS,
        gate: str | None = None,
        channels: int | None = None,
    ) -> None:
        super().__init__()
        if eps <= 0:
            raise ValueError(
                f"eps is {eps}, but must be above 0: it keeps the root's slope finite"
            )
        self.terms = parse(terms, block)
        self.eps = eps
        self.second = tuple(term for term in self.terms if term in SECOND_ORDER)
        self.gate = None if gate is None else self._gate(gate, channels)

    def _gate(self, gate: str, channels: int | None) -> nn.Parameter:
        if gate not in GATES:
            raise ValueError(f"unknown gate {gate!r}; there are {', '.join(GATES)}")
        if not self.second:
            raise ValueError(f"fusion {self.name!r} has no second-order term to gate")
        if channels is None:
            raise ValueError("a gate needs to know how many channels there are")
        return nn.Parameter(torch.full((channels,), GATES[gate]))

    @property
    def name(self) -> str:
        """The terms, joined by ``+``."""
        return "+".join(self.terms)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Fuse the branches `a` and `b`, each of shape :math:`(N, C, *)`."""
        return fuse(a, b, self.terms, self.eps, self.gate)

    def extra_repr(self) -> str:
        """The terms; eps and gate where they are not the paper's."""
        eps = f", eps={self.eps:g}" if self.eps != EPS else ""
        return self.name + eps + (", gated" if self.gate is not None else "")


def join(fusion: nn.Module, a: Branch, b: Branch, *, relu: bool = False) -> Tensor:
    """Fuse two branches by a module, their last steps and the activation after it included.

    The same as ``relu(fusion(a, b))``, but where the fusion is one of ours and the branches say
    what they are made of, it is one function that keeps nothing for the backward pass that the
    network without a second-order term would not keep.

    Arguments:
        fusion: Any module that takes two responses.
        a: A response, or what one is made of.
        b: The other one.
        relu: Whether the fused response is activated.
    """
    if isinstance(fusion, Fusion) and _joins(fusion, a, b):
        return joint.fused(a, b, fusion.terms, fusion.eps, relu, fusion.gate)
    y: Tensor = fusion(*(x if isinstance(x, Tensor) else x.response() for x in (a, b)))
    return F.relu(y) if relu else y


def _joins(fusion: Fusion, a: Branch, b: Branch) -> bool:
    raws = [x if isinstance(x, Tensor) else x.raw for x in (a, b)]
    raw = raws[0]
    # Without a second-order term it stays the plain network, bit for bit.
    if not fusion.second or has_torch_function(raws):
        return False
    if raw.dim() != 4 or raw.shape != raws[1].shape or not kernels.pay(raw):
        return False
    if hooked(fusion) or hooks._has_any_global_hook() or not differentiable_once():  # type: ignore[no-untyped-call]
        return False
    return all(_joins_norm(x.norm, raw) for x in (a, b) if isinstance(x, Normalised))


def _joins_norm(norm: nn.Module, raw: Tensor) -> bool:
    """Whether the normalisation is PyTorch's own and nobody listens to it."""
    if type(norm) is not nn.BatchNorm2d or hooked(norm):
        return False
    if norm.momentum is None and torch.compiler.is_compiling():
        return False
    return raw.shape[1] == norm.num_features and raw.numel() > raw.shape[1]


def hooked(module: nn.Module) -> bool:
    """Whether somebody listens to the module's calls."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )
