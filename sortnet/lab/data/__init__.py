"""Datasets, and batches as pure functions of seed and step."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sortnet.errors import UsageError
from sortnet.lab.data import cifar, digits, folders, lcn, svhn
from sortnet.lab.data.augment import Augmentation
from sortnet.lab.data.batches import eval_batches, train_batches
from sortnet.lab.data.dataset import Batch, Dataset, LoadOptions, Split
from sortnet.lab.data.fetch import get
from sortnet.lab.data.image_files import find_images, read_image
from sortnet.lab.data.verify import Problem, check

__all__ = [
    "DATASETS",
    "Augmentation",
    "Batch",
    "Dataset",
    "Entry",
    "Problem",
    "Split",
    "check",
    "eval_batches",
    "find",
    "find_images",
    "get",
    "lcn",
    "load",
    "read_image",
    "resolve",
    "train_batches",
]


@dataclass(frozen=True)
class Entry:
    """A dataset with a name.

    Attributes:
        title: Its name in print.
        about: Its content in a line.
        read: Reads it from the folder of all datasets.
    """

    title: str
    about: str
    read: Callable[[Path, LoadOptions], Dataset]


DATASETS = {
    "digits": Entry("Digits", "1,797 handwritten digits, comes with scikit-learn", digits.read),
    "cifar10": Entry("CIFAR-10", "60,000 images of 32 x 32, 10 classes", cifar.read),
    "cifar100": Entry("CIFAR-100", "60,000 images of 32 x 32, 100 classes", cifar.read),
    "svhn": Entry("SVHN", "630,420 street numbers of 32 x 32, 10 digits", svhn.read),
    "imagenet": Entry("ImageNet", "1,331,167 photographs, 1,000 classes", folders.imagenet),
    "caltech256": Entry("Caltech-256", "29,780 photographs, 256 classes", folders.caltech256),
}


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
        return DATASETS[name].read(Path(root), options)
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
