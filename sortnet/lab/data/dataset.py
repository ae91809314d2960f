"""What a data set is: its splits, its classes, and a fingerprint of all that decides a run."""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from sortnet import limits
from sortnet.errors import UsageError
from sortnet.lab.data.image_files import read_image
from sortnet.lab.data.seeds import generator

Some = TypeVar("Some", bound="Split")
RESIDENT = 2 << 30
"""Bytes of images up to which a data set is kept on the device: CIFAR has 180 million."""


class Batch(NamedTuple):
    """Images as a network takes them, and what they show."""

    images: Tensor
    """Normalised float32, (n, 3, size, size)."""
    labels: Tensor
    """int64, (n,)."""


class Split(ABC):
    """A part of a data set: `InMemorySplit` in memory, or `FileSplit` on disk."""

    labels: Tensor
    """The class of every image, int64."""

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def picture(self, index: int) -> Tensor:
        """An image for display: uint8, (3, height, width)."""

    @abstractmethod
    def chosen(self: Some, rows: Tensor) -> Some:
        """A split of some of the images."""


@dataclass(frozen=True, eq=False)
class InMemorySplit(Split):
    """Images of one small size, in memory or mapped into it.

    Attributes:
        images: (m, 3, s, s): uint8, or float16 where they are preprocessed.
        rows: Which of the images belong to this split.
        labels: The class of each row.
    """

    images: Tensor
    rows: Tensor
    labels: Tensor

    @classmethod
    def of(cls, images: Tensor, labels: Tensor) -> "InMemorySplit":
        """A split of all the images."""
        return cls(images, torch.arange(len(images)), labels)

    def picture(self, index: int) -> Tensor:
        """The image; one that is preprocessed is spread over 0 to 255."""
        image = self.images[self.rows[index]].cpu()
        if image.dtype == torch.uint8:
            return image.clone()
        image = image.float() - image.min()
        return (image * (255 / image.max().clamp(min=1e-6))).round().to(torch.uint8)

    def chosen(self, rows: Tensor) -> "InMemorySplit":
        """A split of some of the images, which are not copied."""
        return InMemorySplit(self.images, self.rows[rows], self.labels[rows])

    def to(self, device: torch.device) -> "InMemorySplit":
        """The split with its images on a device; labels and rows stay where they are chosen."""
        return InMemorySplit(self.images.to(device), self.rows, self.labels)


@dataclass(frozen=True, eq=False)
class FileSplit(Split):
    """Images of any size, read when they are needed.

    Attributes:
        root: The folder that the paths start from.
        paths: Of the files, as an array of bytes: a list of a million strings would be copied
            into every worker, as each look at one changes its reference count.
        labels: The class of each file.
    """

    root: Path
    paths: np.ndarray[tuple[int], np.dtype[np.bytes_]]
    labels: Tensor

    def path(self, index: int) -> Path:
        """Where an image is."""
        return self.root / os.fsdecode(self.paths[index])

    def picture(self, index: int) -> Tensor:
        """The image as it is in its file."""
        return read_image(self.path(index))

    def chosen(self, rows: Tensor) -> "FileSplit":
        """A split of some of the files."""
        return FileSplit(self.root, self.paths[rows.numpy()], self.labels[rows])


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images to train with and to test with.

    Attributes:
        name: As it was asked for.
        classes: What the labels stand for.
        size: The side of the images that the network is given.
        train: What is trained with.
        validation: What was held out of that, if anything.
        test: What is looked at once, at the end.
        mean: Of each colour, where 1 is white.
        std: The standard deviation of each colour.
        flip: Whether a mirrored image still shows its class.
        mark: The fingerprint, or what computes it.
        former: The fingerprint that earlier versions gave, if it was another.
    """

    name: str
    classes: tuple[str, ...]
    size: int
    train: Split
    validation: Split | None
    test: Split
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    flip: bool
    mark: str | Callable[[], str]
    former: str | None = None

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the content, the split and the preprocessing.

        For images on disk every file is read, once; see `sortnet.lab.data.folder_digest`.
        """
        return self.mark if isinstance(self.mark, str) else self.mark()

    def to(self, device: torch.device) -> "Dataset":
        """The data set with small images on a device, where batches are then made.

        Images on disk, and more than `RESIDENT` bytes of them, stay where they are.
        """

        def moved(split: Some) -> Some:
            small = isinstance(split, InMemorySplit) and split.images.nbytes <= RESIDENT
            return split.to(device) if small else split  # type: ignore[attr-defined]

        if device.type == "cpu":
            return self
        held_out = None if self.validation is None else moved(self.validation)
        return replace(self, train=moved(self.train), validation=held_out, test=moved(self.test))


@dataclass(frozen=True)
class LoadOptions:
    """How a data set is wanted: the arguments of `load`."""

    name: str
    size: int | None = None
    validation: int = 0
    preprocess: str | None = None

    def __post_init__(self) -> None:
        limits.check(validation=self.validation)
        limits.check_given(size=self.size)

    def plain(self, side: int) -> None:
        """Refuse what a data set of small images without preprocessing does not have."""
        if self.preprocess not in (None, "none"):
            raise UsageError(
                f"{self.name} has no preprocessing {self.preprocess!r}; only svhn has"
            )
        self.sized(side)

    def sized(self, side: int) -> None:
        """Refuse another size than that of the images."""
        if self.size not in (None, side):
            raise UsageError(
                f"{self.name} has images of {side} x {side}; size {self.size} is not possible "
                "(only image folders are resized)"
            )

    def room(self, count: int) -> None:
        """Refuse to hold out more images than there are."""
        if not 0 <= self.validation < count:
            raise UsageError(
                f"{self.validation} of {self.name}'s {count} training images cannot be held out "
                f"for validation; choose 0 to {count - 1}"
            )


def stratified(labels: Tensor, count: int, *purpose: object) -> tuple[Tensor, Tensor]:
    """Divide rows into the rest and so many that are held out, the same share of each class.

    Shares are rounded so that they add up (largest remainders first). Which rows of a class are
    taken depends on the purpose alone, both results are in ascending order.

    Example:
        >>> rest, held = stratified(torch.tensor([0] * 8 + [1] * 4), 3, "example")
        >>> torch.bincount(torch.tensor([0] * 8 + [1] * 4)[held]).tolist()
        [2, 1]
    """
    sizes = torch.bincount(labels)
    exact = sizes * count / len(labels)
    shares = exact.floor().to(torch.int64)
    missing = count - int(shares.sum())
    shares[(shares - exact).sort(stable=True).indices[:missing]] += 1
    held = torch.zeros(len(labels), dtype=torch.bool)
    for label, share in enumerate(shares.tolist()):
        rows = (labels == label).nonzero().squeeze(1)
        source = generator("split", *purpose, label)
        held[rows[torch.randperm(len(rows), generator=source)[:share]]] = True
    return (~held).nonzero().squeeze(1), held.nonzero().squeeze(1)


def colours(images: Tensor) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Mean and standard deviation of each colour of uint8 images, where 1 is white."""
    levels = torch.arange(256, dtype=torch.float64) / 255
    mean, std = [], []
    for colour in range(3):
        counts = torch.zeros(256, dtype=torch.float64)
        for chunk in torch.split(images, 10_000):
            counts += torch.bincount(chunk[:, colour].flatten(), minlength=256)
        share = counts / counts.sum()
        mean.append(float(share @ levels))
        std.append(float((share @ levels.square() - mean[-1] ** 2).clamp(min=1e-12).sqrt()))
    return (mean[0], mean[1], mean[2]), (std[0], std[1], std[2])


def fingerprint(*parts: object) -> str:
    """SHA-256 of tensors and of anything that is written the same way everywhere."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, Tensor):
            digest.update(f"{part.dtype}{tuple(part.shape)}".encode())
            digest.update(part.contiguous().numpy().data)
        else:
            digest.update(repr(part).encode())
    return digest.hexdigest()
