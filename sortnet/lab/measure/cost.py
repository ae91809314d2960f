"""The cost of running a network: time as a ratio, bytes saved for backward, peak memory."""

import itertools
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile


@dataclass(frozen=True)
class Ratio:
    """A ratio of two times, measured side by side.

    Attributes:
        median: Over all pairs.
        low: The lower end of the median's 95 % interval.
        high: The upper end.
    """

    median: float
    low: float
    high: float


def side_by_side(functions: Sequence[Callable[[], object]], rounds: int) -> list[list[float]]:
    """Return the seconds that each function took in each round.

    The functions take turns: if the machine is slow for a while, all of them are slower, and the
    ratios within a round stay the same. The order changes from round to round, because a function
    that runs twice in a row finds the caches warm.
    """
    times: list[list[float]] = [[] for _ in functions]
    orders = itertools.cycle(itertools.permutations(range(len(functions))))
    for _, order in zip(range(rounds), orders, strict=False):
        for j in order:
            start = time.perf_counter()
            functions[j]()
            if torch.accelerator.is_available():
                torch.accelerator.synchronize()
            times[j].append(time.perf_counter() - start)
    return times


def ratio(times: Sequence[float], base: Sequence[float]) -> Ratio:
    """Return the median of the pairs' ratios and its interval, by order statistics.

    Example:
        >>> ratio([2.0, 4.0, 6.0, 8.0, 10.0, 12.0], [1.0, 2.0, 3.0, 4.0, 5.0, 12.0])
        Ratio(median=2.0, low=1.0, high=2.0)
    """
    ratios = sorted(a / b for a, b in zip(times, base, strict=True))
    reach = math.ceil(len(ratios) / 2 - 0.98 * math.sqrt(len(ratios)))
    below = max(0, reach - 1)
    return Ratio(statistics.median(ratios), ratios[below], ratios[len(ratios) - 1 - below])


def saved_bytes(model: nn.Module, images: Tensor) -> int:
    """Return the bytes that a forward pass saves for backward.

    The count is exact: every storage that autograd saves, once, without parameters and buffers,
    which exist anyway. The model may be compiled.

    Example:
        >>> saved_bytes(nn.Conv2d(3, 8, 3), torch.zeros(1, 3, 8, 8))  # its input
        768
    """
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    storages: dict[int, torch.UntypedStorage] = {}  # kept alive, so that no address is reused

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(images)
    return sum(storage.nbytes() for storage in storages.values())


def peak_bytes(function: Callable[[], object], device: str | torch.device = "cpu") -> int:
    """Return the peak of the memory that a function allocates on a device, in bytes."""
    device = torch.device(device)
    if device.type != "cpu":
        torch.accelerator.reset_peak_memory_stats(device)
        before = torch.accelerator.memory_allocated(device)
        function()
        return torch.accelerator.max_memory_allocated(device) - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # its messages are for its developers
    # There is only one cycle, but without acc_events PyTorch 2.10 warns about several.
    with profile(
        activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True
    ) as profiler:
        function()
    assert profiler.profiler is not None
    results: Any = profiler.profiler.kineto_results
    held = peak = 0
    for event in results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


@dataclass(frozen=True)
class Peak:
    """The measured peak rates of the machine.

    Attributes:
        multiply_adds: Multiply-adds per second of a large matrix product in float32.
        bytes: Bytes per second, read and written, of a copy much larger than the cache.
    """

    multiply_adds: float
    bytes: float


def machine_peak(device: torch.device, repeats: int = 10) -> Peak:
    """Measure the machine's peak rates."""
    side = 1024
    a, b = (torch.randn(side, side, device=device) for _ in range(2))
    source = torch.randn(1 << 24, device=device)
    target = torch.empty_like(source)
    product, copy = side_by_side([lambda: a @ b, lambda: target.copy_(source)], repeats + 2)
    copied = 2 * source.numel() * source.element_size()
    return Peak(side**3 / min(product), copied / min(copy))
