"""Batches as pure functions of (seed, step): any number of workers or processes gives the same.

The images of all epochs, each a permutation of its own, stand in one endless line. The global
batch of step s is the s-th stretch of that line; nothing else is ever stored or counted.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from sortnet.errors import UsageError
from sortnet.lab.data.augment import Augmentation, Draws, draw, jittered, moved
from sortnet.lab.data.dataset import Batch, Dataset, FileSplit, InMemorySplit, Split
from sortnet.lab.data.seeds import generator
from sortnet.lab.data.workers import Reader, Task, batches


@dataclass(frozen=True)
class Course:
    """Which steps are wanted, and which part of each.

    Attributes:
        batch: Images in a step's global batch.
        seed: Of the order and of the augmentation.
        steps: Those that are wanted.
        share: The part of the global batch that this process takes.
    """

    batch: int
    seed: int
    steps: range
    share: slice

    def rows(self, count: int, step: int) -> Tensor:
        """Which of so many images are in this process's part of a step's batch."""
        first = step * self.batch
        epochs = range(first // count, (first + self.batch - 1) // count + 1)
        parts = []
        for epoch in epochs:
            begin = first - epoch * count
            line = _permutation(count, self.seed, epoch)
            parts.append(line[max(0, begin) : begin + self.batch])
        return torch.cat(parts)[self.share]

    def draws(self, step: int) -> Draws:
        """The random numbers of this process's part of a step's batch."""
        return draw(self.batch, self.seed, step).part(self.share)


@lru_cache(maxsize=4)
def _permutation(count: int, seed: int, epoch: int) -> Tensor:
    return torch.randperm(count, generator=generator("order", seed, epoch))


def training(
    dataset: Dataset,
    augmentation: Augmentation,
    *,
    batch: int,
    seed: int,
    start: int = 0,
    stop: int,
    rank: int = 0,
    world: int = 1,
    workers: int | None = None,
    device: torch.device | str | None = None,
) -> Iterator[Batch]:
    """The batches of the steps from ``start`` up to ``stop``.

    Arguments:
        dataset: Its training images are used.
        augmentation: What is done to them.
        batch: Images in a step, over all processes.
        seed: Of the order and of the augmentation.
        start: The first step.
        stop: The step before which it ends.
        rank: Which of the processes this is; it gets its stretch of each batch.
        world: How many processes there are; they must divide the batch.
        workers: How many processes read images from disk; without it, one for each core. Images
            in memory need none.
        device: Where the batches are wanted.
    """
    if batch < 1 or world < 1 or not 0 <= rank < world:
        raise UsageError(f"batch {batch} cannot be given to process {rank} of {world}")
    if batch % world:
        raise UsageError(f"a batch of {batch} cannot be divided among {world} processes")
    if not 0 <= start <= stop:
        raise UsageError(f"steps {start} to {stop} are not a stretch of training")
    part = batch // world
    course = Course(batch, seed, range(start, stop), slice(rank * part, (rank + 1) * part))
    if not dataset.flip:
        augmentation = replace(augmentation, flip=False)
    if isinstance(dataset.train, FileSplit):
        return _from_files(dataset, dataset.train, augmentation, course, workers, device)
    assert isinstance(dataset.train, InMemorySplit)
    return _from_memory(dataset, dataset.train, augmentation, course, device)


def evaluation(
    dataset: Dataset,
    split: Split,
    *,
    batch: int = 500,
    rank: int = 0,
    world: int = 1,
    workers: int | None = None,
    device: torch.device | str | None = None,
) -> Iterator[Batch]:
    """A split's images, once and in order, without augmentation.

    Large images have their short side resized to 256/224 of the network's size and their centre
    cropped.

    Arguments:
        dataset: To which the split belongs.
        split: One of the data set's splits.
        batch: Images in a batch; the last one may be smaller.
        rank: Which of the processes this is; it gets its stretch of the split.
        world: How many processes there are; their stretches differ by one image at most.
        workers: How many processes read images from disk; without it, one for each core.
        device: Where the batches are wanted.
    """
    if batch < 1 or world < 1 or not 0 <= rank < world:
        raise UsageError(f"batches of {batch} cannot be given to process {rank} of {world}")
    rows = torch.arange(len(split)).tensor_split(world)[rank]
    parts = [part for part in torch.split(rows, batch) if len(part)]
    if isinstance(split, FileSplit):
        reader = Reader(split, dataset.size, Augmentation())
        raw = batches(reader, [Task(part.tolist()) for part in parts], workers)
    else:
        assert isinstance(split, InMemorySplit)
        raw = (_selected(split, part) for part in parts)
    return (
        _finished(dataset, images, split.labels[part], device)
        for images, part in zip(raw, parts, strict=True)
    )


def _from_memory(
    dataset: Dataset,
    held: InMemorySplit,
    augmentation: Augmentation,
    course: Course,
    device: torch.device | str | None,
) -> Iterator[Batch]:
    fill = _units(dataset, held.images)[0].round()
    for step in course.steps:
        rows = course.rows(len(held), step)
        draws = course.draws(step)
        images = moved(_selected(held, rows), draws, augmentation, fill)
        chosen = draws if augmentation.jitter else None
        yield _finished(dataset, images, held.labels[rows], device, chosen)


def _selected(held: InMemorySplit, rows: Tensor) -> Tensor:
    """Some of the images, in a new tensor, where they are."""
    chosen = held.rows[rows].to(held.images.device, non_blocking=True)
    return held.images.index_select(0, chosen)


def _from_files(
    dataset: Dataset,
    files: FileSplit,
    augmentation: Augmentation,
    course: Course,
    workers: int | None,
    device: torch.device | str | None,
) -> Iterator[Batch]:
    first = course.share.start
    tasks = (
        Task(course.rows(len(files), step).tolist(), (course.seed, step, first))
        for step in course.steps
    )
    reader = Reader(files, dataset.size, augmentation)
    for step, images in zip(course.steps, batches(reader, tasks, workers), strict=True):
        labels = files.labels[course.rows(len(files), step)]
        draws = course.draws(step) if augmentation.jitter else None
        yield _finished(dataset, images, labels, device, draws)


def _finished(
    dataset: Dataset,
    images: Tensor,
    labels: Tensor,
    device: torch.device | str | None,
    draws: Draws | None = None,
) -> Batch:
    """Move a batch to its device as it is, which is less to move, and normalize it there."""
    device = images.device if device is None else torch.device(device)
    mean, std = (unit.view(3, 1, 1).to(device) for unit in _units(dataset, images))
    images = _transferred(images, device).to(torch.float32)
    if draws is not None:
        images = jittered(images, draws)
    return Batch(images.sub_(mean).mul_(1 / std), _transferred(labels, device))


def _transferred(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy to a device without waiting for it, which only pinned memory allows."""
    if tensor.device.type == "cpu" and device.type in ("cuda", "xpu"):
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def _units(dataset: Dataset, images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation in the unit of the images."""
    white = 255 if images.dtype == torch.uint8 else 1
    return torch.tensor(dataset.mean) * white, torch.tensor(dataset.std) * white
