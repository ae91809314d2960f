"""Every network of the paper, by name."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from sortnet.blocks import Basic, Bottleneck
from sortnet.fusion import EPS
from sortnet.networks.convnets import alexnet, bignet, lenet
from sortnet.networks.network import Fusing, Network, Plan
from sortnet.networks.resnet import cifar_resnet, resnet
from sortnet.networks.wrn import wide_resnet

__all__ = ["NETWORKS", "Entry", "Fusing", "Network", "create_model", "display", "list_models"]


@dataclass(frozen=True)
class Entry:
    """A network of the paper.

    Attributes:
        title: Its name in the paper.
        make: Builds it from a plan and the variants that it knows.
        num_classes: How many classes it has in the paper's first experiment with it.
        size: The side of the images it was made for.
        variants: The arguments of `create_model` that only this kind of network has.
    """

    title: str
    make: Callable[..., Network]
    num_classes: int
    size: int
    variants: tuple[str, ...] = ()


NETWORKS = {
    "lenet": Entry("LeNet", lenet, 10, 32, ("branched", "norm")),
    "bignet": Entry("BigNet", bignet, 10, 32, ("branched", "norm")),
    "alexnet": Entry("AlexNet", alexnet, 1000, 227, ("branched", "norm")),
    "resnet20": Entry("ResNet-20", partial(cifar_resnet, depth=20), 10, 32, ("style",)),
    "resnet32": Entry("ResNet-32", partial(cifar_resnet, depth=32), 10, 32, ("style",)),
    "resnet56": Entry("ResNet-56", partial(cifar_resnet, depth=56), 10, 32, ("style",)),
    "wrn28": Entry("WRN-28", partial(wide_resnet, depth=28), 10, 32, ("width",)),
    "resnet18": Entry("ResNet-18", partial(resnet, block=Basic, depths=(2, 2, 2, 2)), 1000, 224),
    "resnet34": Entry("ResNet-34", partial(resnet, block=Basic, depths=(3, 4, 6, 3)), 1000, 224),
    "resnet50": Entry(
        "ResNet-50", partial(resnet, block=Bottleneck, depths=(3, 4, 6, 3)), 1000, 224
    ),
}


def create_model(
    name: str,
    num_classes: int | None = None,
    fusion: Fusing = "sum",
    *,
    eps: float = EPS,
    gate: str | None = None,
    head: str | None = None,
    in_chans: int = 3,
    size: int | None = None,
    **variant: Any,  # noqa: ANN401
) -> Network:
    """Build a network of the paper, with fresh weights from the global random state.

    Arguments:
        name: Out of `NETWORKS`.
        num_classes: How many classes it tells apart; as in the paper without it.
        fusion: Terms joined by ``+``, or ``sort``; ``sum`` gives the plain network. Or a function
            from a number of channels to a module that fuses.
        eps: The number under the fusion's root.
        gate: ``zero`` or ``one``: weight the second-order term by a learnable number per channel.
        head: ``average``, ``bilinear`` or ``compact``, in place of the network's own.
        in_chans: The images' channels.
        size: The images' side, for networks whose fully connected layers depend on it.
        variant: ``branched=True`` (two-branch form) and ``norm=True`` (batch normalisation) of
            lenet, bignet and alexnet; ``style="xu"`` of resnet20, resnet32 and resnet56;
            ``width=10`` of wrn28.

    Example:
        >>> net = create_model("resnet56", num_classes=10, fusion="sort")
        >>> sum(p.numel() for p in net.parameters())
        853018
    """
    if name not in NETWORKS:
        raise ValueError(f"unknown network {name!r}; there are {', '.join(NETWORKS)}")
    entry = NETWORKS[name]
    for key in variant:
        if key not in entry.variants:
            able = [other for other, e in NETWORKS.items() if key in e.variants]
            if not able:
                raise ValueError(
                    f"unknown argument {key!r}; {name} takes {_listed(entry.variants)}"
                )
            raise ValueError(f"{name} cannot be given {key!r}; only {', '.join(able)} can")
    plan = Plan(
        num_classes=entry.num_classes if num_classes is None else num_classes,
        fusion=fusion,
        eps=eps,
        gate=gate,
        head=head,
        in_chans=in_chans,
        size=entry.size if size is None else size,
    )
    return entry.make(plan, **variant)


def list_models() -> list[str]:
    """Return the names that `create_model` takes.

    Example:
        >>> "resnet20" in list_models()
        True
    """
    return list(NETWORKS)


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "no further ones"


def display(name: str, fusion: str = "sum", *, branched: bool = False) -> str:
    """A network's name as the paper prints it.

    Example:
        >>> display("lenet", "sort", branched=True)
        'LeNet*-SORT'
    """
    suffix = {"sum": "", "sort": "-SORT"}.get(fusion, f"-{fusion}")
    return NETWORKS[name].title + ("*" if branched else "") + suffix
