"""Large images from disk: read, cropped and resized by worker processes, in a fixed order."""

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
"""The resized image's short side, relative to the crop's."""

ASPECT = (3 / 4, 4 / 3)
TRIES = 10
PATIENCE = 30
"""Seconds between a scheduler's signal to stop and its last one, as a rule."""


class Box(NamedTuple):
    """A rectangle of an image."""

    top: int
    left: int
    height: int
    width: int


class Task(NamedTuple):
    """A batch to be read.

    Attributes:
        rows: Which images.
        purpose: What the random numbers of the batch's first image depend on; the last entry, its
            place in the batch, goes up by one with every image. None: no augmentation.
    """

    rows: list[int]
    purpose: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class Reader:
    """Reads batches; its copies do so in the workers.

    A task that fails gives its exception back, because a worker's own report of one is a page
    long and does not keep the exception's message.
    """

    files: FileSplit
    size: int
    augmentation: Augmentation

    def __getitem__(self, task: Task) -> Tensor | Exception:
        try:
            return torch.stack([self._image(task, place) for place in range(len(task.rows))])
        except (ValueError, OSError) as error:
            hint = f"find every such file with `sortnet data check {self.files.root}`"
            return (OSError if isinstance(error, OSError) else UsageError)(f"{error}; {hint}")

    def _image(self, task: Task, place: int) -> Tensor:
        image = read_image(self.files.path(task.rows[place]), round(self.size * SHORT))
        if task.purpose is None:
            return centre(image, self.size)
        seed, step, first = task.purpose
        source = generator("crop", seed, step, first + place)
        return crop(image, self.size, self.augmentation, source)


def batches(reader: Reader, tasks: Iterable[Task], workers: int | None) -> Iterator[Tensor]:
    """Read batches, uint8, in the order of the tasks, with any number of workers."""
    import torchvision.transforms.v2  # noqa: F401  # once, not in every worker

    for images in in_order(reader, tasks, workers):
        if isinstance(images, Exception):
            raise images
        yield images


def in_order(reader: Any, tasks: Iterable[Any], workers: int | None = None) -> Iterator[Any]:  # noqa: ANN401
    """What ``reader[task]`` gives for every task, done by worker processes (0: by this one)."""
    from torch.utils.data import DataLoader

    loader: DataLoader[Any] = DataLoader(
        reader,
        batch_size=None,
        sampler=tasks,
        num_workers=cores() if workers is None else workers,
        collate_fn=_as_it_is,
        generator=torch.Generator(),  # else it takes a number from the global one
        worker_init_fn=_patient,
    )
    return iter(loader)


def _patient(_worker: int) -> None:
    """Let a worker outlive a signal to stop for as long as the process that it serves may need.

    Schedulers send it to both, and that process must not lose its workers while it saves.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
        signal.signal(number, lambda *_: signal.alarm(PATIENCE))


def _as_it_is(batch: Any) -> Any:  # noqa: ANN401
    return batch


def cores() -> int:
    """How many cores there are for each of this machine's processes, by its affinity."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (usable or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def crop(image: Tensor, size: int, augmentation: Augmentation, source: torch.Generator) -> Tensor:
    """A training view: a random part of the image, perhaps mirrored, of the wanted size."""
    flip, down, right = torch.rand(3, generator=source).tolist()
    if augmentation.area is None:
        image = _resized(image, size)
        top = int(down * (image.shape[1] - size + 1))
        left = int(right * (image.shape[2] - size + 1))
        image = image[:, top : top + size, left : left + size]
    else:
        image = _zoomed(image, _part(image, augmentation.area, source), size)
    return image.flip(2) if augmentation.flip and flip < 0.5 else image


def centre(image: Tensor, size: int) -> Tensor:
    """The test view: the centre of the image whose short side was resized to 256/224 of size."""
    image = _resized(image, size)
    top, left = (round((side - size) / 2) for side in image.shape[1:])
    return image[:, top : top + size, left : left + size]


def _resized(image: Tensor, size: int) -> Tensor:
    """Resize the short side to 256/224 of size, rounding as torchvision does."""
    from torchvision.transforms.v2.functional import resize

    short = round(size * SHORT)
    return resize(image, [short], antialias=True)  # type: ignore[no-any-return]


def _zoomed(image: Tensor, box: Box, size: int) -> Tensor:
    from torchvision.transforms.v2.functional import resized_crop

    return resized_crop(image, *box, [size, size], antialias=True)  # type: ignore[no-any-return]


def _part(image: Tensor, area: tuple[float, float], source: torch.Generator) -> Box:
    """A rectangle of random area and aspect; the largest that fits if none of ten tries does."""
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
