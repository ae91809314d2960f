"""Models by name, with fresh weights: torchvision's, timm's and the paper's."""

from collections.abc import Callable, Sequence

from torch import nn

from sortnet.networks import NETWORKS, create_model
from sortnet.surgery.site import close

SOURCES: dict[str, Callable[[], tuple[Sequence[str], Callable[[str], nn.Module]]]]


def find(name: str) -> nn.Module:
    """Build a model by its name, with fresh weights.

    Arguments:
        name: Where it is from and what it is called there: ``torchvision:resnet50``,
            ``timm:convnext_tiny``, ``sortnet:resnet20``.

    Example:
        >>> sum(p.numel() for p in find("sortnet:resnet20").parameters())
        269722
    """
    source, _, model = name.partition(":")
    if source not in SOURCES or not model:
        examples = "torchvision:resnet50, timm:convnext_tiny or sortnet:resnet20"
        raise ValueError(f"unknown model {name!r}; a name reads like {examples}")
    names, make = SOURCES[source]()
    if model not in names:
        raise ValueError(f"{source} has no model {model!r}; {close(model, names)}")
    return make(model)


def _torchvision() -> tuple[Sequence[str], Callable[[str], nn.Module]]:
    from torchvision import models

    def make(name: str) -> nn.Module:
        options: dict[str, object] = {"weights": None}
        if name in ("googlenet", "inception_v3"):  # they warn unless told how to start
            options["init_weights"] = True
        if name in models.list_models(models.detection) + models.list_models(models.segmentation):
            options["weights_backbone"] = None
        made: nn.Module = models.get_model(name, **options)
        return made

    return models.list_models(), make


def _timm() -> tuple[Sequence[str], Callable[[str], nn.Module]]:
    try:
        import timm
    except ImportError as error:
        raise ValueError("timm is not installed; pip install 'sortnet[timm]'") from error
    return timm.list_models(), lambda name: timm.create_model(name, pretrained=False)


SOURCES = {
    "torchvision": _torchvision,
    "timm": _timm,
    "sortnet": lambda: (list(NETWORKS), create_model),
}
