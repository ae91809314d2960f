"""Images from disk: read, cropped and resized by worker processes, in a fixed order."""

import math
import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sortnet.errors import UsageError
from sortnet.lab.data.augment import Augmentation
from sortnet.lab.data.dataset import FileSplit
from sortnet.lab.data.image_files import read_image
from sortnet.lab.data.seeds import generator

SHORT = 256 / 224
"""Short side of the resized image, relative to the crop."""

ASPECT = (3 / 4, 4 / 3)
TRIES = 10
PATIENCE = 300
"""Seconds for which a worker lives on after a signal to stop: the main process finishes its step,
whose kernels may just be compiled. Without a main process, a worker ends within seconds."""


class Box(NamedTuple):
    """A rectangle of an image."""

    top: int
    left: int
    height: int
    width: int


class Task(NamedTuple):
    """A batch to read.

    Attributes:
        rows: Indices of the images.
        purpose: Seed, step and position in the global batch of the first image; the position
            increases by one per image. None for no augmentation.
    """

    rows: list[int]
    purpose: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class Reader:
    """Reads batches, in the worker processes.

    An exception is returned, not raised: a worker would wrap it in a page of traceback.
    """

    files: FileSplit
    size: int
    augmentation: Augmentation

    def __getitem__(self, task: Task) -> Tensor | Exception:
        try:
            return torch.stack([self._image(task, place) for place in range(len(task.rows))])
        except (ValueError, OSError) as error:
            hint = f"list every bad file with `sortnet data check {self.files.root}`"
            return (OSError if isinstance(error, OSError) else UsageError)(f"{error}; {hint}")

    def _image(self, task: Task, place: int) -> Tensor:
        image = read_image(self.files.path(task.rows[place]), round(self.size * SHORT))
        if task.purpose is None:
            return center_crop(image, self.size)
        seed, step, first = task.purpose
        source = generator("crop", seed, step, first + place)
        return random_crop(image, self.size, self.augmentation, source)


def batches(reader: Reader, tasks: Iterable[Task], workers: int | None) -> Iterator[Tensor]:
    """Yield batches, uint8, in the order of the tasks, with any number of workers."""
    import torchvision.transforms.v2  # noqa: F401  # once, before the workers are forked

    for images in map_in_workers(reader, tasks, workers):
        if isinstance(images, Exception):
            raise images
        yield images


def map_in_workers(reader: Any, tasks: Iterable[Any], workers: int | None = None) -> Iterator[Any]:  # noqa: ANN401
    """Yield ``reader[task]`` for every task, computed by worker processes (0: by this one)."""
    from torch.utils.data import DataLoader

    loader: DataLoader[Any] = DataLoader(
        reader,
        batch_size=None,
        sampler=tasks,
        num_workers=default_workers() if workers is None else workers,
        collate_fn=_identity,
        generator=torch.Generator(),  # otherwise it advances the global one
        worker_init_fn=_delay_signals,
    )
    return iter(loader)


def _delay_signals(_worker: int) -> None:
    """Let a worker live on for a while after a signal to stop.

    Schedulers signal all processes, and the main one must not lose its workers while it saves.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
        signal.signal(number, lambda *_: signal.alarm(PATIENCE))


def _identity(batch: Any) -> Any:  # noqa: ANN401
    return batch


def default_workers() -> int:
    """Return the number of cores for each process of this machine, by its affinity."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (usable or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def random_crop(
    image: Tensor, size: int, augmentation: Augmentation, source: torch.Generator
) -> Tensor:
    """Return a training view: a random crop, perhaps mirrored, resized to `size`."""
    from torchvision.transforms.v2.functional import resized_crop

    flip, down, right = torch.rand(3, generator=source).tolist()
    if augmentation.area is None:
        image = _resize(image, size)
        top = int(down * (image.shape[1] - size + 1))
        left = int(right * (image.shape[2] - size + 1))
        image = image[:, top : top + size, left : left + size]
    else:
        box = _random_box(image, augmentation.area, source)
        image = resized_crop(image, *box, [size, size], antialias=True)
    return image.flip(2) if augmentation.flip and flip < 0.5 else image


def center_crop(image: Tensor, size: int) -> Tensor:
    """Return the test view: resize the short side to 256/224 of `size`, crop the center."""
    image = _resize(image, size)
    top, left = (round((side - size) / 2) for side in image.shape[1:])
    return image[:, top : top + size, left : left + size]


def _resize(image: Tensor, size: int) -> Tensor:
    """Resize the short side to 256/224 of `size`, rounding as torchvision does."""
    from torchvision.transforms.v2.functional import resize

    short = round(size * SHORT)
    return resize(image, [short], antialias=True)  # type: ignore[no-any-return]


def _random_box(image: Tensor, area: tuple[float, float], source: torch.Generator) -> Box:
    """Sample a box of random area and aspect; the largest that fits if ten attempts fail.

    torchvision's `RandomResizedCrop` does the same, but only from the global random state.
    """
    height, width = image.shape[1:]
    for _ in range(TRIES):
        a, b, c, d = torch.rand(4, generator=source).tolist()
        pixels = height * width * (area[0] + a * (area[1] - area[0]))
        aspect = math.exp(math.log(ASPECT[0]) + b * math.log(ASPECT[1] / ASPECT[0]))
        w, h = round(math.sqrt(pixels * aspect)), round(math.sqrt(pixels / aspect))
        if 0 < w <= width and 0 < h <= height:
            return Box(int(c * (height - h + 1)), int(d * (width - w + 1)), h, w)
    w = min(width, round(height * ASPECT[1]))
    h = min(height, round(width / ASPECT[0]))
    return Box((height - h) // 2, (width - w) // 2, h, w)
