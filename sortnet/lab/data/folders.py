"""Folders of images, one per class: ImageNet, Caltech-256, or your own.

Unlike torchvision's `ImageFolder`, listing refuses empty classes and empty files, survives
symbolic links that form a loop, and gives sizes for the fingerprint.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from sortnet.errors import UsageError
from sortnet.lab.data import folder_digest
from sortnet.lab.data.dataset import Dataset, FileSplit, LoadOptions, fingerprint, stratified_split
from sortnet.lab.data.image_files import SUFFIXES

SIZE = 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet, used for all photographs."""

TEST_SHARE = 5
"""Without a test folder, one image in so many of each class is in the test split."""

CALTECH = "256_ObjectCategories"
CLUTTER = "257.clutter"
"""Not a class: images of none of the 256, left out as in the transfer literature."""


@dataclass(frozen=True)
class Listing:
    """The images of a folder of class folders.

    Attributes:
        root: Folder that the paths are relative to.
        classes: Names of the class folders, sorted.
        paths: Paths of the images, sorted within each class.
        labels: Class of each image.
        sizes: Sizes in bytes.
    """

    root: Path
    classes: tuple[str, ...]
    paths: list[str]
    labels: list[int]
    sizes: list[int]

    def files(self) -> FileSplit:
        """Return the split of all images."""
        packed = np.array([os.fsencode(path) for path in self.paths])
        return FileSplit(self.root, packed, torch.tensor(self.labels))


def read(root: Path, options: LoadOptions) -> Dataset:
    """Read a folder of images with ``train`` and ``test`` or ``val`` in it, or class folders.

    With both ``test`` and ``val``, the latter is the validation split. Without ``train``, a fifth
    of each class is the test split; which files depends only on the sorted names.

    Arguments:
        root: The folder.
        options: Size of the images, and how many training images are held out, the same fraction
            of each class.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"{root}: no such folder of images")
    if not (root / "train").is_dir():
        return _split_classes(listing(root), options)
    tests = [name for name in ("test", "val") if (root / name).is_dir()]
    if not tests:
        raise UsageError(f"{root} has a folder train but neither test nor val beside it")
    train, *others = (listing(root / name) for name in ("train", *tests))
    for other in others:
        _check_same_classes(train, other)
    splits = [part.files() for part in (train, *others)]
    return _dataset((train, *others), splits, splits, options)


def imagenet(root: Path, options: LoadOptions) -> Dataset:
    """Read ImageNet (ILSVRC2012): ``train`` and ``val`` with a folder for each synset."""
    return read(find_imagenet(root), options)


def caltech256(root: Path, options: LoadOptions) -> Dataset:
    """Read Caltech-256, without its folder of clutter."""
    return _split_classes(listing(find_caltech256(root), deep=False, without=CLUTTER), options)


def find_imagenet(root: Path) -> Path:
    """Return the folder of ImageNet's ``train`` and ``val``."""
    for folder in (root / "imagenet", root):
        if (folder / "train").is_dir() and (folder / "val").is_dir():
            return folder
    raise FileNotFoundError(
        f"imagenet is not in {root}: there are no folders imagenet/train and imagenet/val;"
        " `sortnet data get imagenet` says how to get it"
    )


def find_caltech256(root: Path) -> Path:
    """Return the folder with the class folders of Caltech-256."""
    for folder in (root / CALTECH, root / "caltech256" / CALTECH):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(
        f"caltech256 is not in {root}: there is no folder {CALTECH}; download it with"
        f" `sortnet data get caltech256 --root {root}`"
    )


def listing(root: Path, *, deep: bool = True, without: str = "") -> Listing:
    """List the images of a folder of class folders.

    Hidden files, and files without the extension of an image, are skipped.

    Arguments:
        root: The folder.
        deep: Include subfolders of the class folders.
        without: A folder that is not a class.
    """
    with os.scandir(root) as entries:
        classes = sorted(e.name for e in entries if e.is_dir() and not _hidden(e.name))
    found = Listing(root, tuple(name for name in classes if name != without), [], [], [])
    for label, name in enumerate(found.classes):
        images = sorted(_images(root, name, deep))
        if not images:
            raise UsageError(f"{root / name} has no images; every folder in {root} is a class")
        found.paths.extend(path for path, _ in images)
        found.sizes.extend(size for _, size in images)
        found.labels.extend([label] * len(images))
    if len(found.classes) < 2:
        number = len(found.classes)
        raise UsageError(
            f"{root} has {number} folder{'s' * (number != 1)} of images; it needs two or more, one"
            " for each class"
        )
    return found


def _hidden(name: str) -> bool:
    return name.startswith(".")


def _images(root: Path, folder: str, deep: bool) -> Iterator[tuple[str, int]]:
    for path, size in every_file(root, folder, deep=deep):
        if Path(path).suffix.lower() in SUFFIXES:
            yield path, size


def every_file(root: Path, folder: str, *, deep: bool = True) -> Iterator[tuple[str, int]]:
    """Yield relative paths and sizes of all files of a folder that are not hidden."""
    with os.scandir(root / folder) as entries:
        for entry in entries:
            path = f"{folder}/{entry.name}" if folder else entry.name
            if _hidden(entry.name):
                continue
            if entry.is_dir():
                if deep and not _is_loop(entry):
                    yield from every_file(root, path)
            else:  # a dangling link has size 0, like an empty file
                yield path, entry.stat().st_size if entry.is_file() else 0


def _is_loop(entry: os.DirEntry[str]) -> bool:
    """Return True for a symbolic link to a folder that contains it."""
    path = Path(entry.path)
    return entry.is_symlink() and path.parent.resolve().is_relative_to(path.resolve())


class EmptyFileError(UsageError):
    """An image file is empty."""


def _check_not_empty(found: Listing) -> None:
    empty = [path for path, size in zip(found.paths, found.sizes, strict=True) if size == 0]
    if empty:
        more = f" and {len(empty) - 1:,} more files are" if len(empty) > 1 else " is"
        raise EmptyFileError(
            f"{found.root / empty[0]}{more} empty; list every bad file with"
            f" `sortnet data check {found.root}`"
        )


def _check_same_classes(train: Listing, other: Listing) -> None:
    different = set(train.classes) ^ set(other.classes)
    if different:
        raise UsageError(
            f"{train.root} and {other.root} have different classes: only one of them has"
            f" {', '.join(sorted(different)[:5])}"
        )


def _split_classes(found: Listing, options: LoadOptions) -> Dataset:
    files = found.files()
    rest, test = stratified_split(files.labels, len(files) // TEST_SHARE, "folder", "test")
    if len(test) == 0:
        raise UsageError(f"{found.root} has {len(files)} images, too few for a test split")
    splits = [files.subset(rest), files.subset(test)]
    return _dataset((found,), [files], splits, options)


def _dataset(
    listings: Sequence[Listing],
    every: list[FileSplit],
    splits: list[FileSplit],
    options: LoadOptions,
) -> Dataset:
    found = listings[0]
    for part in listings:
        _check_not_empty(part)
    contents = [(part.paths, part.sizes) for part in listings]
    if options.preprocess not in (None, "none"):
        raise UsageError(f"folders have no preprocessing {options.preprocess!r}; only svhn has")
    size = SIZE if options.size is None else options.size
    if size < 1:
        raise UsageError(f"images cannot have {size} pixels a side")
    train, test, *own = splits
    validation = own[0] if own else None
    if options.validation and own:
        raise UsageError(f"{options.name} has its own validation split; leave out --validation")
    options.check_validation(len(train))
    if options.validation:
        rest, held = stratified_split(train.labels, options.validation, "folder", "validation")
        train, validation = train.subset(rest), train.subset(held)
    listed = fingerprint("folder", found.classes, contents, size, options.validation, MEAN, STD)
    content = partial(_fingerprint, listed, every)
    parts = (train, validation, test)
    return Dataset(options.name, found.classes, size, *parts, MEAN, STD, True, content, listed)


def _fingerprint(listed: str, every: list[FileSplit]) -> str:
    """Return the fingerprint of the listing and of each file's bytes."""
    return fingerprint(listed, [folder_digest.digest(files) for files in every])
