"""Second-order response fusion for PyTorch: y = F1 + F2 + g(F1 * F2).

Names are imported when they are first used, so that ``import sortnet`` and ``sortnet --help`` do
not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sortnet.fusion import Fusion as Fusion
    from sortnet.fusion import sort as sort
    from sortnet.networks import build as build
    from sortnet.runs import Run as Run
    from sortnet.runs import load as load
    from sortnet.runs import train as train
    from sortnet.surgery import sites as sites
    from sortnet.surgery import sortify as sortify

__version__ = "0.1.0"

_HOMES = {
    "Fusion": "sortnet.fusion",
    "Run": "sortnet.runs",
    "build": "sortnet.networks",
    "load": "sortnet.runs",
    "sites": "sortnet.surgery",
    "sort": "sortnet.fusion",
    "sortify": "sortnet.surgery",
    "train": "sortnet.runs",
}

_ROOMS = {"data", "fusion", "measure", "networks", "paper", "pretrained", "recipes", "runs"}
_ROOMS |= {"surgery", "transfer"}

__all__ = ["Fusion", "Run", "build", "load", "sites", "sort", "sortify", "train"]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name in _ROOMS:
        return import_module(f"sortnet.{name}")
    if name in _HOMES:
        found = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return found
    raise AttributeError(f"module 'sortnet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
