"""Training in several processes, started by torchrun, with gradients averaged by DDP."""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from sortnet.errors import UsageError
from sortnet.lab.training.devices import resolve_device

PATIENCE = timedelta(minutes=4)
"""How long processes wait for each other before they fail and torchrun restarts them."""


@dataclass(frozen=True)
class Distributed:
    """The processes that train one network together.

    Attributes:
        rank: Rank of this process; 0 is the main process, the only one that writes.
        size: Number of processes.
        device: Device of this process, used by every collective.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = field(default=torch.device("cpu"))

    @property
    def is_main(self) -> bool:
        """Whether this is the main process."""
        return self.rank == 0

    def all_reduce(self, values: Tensor) -> Tensor:
        """Sum a tensor over all processes, in place. It must be on `device`."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def broadcast_buffers(self, network: nn.Module) -> None:
        """Copy the main process's buffers (batch-norm averages) to all processes."""
        self.broadcast(network.buffers())

    @torch.no_grad()
    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Copy the main process's tensors to all processes. They must be on `device`."""
        if self.size == 1:
            return
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            by_dtype.setdefault(tensor.dtype, []).append(tensor)
        for same in by_dtype.values():
            flat = torch.cat([tensor.flatten() for tensor in same])
            dist.broadcast(flat, 0)
            parts = torch.split(flat, [tensor.numel() for tensor in same])
            for tensor, part in zip(same, parts, strict=True):
                tensor.copy_(part.view_as(tensor))

    def on_main(self, function: Callable[[], Any]) -> Any:  # noqa: ANN401
        """Call a function in the main process and return its result in all processes.

        Arguments:
            function: Returns something that JSON can hold. If it raises a ValueError or OSError,
                the other processes raise an OSError with the same text, and none is left waiting.
        """
        if self.size == 1:
            return function()
        message: dict[str, Any] = {}
        error: ValueError | OSError | None = None
        if self.is_main:
            try:
                message = {"result": function()}
            except (ValueError, OSError) as raised:
                message, error = {"error": str(raised)}, raised
        message = self._broadcast_json(message)
        if error is not None:
            raise error
        if "error" in message:
            raise OSError(message["error"])
        return message["result"]

    def _broadcast_json(self, message: Any) -> Any:  # noqa: ANN401
        content = json.dumps(message).encode() if self.is_main else b""
        length = torch.tensor([len(content)], device=self.device)
        dist.broadcast(length, 0)
        if self.is_main:
            text = torch.tensor(list(content), dtype=torch.uint8, device=self.device)
        else:
            text = torch.empty(int(length.tolist()[0]), dtype=torch.uint8, device=self.device)
        dist.broadcast(text, 0)
        return json.loads(bytes(text.tolist()))

    def ranks_with(self, flag: bool) -> list[int]:
        """Return the ranks of the processes in which a flag is set."""
        if self.size == 1:
            return [0] if flag else []
        ranks = torch.arange(self.size, device=self.device)
        flags = (ranks == self.rank).to(torch.int64) * int(flag)
        return [rank for rank, set_ in enumerate(self.all_reduce(flags).tolist()) if set_]

    def barrier(self) -> None:
        """Wait for all processes."""
        if self.size > 1:
            dist.barrier()

    def wrap(self, network: nn.Module) -> nn.Module:
        """Wrap a network in DDP if there are several processes."""
        if self.size == 1:
            return network
        parallel = DistributedDataParallel(network)
        # By default DDP broadcasts buffers in every step. Training does not read batch-norm
        # averages, and `broadcast_buffers` is called before evaluation and saving, which do.
        # Set as an attribute, because newer versions of PyTorch renamed the argument.
        parallel.broadcast_buffers = False
        return parallel


@contextmanager
def init_distributed(device: str = "auto") -> Iterator[Distributed]:
    """Join the process group of torchrun, or return a single process without it.

    Arguments:
        device: Kind of device, see `resolve_device`. Each process gets its own.
    """
    chosen = resolve_device(device)
    if "WORLD_SIZE" not in os.environ or "RANK" not in os.environ:
        yield Distributed(device=chosen)
        return
    if chosen.type != "cpu":
        chosen = _set_device(chosen.type, int(os.environ.get("LOCAL_RANK", "0")))
    # After a restart torchrun uses the same store. The prefix keeps new processes from reading
    # the addresses of dead ones.
    store, rank, size = next(rendezvous("env://", timeout=PATIENCE))
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = PrefixStore(f"restart{restart}", store)
    backend = dist.get_default_backend_for_device(chosen)
    dist.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=size,
        timeout=PATIENCE,
        device_id=None if backend == "gloo" else chosen,  # used by barriers
    )
    try:
        yield Distributed(rank, size, chosen)
    finally:
        dist.destroy_process_group()


def _set_device(kind: str, index: int) -> torch.device:
    """Make a device the current one of this process."""
    count = torch.accelerator.device_count()
    if index >= count:
        raise UsageError(
            f"process {index} on this machine has no device: there are {count} {kind} devices;"
            " start one process per device"
        )
    torch.accelerator.set_device_index(index)
    return torch.device(kind, index)
