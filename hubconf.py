"""The networks for torch.hub, from a clone or by the repository's name.

``torch.hub.load(clone, "resnet20", source="local", classes=10, fusion="sort")`` builds one, and
``torch.hub.load(clone, "trained", source="local", directory="runs/...")`` loads a trained one.
"""

from collections.abc import Callable as _Callable
from typing import Any as _Any

from sortnet import runs as _runs
from sortnet.networks import NETWORKS as _NETWORKS
from sortnet.networks import Network as _Network
from sortnet.networks import build as _build

dependencies = ["torch", "safetensors"]


def trained(directory: str) -> _Network:
    """Load the network of a run, or one written by `sortnet.pretrained.save`, with its weights.

    Arguments:
        directory: Where it is.
    """
    return _runs.load(directory)[0]


def _entry(name: str) -> _Callable[..., _Network]:
    def build(classes: int | None = None, fusion: str = "sum", **options: _Any) -> _Network:  # noqa: ANN401
        return _build(name, classes, fusion, **options)

    build.__name__ = build.__qualname__ = name
    build.__doc__ = f"Build {_NETWORKS[name].title}; the arguments are those of `sortnet.build`."
    return build


# torch.hub's entries are this file's own functions, by their names.
globals().update({name: _entry(name) for name in _NETWORKS})
