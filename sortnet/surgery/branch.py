"""Branches for a network that has none: the paper's change to chain-styled networks."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import nn

from sortnet.blocks import TwoBranch
from sortnet.fusion import Fusion
from sortnet.networks import weight_init as initial
from sortnet.networks.convnets import DEEP_GAIN
from sortnet.surgery.site import chosen
from sortnet.surgery.survey import copied


@dataclass(frozen=True)
class Convolution:
    """A convolution that can be branched: followed by ReLU, with batch normalisation or without.

    Attributes:
        path: Where it is.
        norm: Whether batch normalisation follows it.
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
    """A copy of a chain-styled network whose convolutions have two branches (section 3.1).

    A convolution of k x k becomes two branches of two cascaded ones of (k+1)/2 x (k+1)/2, which
    meet by the sum; `sortify` then changes that. ReLU, and batch normalisation if there is one,
    move into the branches. The new convolutions have new weights, Caffe's ``xavier`` as in the
    paper's own chains; everything else keeps its weights and keys.

    Arguments:
        model: One whose convolutions stand in an ``nn.Sequential`` with ReLU after them, such as
            torchvision's alexnet and vgg11.
        where: A regular expression or a glob over the convolutions' paths, or a predicate; all of
            them without it.

    Example:
        >>> import sortnet
        >>> net = branch(sortnet.create_model("bignet"))
        >>> sum(p.numel() for p in net.parameters())  # BigNet*
        9751562
    """
    found = list(_convolutions(model))
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no convolution that can be branched: an odd and square "
            "one in an nn.Sequential, with ReLU after it"
        )
    copy = copied(model)
    selected = chosen(found, where)
    for conv in selected:
        block = _branch(copy, conv)
        if len(selected) >= 5:  # a product grows from block to block, see networks/chain.py
            initial.scale_last_convolutions(block, DEEP_GAIN)
    return copy


def _convolutions(model: nn.Module) -> Iterator[Convolution]:
    for path, row in model.named_modules():
        if not isinstance(row, nn.Sequential):
            continue
        children = list(row.named_children())
        for i, (name, module) in enumerate(children):
            rest = [type(child) for _, child in children[i + 1 : i + 3]]
            norm = rest == [nn.BatchNorm2d, nn.ReLU]
            if (
                isinstance(module, nn.Conv2d)
                and _splits(module)
                and (norm or rest[:1] == [nn.ReLU])
            ):
                yield Convolution(f"{path}.{name}" if path else name, norm)


def _splits(conv: nn.Conv2d) -> bool:
    """Whether two smaller convolutions can take its place."""
    k, p, s = conv.kernel_size, conv.padding, conv.stride
    square = k[0] == k[1] and p[0] == p[1] and s[0] == s[1]
    odd = k[0] % 2 == 1 and k[0] > 1
    return square and odd and conv.dilation == (1, 1) and conv.padding_mode == "zeros"


def _branch(model: nn.Module, place: Convolution) -> TwoBranch:
    """Put a two-branch block in place of a convolution and of what follows it."""
    parent, _, name = place.path.rpartition(".")
    row = model.get_submodule(parent)
    conv = row.get_submodule(name)
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
        norm_layer=nn.BatchNorm2d if place.norm else None,
    )
    initial.xavier(block)
    block.to(conv.weight.device, conv.weight.dtype).train(conv.training)
    names = [child for child, _ in row.named_children()]
    i = names.index(name)
    setattr(row, name, block)
    for follower in names[i + 1 : i + (3 if place.norm else 2)]:
        setattr(row, follower, nn.Identity())
    return block
