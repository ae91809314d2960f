"""Batches as pure functions of (seed, step), whatever the number of workers or processes.

The shuffled epochs are concatenated into one endless sequence of images. The global batch of step
s is the s-th slice of it, so there is no position to store or restore.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from sortnet.errors import UsageError
from sortnet.lab.data.augment import (
    Augmentation,
    AugmentParams,
    color_jitter,
    crop_and_flip,
    sample_params,
)
from sortnet.lab.data.dataset import Batch, Dataset, FileSplit, InMemorySplit, Split
from sortnet.lab.data.seeds import generator
from sortnet.lab.data.workers import Reader, Task, batches


@dataclass(frozen=True)
class BatchSampler:
    """Selects the images of each step, and the random numbers of their augmentation.

    Attributes:
        batch: Images in a step's global batch.
        seed: Seed of order and augmentation.
        steps: The steps to sample.
        shard: This process's slice of the global batch.
    """

    batch: int
    seed: int
    steps: range
    shard: slice

    def indices(self, count: int, step: int) -> Tensor:
        """Return which of `count` images are in this process's part of a step's batch."""
        first = step * self.batch
        epochs = range(first // count, (first + self.batch - 1) // count + 1)
        parts = []
        for epoch in epochs:
            begin = first - epoch * count
            order = _permutation(count, self.seed, epoch)
            parts.append(order[max(0, begin) : begin + self.batch])
        return torch.cat(parts)[self.shard]

    def params(self, step: int) -> AugmentParams:
        """Return the random numbers of this process's part of a step's batch."""
        return sample_params(self.batch, self.seed, step).shard(self.shard)


@lru_cache(maxsize=4)
def _permutation(count: int, seed: int, epoch: int) -> Tensor:
    return torch.randperm(count, generator=generator("order", seed, epoch))


def train_batches(
    dataset: Dataset,
    augmentation: Augmentation,
    *,
    batch: int,
    seed: int,
    start: int = 0,
    stop: int,
    rank: int = 0,
    world_size: int = 1,
    workers: int | None = None,
    device: torch.device | str | None = None,
) -> Iterator[Batch]:
    """Yield the training batches of the steps from `start` up to but excluding `stop`.

    Arguments:
        dataset: The dataset; its training split is used.
        augmentation: Applied to the images.
        batch: Images in a step, over all processes.
        seed: Seed of order and augmentation.
        start: The first step.
        stop: One past the last step.
        rank: Rank of this process, which gets its slice of each batch.
        world_size: Number of processes; must divide the batch.
        workers: Processes that read images from disk, by default one per core. Images in memory
            need none.
        device: Device of the batches.
    """
    if batch < 1 or world_size < 1 or not 0 <= rank < world_size:
        raise UsageError(f"batch {batch} cannot be given to process {rank} of {world_size}")
    if batch % world_size:
        raise UsageError(f"a batch of {batch} cannot be divided among {world_size} processes")
    if not 0 <= start <= stop:
        raise UsageError(f"steps {start} to {stop} are not a range of steps")
    part = batch // world_size
    sampler = BatchSampler(batch, seed, range(start, stop), slice(rank * part, (rank + 1) * part))
    if not dataset.flip:
        augmentation = replace(augmentation, flip=False)
    if isinstance(dataset.train, FileSplit):
        return _from_files(dataset, dataset.train, augmentation, sampler, workers, device)
    assert isinstance(dataset.train, InMemorySplit)
    return _from_memory(dataset, dataset.train, augmentation, sampler, device)


def eval_batches(
    dataset: Dataset,
    split: Split,
    *,
    batch: int = 500,
    rank: int = 0,
    world_size: int = 1,
    workers: int | None = None,
    device: torch.device | str | None = None,
) -> Iterator[Batch]:
    """Yield the images of a split once, in order, without augmentation.

    Large images have their short side resized to 256/224 of the network's size and are center
    cropped.

    Arguments:
        dataset: The dataset of the split.
        split: One of its splits.
        batch: Images in a batch; the last one may be smaller.
        rank: Rank of this process, which gets its slice of the split.
        world_size: Number of processes; their slices differ by at most one image.
        workers: Processes that read images from disk, by default one per core.
        device: Device of the batches.
    """
    if batch < 1 or world_size < 1 or not 0 <= rank < world_size:
        raise UsageError(f"batches of {batch} cannot be given to process {rank} of {world_size}")
    rows = torch.arange(len(split)).tensor_split(world_size)[rank]
    parts = [part for part in torch.split(rows, batch) if len(part)]
    if isinstance(split, FileSplit):
        reader = Reader(split, dataset.size, Augmentation())
        raw = batches(reader, [Task(part.tolist()) for part in parts], workers)
    else:
        assert isinstance(split, InMemorySplit)
        raw = (_select(split, part) for part in parts)
    return (
        _normalized(dataset, images, split.labels[part], device)
        for images, part in zip(raw, parts, strict=True)
    )


def _from_memory(
    dataset: Dataset,
    split: InMemorySplit,
    augmentation: Augmentation,
    sampler: BatchSampler,
    device: torch.device | str | None,
) -> Iterator[Batch]:
    fill = _mean_and_std(dataset, split.images)[0].round()
    for step in sampler.steps:
        rows = sampler.indices(len(split), step)
        params = sampler.params(step)
        images = crop_and_flip(_select(split, rows), params, augmentation, fill)
        jitter = params if augmentation.jitter else None
        yield _normalized(dataset, images, split.labels[rows], device, jitter)


def _select(split: InMemorySplit, rows: Tensor) -> Tensor:
    """Copy images into a new tensor on the device of the split."""
    rows = split.rows[rows].to(split.images.device, non_blocking=True)
    return split.images.index_select(0, rows)


def _from_files(
    dataset: Dataset,
    files: FileSplit,
    augmentation: Augmentation,
    sampler: BatchSampler,
    workers: int | None,
    device: torch.device | str | None,
) -> Iterator[Batch]:
    first = sampler.shard.start
    tasks = (
        Task(sampler.indices(len(files), step).tolist(), (sampler.seed, step, first))
        for step in sampler.steps
    )
    reader = Reader(files, dataset.size, augmentation)
    for step, images in zip(sampler.steps, batches(reader, tasks, workers), strict=True):
        labels = files.labels[sampler.indices(len(files), step)]
        params = sampler.params(step) if augmentation.jitter else None
        yield _normalized(dataset, images, labels, device, params)


def _normalized(
    dataset: Dataset,
    images: Tensor,
    labels: Tensor,
    device: torch.device | str | None,
    params: AugmentParams | None = None,
) -> Batch:
    """Move a batch to its device as uint8, which is less to copy, and normalize it there."""
    device = images.device if device is None else torch.device(device)
    mean, std = (unit.view(3, 1, 1).to(device) for unit in _mean_and_std(dataset, images))
    images = _to_device(images, device).to(torch.float32)
    if params is not None:
        images = color_jitter(images, params)
    return Batch(images.sub_(mean).mul_(1 / std), _to_device(labels, device))


def _to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy to a device asynchronously, which needs pinned memory."""
    if tensor.device.type == "cpu" and device.type in ("cuda", "xpu"):
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def _mean_and_std(dataset: Dataset, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation, scaled to the images' range."""
    white = 255 if images.dtype == torch.uint8 else 1
    return torch.tensor(dataset.mean) * white, torch.tensor(dataset.std) * white
