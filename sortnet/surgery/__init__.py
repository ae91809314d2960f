"""SORT for any model: find where its branches meet, and let them meet in another way.

``sites`` runs a model once without content and watches what it adds; ``sortify`` gives a copy in
which the modules that add call a fusion. docs/any-model.md has the models it was tried on.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from sortnet.fusion import EPS, Fusion
from sortnet.networks import FusionLike
from sortnet.surgery.branch import branch
from sortnet.surgery.fused_add import Moved
from sortnet.surgery.rewire import rewire
from sortnet.surgery.site import Site, chosen
from sortnet.surgery.survey import Place, copied, survey

__all__ = ["Site", "branch", "sites", "sortify"]

Example = Tensor | Sequence[Any]


def sites(model: nn.Module, example: Example | None = None) -> list[Site]:
    """Every place of a model where two branches of equal shape meet by addition.

    The model is run once, on tensors without content, and is not touched. An addition counts if
    both operands come from the input and have not passed through the same layers: biases, position
    embeddings, constants and whatever is broadcast do not.

    Arguments:
        model: Any model that runs on the example.
        example: Its input, or inputs; an image of the size that it expects without it.

    Example:
        >>> import sortnet
        >>> places = sites(sortnet.create_model("resnet20"))
        >>> print(len(places), places[0])
        9 layer1.0                 x + bn2                          then relu         16x32x32
    """
    return [place.site for place in survey(model, example)]


def sortify(
    model: nn.Module,
    where: str | Callable[[Site], bool] | None = None,
    fusion: FusionLike = "sort",
    *,
    gate: str | None = None,
    eps: float = EPS,
    example: Example | None = None,
) -> nn.Module:
    """A copy of a model whose branches meet by another fusion.

    Weights, keys, hooks, classes, device, dtype and mode are kept; the modules that add get a new
    forward and, as a child, the fusion. In a residual block the shortcut is the fusion's first
    argument. A batch normalisation before the addition and a ReLU after it are taken together with
    the fusion, so that with SORT no more is kept for the backward pass than with the sum.

    Arguments:
        model: Any model that `sites` finds places in.
        where: A regular expression or a glob over the sites' names (``layer[34].*``), or a
            predicate; all sites without it.
        fusion: As `create_model` takes it: terms joined by ``+``, ``sort``, or a function from
            a number of channels to a module that fuses.
        gate: ``zero`` or ``one``: weight the second-order term by a learnable number per channel.
            From ``zero`` a trained model starts out exactly as it was.
        eps: The number under the fusion's root.
        example: The model's input, where it is not an image of the size that it expects.

    Example:
        >>> import sortnet
        >>> net = sortify(sortnet.create_model("resnet20"), where="layer3.*")
        >>> net.get_submodule("layer3.0.fusion")
        Fusion(sum+root)
    """
    places = survey(model, example)
    if not places:
        raise ValueError(
            f"{type(model).__name__} has no addition where two branches meet; "
            "a chain of convolutions can be given branches by sortnet.surgery.branch"
        )
    selected = chosen([place.site for place in places], where)
    modules = [_fusion(site, fusion, gate, eps) for site in selected]
    for site in selected:
        if site.problem:
            raise ValueError(
                f"{site.name} cannot be changed, leave it out by where: "
                f"its forward could not be traced: {site.problem}"
            )
    copy = copied(model)
    by_site = {place.site: place for place in places}
    for path in dict.fromkeys(site.path for site in selected):
        owner = copy.get_submodule(path)
        here = [(s, m) for s, m in zip(selected, modules, strict=True) if s.path == path]
        _change(owner, [(by_site[site], module) for site, module in here], _like(owner, copy))
    return copy


def _fusion(site: Site, fusion: FusionLike, gate: str | None, eps: float) -> nn.Module:
    """The fusion for a site; channels that do not come second are moved where it matters."""
    if callable(fusion):
        made = fusion(site.channels)
    else:
        made = Fusion(fusion, block=site.block, eps=eps, gate=gate, channels=site.channels)
    whole = isinstance(made, Fusion) and made.gate is None
    return made if whole or site.channel == 1 else Moved(made, site.channel)


def _like(owner: nn.Module, model: nn.Module) -> Tensor | None:
    """A tensor of the dtype and on the device that a new parameter should have."""
    tensors = (*owner.parameters(), *model.parameters())
    return next((tensor for tensor in tensors if tensor.is_floating_point()), None)


def _change(
    owner: nn.Module, changes: Sequence[tuple[Place, nn.Module]], like: Tensor | None
) -> None:
    attributes = {}
    for place, module in changes:
        name = _attribute(owner, place)
        owner.add_module(name, module.train(owner.training))
        if like is not None:
            module.to(like.device, like.dtype)
        if place.traced is not None:
            attributes[place.site.index] = name
    if attributes:
        found = next(place.traced for place, _ in changes if place.traced is not None)
        rewire(owner, found, attributes)


def _attribute(owner: nn.Module, place: Place) -> str:
    """The fusion's name as a child of the owner: ``fusion``, numbered if there are several."""
    site = place.site
    if place.via is not None:
        return place.via.removeprefix(f"{site.path}." if site.path else "")
    name = "fusion" if site.count == 1 else f"fusion{site.index + 1}"
    while hasattr(owner, name):
        name += "_"
    return name
