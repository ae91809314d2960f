"""SORT for any model: find where its branches meet, and fuse them by another operation.

``sites`` runs a model once and records what it adds; ``sortify`` returns a copy in which the
modules that add call a fusion. docs/any-model.md lists the models this has been tested on.
"""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from sortnet.fusion import EPS, Fusion
from sortnet.networks import FusionLike
from sortnet.surgery.branch import branch, convolutions
from sortnet.surgery.find_sites import Example, Search, TracedSite, copy_model, find_sites
from sortnet.surgery.fused_add import ChannelDimFusion
from sortnet.surgery.rewire import rewire
from sortnet.surgery.site import Site, join_names, select

__all__ = ["Site", "branch", "join_names", "select", "sites", "sortify"]


def sites(model: nn.Module, example: Example | None = None) -> list[Site]:
    """Return every addition of a model where two branches of equal shape meet.

    A copy of the model is run once, on meta tensors or, if it reads values, on real ones. An
    addition counts if both operands come from the input and have not passed through the same
    layers; biases, position embeddings, constants and broadcast operands do not.

    Arguments:
        model: Any model that runs on the example.
        example: Its input; a tuple stands for several arguments, a dict for keyword arguments.
            By default an image of the size that the model expects.

    Example:
        >>> import sortnet
        >>> found = sites(sortnet.create_model("resnet20"))
        >>> print(len(found), found[0])
        9 layer1.0                 x + bn2                          then relu         16x32x32
    """
    return [traced.site for traced in find_sites(model, example).sites]


def sortify(
    model: nn.Module,
    where: str | Callable[[Site], bool] | None = None,
    fusion: FusionLike = "sort",
    *,
    gate: str | None = None,
    eps: float = EPS,
    example: Example | None = None,
    skip_unchangeable: bool = False,
) -> nn.Module:
    """Return a copy of a model whose branches are fused by another operation.

    Weights, keys, hooks, classes, device, dtype and mode are preserved; each module that adds gets
    a new forward and the fusion as a child. In a residual block the shortcut is the fusion's first
    argument. Batch normalization before the addition and ReLU after it are computed together with
    the fusion, so SORT saves no more for backward than the sum.

    Arguments:
        model: Any model in which `sites` finds sites.
        where: A regular expression or a glob over the names of the sites (``layer[34].*``), or a
            predicate; by default all sites.
        fusion: As in `create_model`: terms joined by ``+``, ``sort``, or a function from a number
            of channels to a module that fuses.
        gate: ``zero`` or ``one``: multiply the second-order term by a learnable number per channel
            with this initial value. With ``zero`` a trained model starts as the same function, up
            to rounding.
        eps: Added under the root.
        example: The model's input, as in `sites`.
        skip_unchangeable: Keep the addition at selected sites that cannot be changed, instead of
            raising an error; `sites` shows them with their `problem`.

    Example:
        >>> import sortnet
        >>> net = sortify(sortnet.create_model("resnet20"), where="layer3.*")
        >>> net.get_submodule("layer3.0.fusion")
        Fusion(sum+root)
    """
    search = find_sites(model, example)
    if not search.sites:
        raise ValueError(_no_sites(model, search))
    selected = select([traced.site for traced in search.sites], where)
    selected = _changeable(selected, skip_unchangeable)
    fusions = {site: _create_fusion(site, fusion, gate, eps) for site in selected}
    copy = copy_model(model)
    for path in dict.fromkeys(site.path for site in selected):
        owner = copy.get_submodule(path)
        changes = [
            (traced, fusions[traced.site])
            for traced in search.sites
            if traced.site.path == path and traced.site in fusions
        ]
        _change(owner, changes, _reference_tensor(owner, copy))
    return copy


def _no_sites(model: nn.Module, search: Search) -> str:
    reason = f"{type(model).__name__} has no addition where two branches meet"
    if search.concatenates:
        return f"{reason}: it concatenates them; use sortnet.Fusion in its blocks instead"
    if convolutions(model):
        return f"{reason}: it is a chain; sortnet.branch gives its convolutions two branches"
    return reason


def _changeable(selected: Sequence[Site], skip: bool) -> list[Site]:
    """Return the sites that can be changed; raise ValueError if that is not what was asked."""
    changeable = [site for site in selected if site.problem is None]
    failed = [site for site in selected if site.problem is not None]
    if failed and not (skip and changeable):
        flag = "skip_unchangeable=True (--skip-unchangeable)"
        advice = f"; {flag} keeps the addition there" if changeable else ""
        raise ValueError(
            f"{len(failed)} of {len(selected)} selected sites cannot be changed{advice}: "
            f"{join_names(failed, 4)} (its forward cannot be traced: {failed[0].problem})"
        )
    return changeable


def _create_fusion(site: Site, fusion: FusionLike, gate: str | None, eps: float) -> nn.Module:
    if callable(fusion):
        module = fusion(site.channels)
    else:
        module = Fusion(fusion, block=site.block, eps=eps, gate=gate, channels=site.channels)
    elementwise = isinstance(module, Fusion) and module.gate is None
    if elementwise or site.channel_dim == 1:
        return module
    return ChannelDimFusion(module, site.channel_dim)


def _reference_tensor(owner: nn.Module, model: nn.Module) -> Tensor | None:
    """Return a tensor with the dtype and device for new parameters."""
    tensors = (*owner.parameters(), *model.parameters())
    return next((tensor for tensor in tensors if tensor.is_floating_point()), None)


def _change(
    owner: nn.Module,
    changes: Sequence[tuple[TracedSite, nn.Module]],
    reference: Tensor | None,
) -> None:
    attributes = {}
    for traced, fusion in changes:
        name = _attribute(owner, traced)
        owner.add_module(name, fusion.train(owner.training))
        if reference is not None:
            fusion.to(reference.device, reference.dtype)
        if traced.module is not None:
            attributes[traced.site.index] = name
    if attributes:
        rewire(owner, next(t.module for t, _ in changes if t.module is not None), attributes)


def _attribute(owner: nn.Module, traced: TracedSite) -> str:
    """Return the fusion's name in its owner: ``fusion``, numbered if there are several."""
    site = traced.site
    if traced.fusion_path is not None:
        return traced.fusion_path.removeprefix(f"{site.path}." if site.path else "")
    name = "fusion" if site.count == 1 else f"fusion{site.index + 1}"
    while hasattr(owner, name):
        name += "_"
    return name
