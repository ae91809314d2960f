"""Training in several processes: torchrun starts them, gradients are averaged by PyTorch's DDP."""

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
"""How long processes wait for each other before they fail, and torchrun starts them again."""


@dataclass(frozen=True)
class Distributed:
    """The processes that train one network together.

    Attributes:
        rank: Which of them this is; 0 is the one that writes.
        size: How many there are.
        device: This process's device, on which every collective takes place.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = field(default=torch.device("cpu"))

    @property
    def writes(self) -> bool:
        """Whether this process is the one that writes."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Add up a tensor over all processes, in place; it must be on `device`."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def share(self, network: nn.Module) -> None:
        """Give every process the first one's buffers: batch normalisation's averages."""
        self.spread(network.buffers())

    @torch.no_grad()
    def spread(self, tensors: Iterable[Tensor]) -> None:
        """Give every process the first one's values of some tensors; they must be on `device`."""
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

    def decide(self, choose: Callable[[], Any]) -> Any:  # noqa: ANN401
        """Let the first process choose something that JSON can hold, and tell the others.

        Arguments:
            choose: Called in the first process only. If it raises a ValueError or an OSError the
                other processes raise an OSError with the same text, and none is left waiting.
        """
        if self.size == 1:
            return choose()
        told: dict[str, Any] = {}
        error: ValueError | OSError | None = None
        if self.writes:
            try:
                told = {"chosen": choose()}
            except (ValueError, OSError) as raised:
                told, error = {"error": str(raised)}, raised
        told = self._tell(told)
        if error is not None:
            raise error
        if "error" in told:
            raise OSError(told["error"])
        return told["chosen"]

    def _tell(self, message: Any) -> Any:  # noqa: ANN401
        content = json.dumps(message).encode() if self.writes else b""
        length = torch.tensor([len(content)], device=self.device)
        dist.broadcast(length, 0)
        if self.writes:
            text = torch.tensor(list(content), dtype=torch.uint8, device=self.device)
        else:
            text = torch.empty(int(length.tolist()[0]), dtype=torch.uint8, device=self.device)
        dist.broadcast(text, 0)
        return json.loads(bytes(text.tolist()))

    def having(self, flag: bool) -> list[int]:
        """The processes for which a flag is set."""
        if self.size == 1:
            return [0] if flag else []
        ranks = torch.arange(self.size, device=self.device)
        flags = (ranks == self.rank).to(torch.int64) * int(flag)
        return [rank for rank, set_ in enumerate(self.sum(flags).tolist()) if set_]

    def wait(self) -> None:
        """Wait until all processes are here."""
        if self.size > 1:
            dist.barrier()

    def join(self, network: nn.Module) -> nn.Module:
        """The network with gradients that are averaged over all processes."""
        if self.size == 1:
            return network
        parallel = DistributedDataParallel(network)
        # By default buffers are broadcast in every step. Training does not read batch
        # normalisation's averages, and `share` is called before evaluation and saving, which do.
        # An attribute, because the argument has another name in newer versions of PyTorch.
        parallel.broadcast_buffers = False
        return parallel


@contextmanager
def joined(device: str = "auto") -> Iterator[Distributed]:
    """Join the processes that torchrun started; alone without it.

    Arguments:
        device: The kind of device, as `resolve_device` takes it; each process gets one of its own.
    """
    chosen = resolve_device(device)
    if "WORLD_SIZE" not in os.environ or "RANK" not in os.environ:
        yield Distributed(device=chosen)
        return
    if chosen.type != "cpu":
        chosen = _claim(chosen.type, int(os.environ.get("LOCAL_RANK", "0")))
    # Processes that torchrun starts again meet at the same store as the first ones did; under a
    # name of their own they do not read the addresses of processes that are gone.
    store, rank, size = next(rendezvous("env://", timeout=PATIENCE))
    life = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = PrefixStore(f"life{life}", store)
    backend = dist.get_default_backend_for_device(chosen)
    dist.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=size,
        timeout=PATIENCE,
        device_id=None if backend == "gloo" else chosen,  # where barriers take place
    )
    try:
        yield Distributed(rank, size, chosen)
    finally:
        dist.destroy_process_group()


def _claim(kind: str, index: int) -> torch.device:
    """Make a device the current one of this process."""
    count = torch.accelerator.device_count()
    if index >= count:
        raise UsageError(
            f"process {index} on this machine has no device of its own: there are {count} {kind}"
            " devices; give torchrun as many processes"
        )
    torch.accelerator.set_device_index(index)
    return torch.device(kind, index)
