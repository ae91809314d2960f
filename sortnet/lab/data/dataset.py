"""Datasets: splits, classes, normalization, and a fingerprint of the content."""

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

SplitT = TypeVar("SplitT", bound="Split")
RESIDENT = 2 << 30
"""Largest dataset, in bytes, that is kept on the device. CIFAR has 180 million."""


class Batch(NamedTuple):
    """Images as the network's input, and their labels."""

    images: Tensor
    """Normalized float32, (n, 3, size, size)."""
    labels: Tensor
    """int64, (n,)."""


class Split(ABC):
    """A part of a dataset: `InMemorySplit` in memory, or `FileSplit` on disk."""

    labels: Tensor
    """Class of every image, int64."""

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def picture(self, index: int) -> Tensor:
        """Return an image for display: uint8, (3, height, width)."""

    @abstractmethod
    def subset(self: SplitT, rows: Tensor) -> SplitT:
        """Return a split of some of the images."""


@dataclass(frozen=True, eq=False)
class InMemorySplit(Split):
    """Images of one small size, in memory or mapped into it.

    Attributes:
        images: (m, 3, s, s), uint8, or float16 if preprocessed.
        rows: Indices of the images of this split.
        labels: Class of each row.
    """

    images: Tensor
    rows: Tensor
    labels: Tensor

    @classmethod
    def of(cls, images: Tensor, labels: Tensor) -> "InMemorySplit":
        """Return a split of all images."""
        return cls(images, torch.arange(len(images)), labels)

    def picture(self, index: int) -> Tensor:
        """Return the image; a preprocessed one is rescaled to 0..255."""
        image = self.images[self.rows[index]].cpu()
        if image.dtype == torch.uint8:
            return image.clone()
        image = image.float() - image.min()
        return (image * (255 / image.max().clamp(min=1e-6))).round().to(torch.uint8)

    def subset(self, rows: Tensor) -> "InMemorySplit":
        """Return a split of some of the images, without copying them."""
        return InMemorySplit(self.images, self.rows[rows], self.labels[rows])

    def to(self, device: torch.device) -> "InMemorySplit":
        """Return the split with its images on a device; labels and rows stay on the CPU."""
        return InMemorySplit(self.images.to(device), self.rows, self.labels)


@dataclass(frozen=True, eq=False)
class FileSplit(Split):
    """Images of any size, read when they are needed.

    Attributes:
        root: Folder that the paths are relative to.
        paths: Paths of the files, as an array of bytes. A list of strings would be copied into
            every worker, because reading an item changes its reference count.
        labels: Class of each file.
    """

    root: Path
    paths: np.ndarray[tuple[int], np.dtype[np.bytes_]]
    labels: Tensor

    def path(self, index: int) -> Path:
        """Return the path of an image."""
        return self.root / os.fsdecode(self.paths[index])

    def picture(self, index: int) -> Tensor:
        """Return the image at its original size."""
        return read_image(self.path(index))

    def subset(self, rows: Tensor) -> "FileSplit":
        """Return a split of some of the files."""
        return FileSplit(self.root, self.paths[rows.numpy()], self.labels[rows])


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images to train with and to test with.

    Attributes:
        name: Name, or absolute path of the folder.
        classes: Names of the classes.
        size: Side of the network's input images, in pixels.
        train: Training split.
        validation: Validation split, held out of the training images, if any.
        test: Test split, used once, at the end.
        mean: Mean of each color channel, where 1 is white.
        std: Standard deviation of each color channel.
        flip: Whether a mirrored image keeps its class.
        content: The fingerprint, or a function that computes it.
        old_fingerprint: Fingerprint by older versions, if different.
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
    content: str | Callable[[], str]
    old_fingerprint: str | None = None

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of content, splits and preprocessing.

        For images on disk every file is read once; see `sortnet.lab.data.folder_digest`.
        """
        return self.content if isinstance(self.content, str) else self.content()

    def to(self, device: torch.device) -> "Dataset":
        """Return the dataset with its images on a device, where batches are then made.

        Images on disk, and more than `RESIDENT` bytes of them, stay where they are.
        """

        def to_device(split: SplitT) -> SplitT:
            small = isinstance(split, InMemorySplit) and split.images.nbytes <= RESIDENT
            return split.to(device) if small else split  # type: ignore[attr-defined]

        if device.type == "cpu":
            return self
        validation = None if self.validation is None else to_device(self.validation)
        train, test = to_device(self.train), to_device(self.test)
        return replace(self, train=train, validation=validation, test=test)


@dataclass(frozen=True)
class LoadOptions:
    """Arguments of `load`."""

    name: str
    size: int | None = None
    validation: int = 0
    preprocess: str | None = None

    def __post_init__(self) -> None:
        limits.check(validation=self.validation)
        limits.check_given(size=self.size)

    def check_plain(self, side: int) -> None:
        """Refuse preprocessing, and another size than that of the images."""
        if self.preprocess not in (None, "none"):
            raise UsageError(
                f"{self.name} has no preprocessing {self.preprocess!r}; only svhn has"
            )
        self.check_size(side)

    def check_size(self, side: int) -> None:
        """Refuse another size than that of the images."""
        if self.size not in (None, side):
            raise UsageError(
                f"{self.name} has images of {side} x {side}; only image folders are resized to"
                f" --size {self.size}"
            )

    def check_validation(self, count: int) -> None:
        """Refuse to hold out more images than there are."""
        if not 0 <= self.validation < count:
            raise UsageError(
                f"{self.validation} of {self.name}'s {count} training images cannot be held out"
                f" for validation; choose 0 to {count - 1}"
            )


def stratified_split(labels: Tensor, count: int, *purpose: object) -> tuple[Tensor, Tensor]:
    """Split rows into the rest and `count` held-out rows, the same fraction of each class.

    Fractions are rounded so that they add up (largest remainder first). Which rows of a class are
    held out depends only on the purpose. Both results are in ascending order.

    Example:
        >>> rest, held = stratified_split(torch.tensor([0] * 8 + [1] * 4), 3, "example")
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


def channel_stats(images: Tensor) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Return mean and standard deviation of each channel of uint8 images, where 1 is white."""
    levels = torch.arange(256, dtype=torch.float64) / 255
    mean, std = [], []
    for channel in range(3):
        counts = torch.zeros(256, dtype=torch.float64)
        for chunk in torch.split(images, 10_000):
            counts += torch.bincount(chunk[:, channel].flatten(), minlength=256)
        share = counts / counts.sum()
        mean.append(float(share @ levels))
        std.append(float((share @ levels.square() - mean[-1] ** 2).clamp(min=1e-12).sqrt()))
    return (mean[0], mean[1], mean[2]), (std[0], std[1], std[2])


def fingerprint(*parts: object) -> str:
    """Return the SHA-256 of tensors and of objects with a portable `repr`."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, Tensor):
            digest.update(f"{part.dtype}{tuple(part.shape)}".encode())
            digest.update(part.contiguous().numpy().data)
        else:
            digest.update(repr(part).encode())
    return digest.hexdigest()
