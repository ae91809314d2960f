"""Datasets, and batches as pure functions of seed and step."""

import os
from collections.abc import Callable
from pathlib import Path

from sortnet.errors import UsageError
from sortnet.lab.data import cifar, digits, folders, svhn
from sortnet.lab.data import lcn as lcn
from sortnet.lab.data.augment import Augmentation as Augmentation
from sortnet.lab.data.batches import eval_batches as eval_batches
from sortnet.lab.data.batches import train_batches as train_batches
from sortnet.lab.data.dataset import Batch as Batch
from sortnet.lab.data.dataset import Dataset as Dataset
from sortnet.lab.data.dataset import LoadOptions
from sortnet.lab.data.dataset import Split as Split
from sortnet.lab.data.fetch import get as get
from sortnet.lab.data.image_files import find_images as find_images
from sortnet.lab.data.image_files import read_image as read_image
from sortnet.lab.data.verify import Problem as Problem
from sortnet.lab.data.verify import check as check

DATASETS: dict[str, Callable[[Path, LoadOptions], Dataset]] = {
    "digits": digits.read,
    "cifar10": cifar.read,
    "cifar100": cifar.read,
    "svhn": svhn.read,
    "imagenet": folders.imagenet,
    "caltech256": folders.caltech256,
}
"""By name, the function that reads a dataset from the folder of all datasets."""


def load(
    name: str,
    root: str | Path = "data",
    *,
    size: int | None = None,
    validation: int = 0,
    preprocess: str | None = None,
) -> Dataset:
    """Read a dataset.

    Arguments:
        name: A name in `DATASETS`, or the path of an image folder.
        root: Folder of the named datasets.
        size: Side of the network's input images. Only image folders are resized, by default to
            224.
        validation: Number of training images to hold out, always the same ones: the last of
            CIFAR, the same fraction of each class elsewhere.
        preprocess: For svhn: ``lcn`` (default), ``lcn-pylearn2`` or ``none``.

    Example:
        >>> digits = load("digits", validation=100)
        >>> len(digits.train), len(digits.validation), len(digits.test)
        (1337, 100, 360)
    """
    options = LoadOptions(name, size, validation, preprocess)
    if name in DATASETS:
        return DATASETS[name](Path(root), options)
    if Path(resolve(name)).is_absolute():
        return folders.read(Path(name), options)
    raise UsageError(
        f"unknown dataset {name!r}; there are {', '.join(DATASETS)}, and paths of image folders"
    )


def resolve(name: str) -> str:
    """Return the name of a dataset, or the absolute path of an image folder.

    ``pets``, ``./pets`` and ``$PWD/pets`` are the same dataset. An unknown name is returned as is.
    """
    if name in DATASETS or not ("/" in name or os.sep in name or Path(name).is_dir()):
        return name
    return str(Path(name).resolve())


def find(name: str, root: str | Path = "data") -> None:
    """Look for a dataset without reading it.

    Arguments:
        name: A name in `DATASETS`, or the path of an image folder.
        root: Folder of the named datasets.

    Raises:
        FileNotFoundError: The dataset is missing; the message says how to get it.
    """
    finders = {"imagenet": folders.find_imagenet, "caltech256": folders.find_caltech256}
    if name in cifar.LAYOUTS:
        cifar.find(Path(root), name)
    elif name == "svhn":
        svhn.find(Path(root))
    elif name in finders:
        finders[name](Path(root))
    elif name not in DATASETS and not Path(name).is_dir():
        raise FileNotFoundError(f"{name}: no such folder of images")
