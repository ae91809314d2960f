"""The fusion as a module, which is what a block is given, and `fuse_branches`, which calls it."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sortnet.fusion import dispatch
from sortnet.fusion.branches import Branch
from sortnet.fusion.functional import fuse
from sortnet.fusion.joint import fuse_jointly
from sortnet.fusion.terms import EPS, SECOND_ORDER, check_eps, parse

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
        eps: The number under the root, above 0.
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
        check_eps(eps)
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


def fuse_branches(
    fusion: nn.Module, a: Tensor | Branch, b: Tensor | Branch, *, relu: bool = False
) -> Tensor:
    """Fuse two branches by a module, their last steps and the activation after it included.

    The same as ``relu(fusion(a, b))``. Where the fusion is one of ours and the branches say what
    they are made of, it is one function that saves nothing for backward that the network without
    a second-order term would not save.

    Arguments:
        fusion: Any module that takes two responses.
        a: A response, or what one is made of.
        b: The other one.
        relu: Whether the output is activated.
    """
    if why_not_fused(fusion, a, b) is None:
        assert isinstance(fusion, Fusion)
        return fuse_jointly(_branch(a), _branch(b), fusion.terms, fusion.eps, relu, fusion.gate)
    y: Tensor = fusion(*(x.response() if isinstance(x, Branch) else x for x in (a, b)))
    return F.relu(y) if relu else y


def why_not_fused(fusion: nn.Module, a: Tensor | Branch, b: Tensor | Branch) -> str | None:
    """Say why `fuse_branches` runs by PyTorch's own operations; nothing if it runs jointly.

    Example:
        >>> x = torch.ones(2, 8, 4, 4)
        >>> why_not_fused(Fusion("sum"), x, x)
        'there is no second-order term: it stays the plain network, bit for bit'
    """
    if not isinstance(fusion, Fusion) or type(fusion).forward is not Fusion.forward:
        return f"{type(fusion).__name__} has a forward of its own"
    return dispatch.module_obstacle(fusion, _branch(a), _branch(b), bool(fusion.second))


def _branch(x: Tensor | Branch) -> Branch:
    return x if isinstance(x, Branch) else Branch(x)
