"""The networks of the paper, by name: `create_model`."""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any

from sortnet.blocks import Basic, Bottleneck
from sortnet.fusion import EPS
from sortnet.networks.convnets import alexnet, bignet, lenet
from sortnet.networks.network import FusionLike, Network, NetworkOptions
from sortnet.networks.resnet import cifar_resnet, resnet
from sortnet.networks.wrn import wide_resnet

__all__ = [
    "NETWORKS",
    "FusionLike",
    "Network",
    "NetworkInfo",
    "create_model",
    "display",
    "list_models",
]


@dataclass(frozen=True)
class NetworkInfo:
    """A network of the paper.

    Attributes:
        title: Its name in the paper.
        make: Builds it from `NetworkOptions` and its variants.
        num_classes: Number of classes in the paper's first experiment with it.
        size: Side of the images it was designed for.
        variants: Arguments of `create_model` that only this kind of network has.
    """

    title: str
    make: Callable[..., Network]
    num_classes: int
    size: int
    variants: tuple[str, ...] = ()


NETWORKS = {
    "lenet": NetworkInfo("LeNet", lenet, 10, 32, ("branched", "norm")),
    "bignet": NetworkInfo("BigNet", bignet, 10, 32, ("branched", "norm")),
    "alexnet": NetworkInfo("AlexNet", alexnet, 1000, 227, ("branched", "norm")),
    "resnet20": NetworkInfo("ResNet-20", partial(cifar_resnet, depth=20), 10, 32, ("style",)),
    "resnet32": NetworkInfo("ResNet-32", partial(cifar_resnet, depth=32), 10, 32, ("style",)),
    "resnet56": NetworkInfo("ResNet-56", partial(cifar_resnet, depth=56), 10, 32, ("style",)),
    "wrn28": NetworkInfo("WRN-28", partial(wide_resnet, depth=28), 10, 32, ("width",)),
    "resnet18": NetworkInfo(
        "ResNet-18", partial(resnet, block=Basic, depths=(2, 2, 2, 2)), 1000, 224
    ),
    "resnet34": NetworkInfo(
        "ResNet-34", partial(resnet, block=Basic, depths=(3, 4, 6, 3)), 1000, 224
    ),
    "resnet50": NetworkInfo(
        "ResNet-50", partial(resnet, block=Bottleneck, depths=(3, 4, 6, 3)), 1000, 224
    ),
}


ARGUMENTS = ("num_classes", "fusion", "eps", "gate", "head", "in_chans", "size")
OTHER_WORDS = {
    "classes": "num_classes",
    "n_classes": "num_classes",
    "num_labels": "num_classes",
    "out_features": "num_classes",
    "channels": "in_chans",
    "in_channels": "in_chans",
    "num_channels": "in_chans",
    "image_size": "size",
    "img_size": "size",
    "input_size": "size",
    "epsilon": "eps",
    "global_pool": "head",
    "terms": "fusion",
    "pretrained": "sortnet.load, which returns a network with its weights",
    "weights": "sortnet.load, which returns a network with its weights",
}
"""What arguments of `create_model` are called elsewhere."""


def create_model(
    name: str,
    num_classes: int | None = None,
    fusion: FusionLike = "sum",
    *,
    eps: float = EPS,
    gate: str | None = None,
    head: str | None = None,
    in_chans: int = 3,
    size: int | None = None,
    **variant: Any,  # noqa: ANN401
) -> Network:
    """Create a network of the paper, initialized from the global random state.

    Arguments:
        name: A key of `NETWORKS`.
        num_classes: Number of classes; by default as in the paper.
        fusion: Terms joined by ``+``, or ``sort``; ``sum`` gives the plain network. Or a function
            from the number of channels to a fusion module.
        eps: Added under the root of the fusion.
        gate: ``zero`` or ``one``: multiply the second-order terms by a learnable number per
            channel with this initial value.
        head: ``average``, ``bilinear`` or ``compact``, to replace the network's own.
        in_chans: Channels of the images.
        size: Side of the images, for networks whose fully connected layers depend on it.
        variant: ``branched=True`` (two-branch form) and ``norm=True`` (batch normalization) of
            lenet, bignet and alexnet; ``style="xu"`` of resnet20, resnet32 and resnet56;
            ``width=10`` of wrn28.

    Example:
        >>> net = create_model("resnet56", num_classes=10, fusion="sort")
        >>> sum(p.numel() for p in net.parameters())
        853018
    """
    if name not in NETWORKS:
        raise ValueError(f"unknown network {name!r}; there are {', '.join(NETWORKS)}")
    info = NETWORKS[name]
    for key in variant:
        if key not in info.variants:
            raise ValueError(_unknown_argument(name, key))
    options = NetworkOptions(
        num_classes=info.num_classes if num_classes is None else num_classes,
        fusion=fusion,
        eps=eps,
        gate=gate,
        head=head,
        in_chans=in_chans,
        size=info.size if size is None else size,
    )
    return info.make(options, **variant)


def _unknown_argument(name: str, key: str) -> str:
    """Return the message for an argument that `create_model` does not take for a network."""
    if others := [other for other, info in NETWORKS.items() if key in info.variants]:
        return f"{name} has no argument {key!r}; it belongs to {', '.join(others)}"
    known = (*ARGUMENTS, *NETWORKS[name].variants)
    close = get_close_matches(key.lower(), known, n=1) or [OTHER_WORDS.get(key.lower(), "")]
    hint = f"did you mean {close[0]}?" if close[0] else f"{name} takes {', '.join(known)}"
    return f"unknown argument {key!r}; {hint}"


def list_models() -> list[str]:
    """Return the names that `create_model` takes.

    Example:
        >>> "resnet20" in list_models()
        True
    """
    return list(NETWORKS)


def display(name: str, fusion: str = "sum", *, branched: bool = False) -> str:
    """Return the name of a network as printed in the paper.

    Example:
        >>> display("lenet", "sort", branched=True)
        'LeNet*-SORT'
    """
    suffix = {"sum": "", "sort": "-SORT"}.get(fusion, f"-{fusion}")
    return NETWORKS[name].title + ("*" if branched else "") + suffix
