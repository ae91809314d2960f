"""A simulated GPU for machines with only a CPU: it raises the errors that a GPU would.

Tensors of the stand-in device are CPU tensors underneath. Every call of PyTorch's Python API is
intercepted to track which tensors are on the host: those that were created without this device and
never moved to it. An operation that mixes both kinds raises an error, and so does a collective on
a host tensor.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("meta")
"""Its name; any device type works that PyTorch does not try to initialize."""
READS = ("tolist", "item", "cpu", "numpy", "__bool__", "__float__", "__int__")
"""Calls in which the host waits for the device."""
COPIES = ("copy_", "__setitem__", "__set__", "_has_compatible_shallow_copy_type")
"""Calls that may mix tensors of two devices."""


class StandIn(TorchFunctionMode):
    """Tracks which tensors are on the host, and counts synchronizations.

    Attributes:
        waits: Number of times the host has waited for the device.
        collectives: Name and number of elements of each collective.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits = 0
        self.collectives: list[tuple[str, int]] = []
        self._host: dict[int, torch.UntypedStorage] = {}  # keeps addresses in use

    def mark_on_host(self, *tensors: Tensor) -> None:
        """Mark these tensors as being on the host."""
        for tensor in tensors:
            if tensor.numel():
                storage = tensor.untyped_storage()
                self._host[storage.data_ptr()] = storage

    def on_host(self, tensor: Tensor) -> bool:
        """Return True if this tensor was created on the host and never moved."""
        return tensor.numel() > 0 and tensor.untyped_storage().data_ptr() in self._host

    def __torch_function__(
        self,
        function: Callable[..., Any],
        _types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        name = getattr(function, "__name__", "")
        if name == "_parse_to" or function is torch.device:  # arguments: nothing is moved yet
            return function(*args, **(kwargs or {}))
        if function == Tensor.device.__get__:
            return torch.device("cpu") if self.on_host(args[0]) else DEVICE
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        moved = any(_is_device(x) for x in tree_leaves((args, kwargs)))
        host = [self.on_host(x) for x in given]
        if name in READS and not all(host):
            self.waits += 1
        vectors = {self.on_host(x) for x in given if x.dim() > 0}
        if len(vectors) > 1 and name not in COPIES:
            raise RuntimeError(f"{name} got tensors on {DEVICE} and on the CPU")
        args, kwargs = tree_map(lambda x: "cpu" if _is_device(x) else x, (args, kwargs or {}))
        result = function(*args, **kwargs)
        if moved:
            return tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, result)
        if name == "cpu":
            result = result.clone()
        if all(host) or name == "cpu":
            self.mark_on_host(*(x for x in tree_leaves(result) if isinstance(x, Tensor)))
        return result


class _Collectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every collective, also those of DistributedDataParallel, which are started in C++."""

    def __init__(self, device: StandIn) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device

    def __torch_dispatch__(
        self,
        function: Any,  # noqa: ANN401
        _types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        if function.namespace == "c10d":
            name = function.__name__.partition(".")[0].rstrip("_")
            tensors = [x for x in tree_leaves(args) if isinstance(x, Tensor)]
            self.device.collectives.append((name, sum(x.numel() for x in tensors)))
            if any(self.device.on_host(x) for x in tensors):
                raise RuntimeError(f"{name}: no backend for a tensor on the CPU")
        with torch._C.DisableTorchFunction():  # this call is ours, not the program's
            return function(*args, **(kwargs or {}))


@contextmanager
def stand_in() -> Iterator[StandIn]:
    """Make `DEVICE` a device that a network can train on."""
    device, from_numpy = StandIn(), torch.from_numpy  # function modes do not see from_numpy

    def on_host(array: Any) -> Tensor:  # noqa: ANN401
        tensor = from_numpy(array)
        device.mark_on_host(tensor)
        return tensor

    with mock.patch.object(torch, "from_numpy", on_host), _Collectives(device), device:
        yield device


def _is_device(value: object) -> bool:
    return isinstance(value, torch.device | str) and str(value) == str(DEVICE)
