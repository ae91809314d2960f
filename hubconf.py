"""The networks for torch.hub.

``torch.hub.load(clone, "resnet20", source="local", fusion="sort")`` creates a network, and
``torch.hub.load(clone, "trained", source="local", directory="runs/...")`` loads a trained one.
"""

from collections.abc import Callable as _Callable
from typing import Any as _Any

from sortnet.networks import NETWORKS as _NETWORKS
from sortnet.networks import Network as _Network
from sortnet.networks import create_model as _create_model
from sortnet.pretrained import load as _load

dependencies = ["torch", "safetensors"]


def trained(directory: str) -> _Network:
    """Load a trained network.

    Arguments:
        directory: Of a finished run, or written by `sortnet.pretrained.save`.
    """
    return _load(directory)[0]


def _entry(name: str) -> _Callable[..., _Network]:
    def entry(num_classes: int | None = None, **options: _Any) -> _Network:  # noqa: ANN401
        return _create_model(name, num_classes, **options)

    entry.__name__ = entry.__qualname__ = name
    entry.__doc__ = f"Create {_NETWORKS[name].title}; arguments as in `sortnet.create_model`."
    return entry


# torch.hub looks up functions of this file by name.
globals().update({name: _entry(name) for name in _NETWORKS})
