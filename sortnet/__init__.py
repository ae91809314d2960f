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

__version__ = "0.1.0"

_HOMES = {
    "Fusion": "sortnet.fusion",
    "sort": "sortnet.fusion",
    "build": "sortnet.networks",
}

_ROOMS = ("fusion", "measure", "networks", "paper", "recipes")

__all__ = ["Fusion", "build", "sort"]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name in _ROOMS:
        return import_module(f"sortnet.{name}")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'sortnet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
