"""The fusion as a module, and `fuse_branches`, by which blocks call it."""

import torch
from torch import Tensor, nn

from sortnet.fusion.branches import Branch, as_branch
from sortnet.fusion.dispatch import why_not_fused
from sortnet.fusion.formulas import EPS, SECOND_ORDER, check_eps, parse
from sortnet.fusion.functional import fuse
from sortnet.fusion.fused import run_fused

GATES = {"zero": 0.0, "one": 1.0}
"""Initial values of a gate, by name."""


class Fusion(nn.Module):
    r"""Fuse two branches by a sum of terms.

    With a gate, the second-order terms are multiplied by a learnable number per channel,

    .. math:: y = a + b + \gamma_c \, g(a \odot b).

    Gates are not in the paper. With ``gate="zero"``, a converted network initially computes what
    it computed before. Without a gate, a fusion has neither parameters nor state.

    Arguments:
        terms: ``sum``, ``max``, ``prod``, ``root``, ``square`` joined by ``+``, or ``sort``.
        block: The kind of block, which determines what ``sort`` means: ``branches``
            (``sum+prod``) or ``residual`` (``sum+root``).
        eps: Added under the root; above 0.
        gate: The initial value of the gate, ``zero`` or ``one``; by default there is no gate.
        channels: The number of channels, the second dimension of the branches; a gate needs it.

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
        self.second_order = tuple(term for term in self.terms if term in SECOND_ORDER)
        self.gate = None if gate is None else self._make_gate(gate, channels)

    def _make_gate(self, gate: str, channels: int | None) -> nn.Parameter:
        if gate not in GATES:
            raise ValueError(f"unknown gate {gate!r}; there are {', '.join(GATES)}")
        if not self.second_order:
            raise ValueError(f"fusion {self.name!r} has no second-order term to gate")
        if channels is None:
            raise ValueError("a gate needs the number of channels: pass channels=")
        return nn.Parameter(torch.full((channels,), GATES[gate]))

    @property
    def name(self) -> str:
        """The terms, joined by ``+``."""
        return "+".join(self.terms)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Fuse the branches `a` and `b`, each of shape :math:`(N, C, *)`."""
        return fuse(a, b, self.terms, self.eps, self.gate)

    fused_forward = forward
    """The `forward` that the fused path replaces; a subclass that overrides it is called."""

    def extra_repr(self) -> str:
        """Return the terms; eps and gate where they differ from the paper."""
        eps = f", eps={self.eps:g}" if self.eps != EPS else ""
        return self.name + eps + (", gated" if self.gate is not None else "")


def fuse_branches(
    fusion: nn.Module,
    a: Tensor | Branch,
    b: Tensor | Branch,
    *,
    act: nn.Module | None = None,
) -> Tensor:
    """Compute ``act(fusion(a, b))``, where the last step of a branch may be left to do.

    If `why_not_fused` has no objection, the last steps of both branches, the fusion and the
    activation run as one function. It saves nothing for backward that the network would not save
    without a second-order term.

    Arguments:
        fusion: Any module that takes two responses.
        a: A response, or a `Branch` such as ``Normalized(raw, norm)``, meaning ``norm(raw)``.
        b: The other one.
        act: The activation that follows, if any.

    Example:
        >>> x = torch.ones(2, 8, 4, 4)
        >>> fuse_branches(Fusion("sum"), x, -3 * x, act=nn.ReLU()).unique()
        tensor([0.])
    """
    a, b = as_branch(a), as_branch(b)
    if why_not_fused(fusion, a, b, act=act) is None:
        assert isinstance(fusion, Fusion)
        relu = act is not None
        return run_fused(a, b, fusion.terms, fusion.eps, relu=relu, gate=fusion.gate)
    y: Tensor = fusion(a.response(), b.response())
    return y if act is None else act(y)  # type: ignore[no-any-return]
