"""What a changed module calls where its branches meet."""

from torch import Tensor, fx, nn
from torch.overrides import handle_torch_function

from sortnet.fusion import Branch, defer_norm, fuse_branches
from sortnet.fusion.branches import is_plain_sequential
from sortnet.fusion.private import hooked as hooked

RELU = nn.ReLU()
"""Not in place: a fusion may save its output."""


class Moved(nn.Module):
    """A fusion of responses whose channels are not the second dimension, as in transformers.

    Arguments:
        fusion: Any module that takes two responses of shape :math:`(N, C, *)`.
        channel: The dimension that the channels have.

    Example:
        >>> import torch
        >>> from sortnet.fusion import Fusion
        >>> fusion = Moved(Fusion("sum+root", gate="zero", channels=8), channel=2)
        >>> fusion(torch.ones(2, 50, 8), torch.ones(2, 50, 8)).shape
        torch.Size([2, 50, 8])
    """

    def __init__(self, fusion: nn.Module, channel: int) -> None:
        super().__init__()
        self.fusion, self.channel = fusion, channel

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Fuse the branches `a` and `b`."""
        fused: Tensor = self.fusion(a.movedim(self.channel, 1), b.movedim(self.channel, 1))
        return fused.movedim(1, self.channel)

    def extra_repr(self) -> str:
        """The argument."""
        return f"channel={self.channel}"


def unfinished(module: nn.Module, x: Tensor) -> Tensor | Branch:
    """Run a module but for its last step where that is batch normalisation.

    `fuse_branches` takes that step together with the fusion and saves less for backward. A module
    with hooks is run whole.
    """
    if isinstance(x, fx.Proxy):
        proxy: Tensor | Branch = handle_torch_function(unfinished, (x,), module, x)
        return proxy
    return defer_norm(module, x)


def normalises(module: nn.Module) -> bool:
    """Whether a module's last step is PyTorch's batch normalisation."""
    if is_plain_sequential(module) and len(module):
        return normalises(module[-1])
    return type(module) is nn.BatchNorm2d


def meet(
    fusion: nn.Module, x: Tensor | Branch, f: Tensor | Branch, relu: nn.Module | bool = False
) -> Tensor:
    """Let two branches meet, and activate what comes of it.

    Arguments:
        fusion: Any module that takes two responses.
        x: The shortcut, or the first of two branches.
        f: The residual response, or the second of two branches.
        relu: Whether ReLU follows, or the module that is one.
    """
    response: Tensor
    if isinstance(x, fx.Proxy) or isinstance(
        f, fx.Proxy
    ):  # one node in the graph, not its insides
        response = handle_torch_function(meet, (x, f), fusion, x, f, relu)
        return response
    if relu is False:
        return fuse_branches(fusion, x, f)
    act = relu if isinstance(relu, nn.Module) and hooked(relu) else RELU
    return fuse_branches(fusion, x, f, act=act)


def expect(value: object, constant: object, name: str) -> None:
    """Refuse an argument that the module was not traced with."""
    if value is not constant and value != constant:
        raise ValueError(
            f"this module was changed for {name}={constant!r} and cannot be called with another"
        )
