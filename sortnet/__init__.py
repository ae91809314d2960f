"""Second-order response fusion for PyTorch: y = F1 + F2 + g(F1 * F2).

Names are imported on first use, so that ``import sortnet`` and ``sortnet --help`` do not wait for
torch. `Run` and `train` belong to the lab, which needs ``pip install "sortnet[lab]"``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sortnet.fusion import Fusion as Fusion
    from sortnet.fusion import sort as sort
    from sortnet.lab.compare import compare as compare
    from sortnet.lab.runs import Run as Run
    from sortnet.lab.runs import train as train
    from sortnet.networks import create_model as create_model
    from sortnet.networks import list_models as list_models
    from sortnet.pretrained import load as load
    from sortnet.surgery import sites as sites
    from sortnet.surgery import sortify as sortify
    from sortnet.surgery.branch import branch as branch

__version__ = "0.1.0"

_MODULES = {
    "Fusion": "sortnet.fusion",
    "Run": "sortnet.lab.runs",
    "branch": "sortnet.surgery",
    "compare": "sortnet.lab.compare",
    "create_model": "sortnet.networks",
    "list_models": "sortnet.networks",
    "load": "sortnet.pretrained",
    "sites": "sortnet.surgery",
    "sort": "sortnet.fusion",
    "sortify": "sortnet.surgery",
    "train": "sortnet.lab.runs",
}
__all__ = ["Fusion", "Run", "branch", "compare", "create_model", "list_models", "load", "sites"]
__all__ += ["sort", "sortify", "train"]
_SUBPACKAGES = {"blocks", "export", "fusion", "heads", "lab", "modelspec", "networks"}
_SUBPACKAGES |= {"pretrained", "surgery"}


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name in _SUBPACKAGES:
        return import_module(f"sortnet.{name}")
    if name in _MODULES:
        found = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return found
    raise AttributeError(f"module 'sortnet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
