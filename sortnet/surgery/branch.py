"""Give branches to a network that has none: the paper's change to chain-styled networks."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import nn

from sortnet.blocks import TwoBranch
from sortnet.fusion import Fusion
from sortnet.networks import weight_init as initial
from sortnet.networks.convnets import DEEP_GAIN
from sortnet.surgery.find_sites import copy_model
from sortnet.surgery.site import select


@dataclass(frozen=True)
class Convolution:
    """A convolution that can be branched: followed by ReLU, or batch normalization and ReLU.

    Attributes:
        path: Its path in the model.
        norm: Whether batch normalization follows it.
    """

    path: str
    norm: bool

    @property
    def name(self) -> str:
        """The path."""
        return self.path


def branch(
    model: nn.Module, where: str | Callable[[Convolution], bool] | None = None
) -> nn.Module:
    """Return a copy of a chain-styled network whose convolutions have two branches (section 3.1).

    A k x k convolution becomes two branches of two cascaded (k+1)/2 x (k+1)/2 convolutions, fused
    by the sum; `sortify` then changes the fusion. ReLU, and batch normalization if there is one,
    move into the branches. The new convolutions are initialized with Caffe's ``xavier``, as in
    the paper's chains; everything else keeps its weights and keys.

    Arguments:
        model: A model whose convolutions are in an ``nn.Sequential`` and followed by ReLU, such
            as torchvision's alexnet and vgg11.
        where: A regular expression or a glob over the paths of the convolutions, or a predicate;
            by default all of them.

    Example:
        >>> import sortnet
        >>> net = branch(sortnet.create_model("bignet"))
        >>> sum(p.numel() for p in net.parameters())  # BigNet*
        9751562
    """
    found = convolutions(model)
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no convolution that can be branched: one with an odd and "
            "square kernel in an nn.Sequential, followed by ReLU"
        )
    copy = copy_model(model)
    selected = select(found, where)
    for conv in selected:
        block = _branch(copy, conv)
        if len(selected) >= 5:  # products grow from block to block, see networks/convnets.py
            initial.scale_last_convolutions(block, DEEP_GAIN)
    return copy


def convolutions(model: nn.Module) -> list[Convolution]:
    """Return the convolutions of a model that can be branched."""
    return list(_convolutions(model))


def _convolutions(model: nn.Module) -> Iterator[Convolution]:
    for path, sequential in model.named_modules():
        if not isinstance(sequential, nn.Sequential):
            continue
        children = list(sequential.named_children())
        for i, (name, module) in enumerate(children):
            rest = [type(child) for _, child in children[i + 1 : i + 3]]
            norm = rest == [nn.BatchNorm2d, nn.ReLU]
            if (
                isinstance(module, nn.Conv2d)
                and _can_split(module)
                and (norm or rest[:1] == [nn.ReLU])
            ):
                yield Convolution(f"{path}.{name}" if path else name, norm)


def _can_split(conv: nn.Conv2d) -> bool:
    """Return True if two smaller convolutions can replace it."""
    k, p, s = conv.kernel_size, conv.padding, conv.stride
    square = k[0] == k[1] and p[0] == p[1] and s[0] == s[1]
    odd = k[0] % 2 == 1 and k[0] > 1
    return square and odd and conv.dilation == (1, 1) and conv.padding_mode == "zeros"


def _branch(model: nn.Module, target: Convolution) -> TwoBranch:
    """Replace a convolution and the layers that follow it by a two-branch block."""
    parent, _, name = target.path.rpartition(".")
    sequential = model.get_submodule(parent)
    conv = sequential.get_submodule(name)
    assert isinstance(conv, nn.Conv2d)
    assert isinstance(conv.padding, tuple)
    block = TwoBranch(
        conv.in_channels,
        conv.out_channels,
        conv.kernel_size[0],
        Fusion("sum"),
        stride=conv.stride[0],
        padding=conv.padding[0],
        groups=conv.groups,
        norm_layer=nn.BatchNorm2d if target.norm else None,
    )
    initial.xavier(block)
    block.to(conv.weight.device, conv.weight.dtype).train(conv.training)
    names = [child for child, _ in sequential.named_children()]
    i = names.index(name)
    setattr(sequential, name, block)
    for follower in names[i + 1 : i + (3 if target.norm else 2)]:
        setattr(sequential, follower, nn.Identity())
    return block
