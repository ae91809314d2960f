"""PyTorch datasets of (image, label) as a `Dataset` of this package: read once into memory."""

from collections.abc import Iterator, Sized
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sortnet.errors import UsageError
from sortnet.lab.data.dataset import Dataset, InMemorySplit, channel_stats, fingerprint

MOST = 4 << 30
"""Largest size of the images in memory, in bytes."""


def from_torch(
    train: Any,  # noqa: ANN401
    test: Any,  # noqa: ANN401
    *,
    classes: tuple[str, ...] | None = None,
    name: str = "own",
    flip: bool = True,
) -> Dataset:
    """Read two PyTorch datasets, for training and for testing, into memory.

    Every item must be an image and its class: a PIL image or a tensor (channels, height, width),
    and an integer from 0 on. All images must be of one square size. PIL images and uint8 tensors
    are normalized with the mean and deviation of the training images; floating-point tensors are
    used unchanged, because a transform has usually normalized them. Each image is read once, so
    random transforms do not act again in every epoch: the recipe's augmentation does.

    Arguments:
        train: A map-style dataset: ``len(train)`` and ``train[i]``.
        test: The same, for testing.
        classes: Names of the classes; by default the training set's ``classes``, or numbers.
        name: Name of the dataset.
        flip: Whether a mirrored image keeps its class.
    """
    images, labels = _read(train, "the training set")
    test_images, test_labels = _read(test, "the test set")
    if images.shape[1:] != test_images.shape[1:] or images.dtype != test_images.dtype:
        raise UsageError(
            f"the images of the training set are {_form(images)}, those of the test set"
            f" {_form(test_images)}"
        )
    names = _names(train, classes, max(int(labels.max()), int(test_labels.max())) + 1)
    mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    if images.dtype == torch.uint8:
        mean, std = channel_stats(images)
    mark = fingerprint("torch", images, labels, test_images, test_labels, mean, std, names)
    return Dataset(
        name=f"{name}-{mark[:8]}",
        classes=names,
        size=images.shape[-1],
        train=InMemorySplit.of(images, labels),
        validation=None,
        test=InMemorySplit.of(test_images, test_labels),
        mean=mean,
        std=std,
        flip=flip,
        content=mark,
    )


def _names(train: object, classes: tuple[str, ...] | None, count: int) -> tuple[str, ...]:
    given = getattr(train, "classes", None) if classes is None else classes
    names = tuple(map(str, given)) if given else tuple(map(str, range(count)))
    if count > len(names):
        raise UsageError(f"there is a label {count - 1}, but there are {len(names)} classes")
    if len(names) < 2:
        raise UsageError("all images are of one class; at least two classes are needed")
    return names


def _form(images: Tensor) -> str:
    return f"{images.shape[-1]} px of {images.dtype}".replace("torch.", "")


def _read(dataset: Any, what: str) -> tuple[Tensor, Tensor]:  # noqa: ANN401
    """Read all items; raise for the first that is not an image and a class."""
    if not isinstance(dataset, Sized) or not hasattr(dataset, "__getitem__"):
        raise UsageError(f"{what} is a {type(dataset).__name__} without a length and items")
    if len(dataset) == 0:
        raise UsageError(f"{what} is empty")
    images: list[Tensor] = []
    labels: list[int] = []
    total = 0
    for i, item in enumerate(_items(dataset)):
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise UsageError(f"item {i} of {what} is a {_kind(item)}, not an (image, label) pair")
        image, label = _image(item[0], i, what), item[1]
        if isinstance(label, bool | float) or not hasattr(label, "__index__") or int(label) < 0:
            raise UsageError(f"the label of item {i} of {what} is {label!r}, not a class number")
        if images and (image.shape, image.dtype) != (images[0].shape, images[0].dtype):
            raise UsageError(
                f"item {i} of {what} is {_form(image)}, item 0 {_form(images[0])}: resize all"
                " images to one size"
            )
        total += image.nbytes
        if total > MOST:
            raise UsageError(f"{what} is larger than {MOST >> 30} GB: use a folder of images")
        images.append(image)
        labels.append(int(label))
    return torch.stack(images), torch.tensor(labels)


def _items(dataset: Any) -> Iterator[Any]:  # noqa: ANN401
    """Yield every item, with random transforms that are the same each time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for i in range(len(dataset)):
            yield dataset[i]


def _kind(item: object) -> str:
    return f"{type(item).__name__} of {len(item)}" if isinstance(item, Sized) else repr(item)


def _image(image: object, i: int, what: str) -> Tensor:
    if isinstance(image, Image.Image):
        image = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).contiguous()
    if not isinstance(image, Tensor):
        raise UsageError(
            f"the image of item {i} of {what} is a {type(image).__name__}, not a tensor or a PIL"
            " image"
        )
    if image.dim() != 3 or image.shape[0] not in (1, 3) or image.shape[1] != image.shape[2]:
        raise UsageError(
            f"the image of item {i} of {what} has the shape {tuple(image.shape)}, not (3, side,"
            " side) or (1, side, side)"
        )
    if image.dtype != torch.uint8:
        image = image.to(torch.float32)
    return image.expand(3, -1, -1).contiguous()
