"""Functions and modules called by the forward that `rewire` generates."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, fx, nn
from torch.overrides import handle_torch_function

from sortnet import fusion as fusion_package
from sortnet.fusion import Branch, fuse_branches
from sortnet.fusion.batch_norm import is_plain_sequential
from sortnet.fusion.private import hooked as hooked

RELU = nn.ReLU()
"""Not in place: a fusion may save its output."""


class ChannelDimFusion(nn.Module):
    """A fusion of tensors whose channels are not the second dimension, as in transformers.

    Arguments:
        fusion: Any module that takes two tensors of shape :math:`(N, C, *)`.
        channel_dim: The dimension of the channels.

    Example:
        >>> import torch
        >>> from sortnet.fusion import Fusion
        >>> fusion = Fusion("sum+root", gate="zero", channels=8)
        >>> tokens = torch.ones(2, 50, 8)
        >>> ChannelDimFusion(fusion, channel_dim=2)(tokens, tokens).shape
        torch.Size([2, 50, 8])
    """

    def __init__(self, fusion: nn.Module, channel_dim: int) -> None:
        super().__init__()
        self.fusion, self.channel_dim = fusion, channel_dim

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Fuse the branches `a` and `b`."""
        dim = self.channel_dim
        fused: Tensor = self.fusion(a.movedim(dim, 1), b.movedim(dim, 1))
        return fused.movedim(1, dim)

    def extra_repr(self) -> str:
        """Return the channel dimension."""
        return f"channel_dim={self.channel_dim}"


def fused_add(
    fusion: nn.Module, x: Tensor | Branch, f: Tensor | Branch, relu: nn.Module | bool = False
) -> Tensor:
    """Fuse two branches, followed by ReLU if there is one.

    Arguments:
        fusion: Any module that takes two tensors.
        x: The shortcut, or the first of two branches.
        f: The residual branch, or the second of two branches.
        relu: Whether ReLU follows, or the module that applies it.
    """
    y: Tensor
    if isinstance(x, fx.Proxy) or isinstance(f, fx.Proxy):  # stay one node in the graph
        y = handle_torch_function(fused_add, (x, f), fusion, x, f, relu)
        return y
    if relu is False:
        return fuse_branches(fusion, x, f)
    act = relu if isinstance(relu, nn.Module) and hooked(relu) else RELU
    return fuse_branches(fusion, x, f, act=act)


def defer_batch_norm(module: nn.Module, x: Tensor) -> Tensor | Branch:
    """Run a module, except for a final batch normalization.

    `fuse_branches` computes that one together with the fusion and saves less for backward. A
    module with hooks is run to its end.
    """
    if isinstance(x, fx.Proxy):
        proxy: Tensor | Branch = handle_torch_function(defer_batch_norm, (x,), module, x)
        return proxy
    return fusion_package.defer_batch_norm(module, x)


def ends_in_batch_norm(module: nn.Module) -> bool:
    """Return True if the module's last layer is `nn.BatchNorm2d`."""
    if is_plain_sequential(module) and len(module):
        return ends_in_batch_norm(module[-1])
    return type(module) is nn.BatchNorm2d


def check_constant(value: object, constant: object, name: str) -> None:
    """Raise ValueError if an argument differs from the one the module was traced with."""
    if value is not constant and (isinstance(value, Tensor) or value != constant):
        raise ValueError(
            f"this module was converted for {name}={constant!r} and does not take another value"
        )


def other_kwargs(
    kwargs: Mapping[str, Any], traced: Sequence[str], unknown: Sequence[str]
) -> dict[str, Any]:
    """Return the keyword arguments that a forward only passes on to its children.

    Arguments:
        kwargs: All that the forward was given as ``**kwargs``.
        traced: Those it was traced with and reads itself.
        unknown: Names it mentions and was traced without.
    """
    for name in unknown:
        if name in kwargs:
            raise ValueError(f"this module was converted without {name} and does not take it")
    return {name: value for name, value in kwargs.items() if name not in traced}


def call_with_kwargs(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], others: Mapping[str, Any]
) -> Any:  # noqa: ANN401
    """Call a child with the ``**kwargs`` of its parent."""
    return module(*args, **kwargs, **others)
