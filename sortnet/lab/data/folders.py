"""Folders of images, one for each class: ImageNet, Caltech-256, or a user's own."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from sortnet.errors import UsageError
from sortnet.lab.data import folder_digest as content
from sortnet.lab.data.dataset import Dataset, FileSplit, LoadOptions, fingerprint, stratified
from sortnet.lab.data.image_files import SUFFIXES

SIZE = 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet, which other collections of photographs are normalised with as well."""

TEST_SHARE = 5
"""A folder without a test split: one image in so many of each class becomes one."""

CALTECH = "256_ObjectCategories"
CLUTTER = "257.clutter"
"""Not a class: pictures that show none of the 256, left out as the transfer literature does."""


@dataclass(frozen=True)
class Listing:
    """The images of one folder of class folders.

    Attributes:
        root: The folder that the paths start from.
        classes: The class folders' names, sorted.
        paths: Of the images, sorted within each class.
        labels: The class of each.
        sizes: In bytes.
    """

    root: Path
    classes: tuple[str, ...]
    paths: list[str]
    labels: list[int]
    sizes: list[int]

    def files(self) -> FileSplit:
        """The split of all the images."""
        packed = np.array([os.fsencode(path) for path in self.paths])
        return FileSplit(self.root, packed, torch.tensor(self.labels))


def read(root: Path, wanted: LoadOptions) -> Dataset:
    """Read a folder of images: ``train`` and ``test`` or ``val`` in it, or classes directly.

    With ``test`` and ``val``, the latter is the validation split. Without either, a fifth of each
    class is the test split; which files depends on the sorted names alone.

    Arguments:
        root: The folder.
        wanted: The size, and how many training images are held out, the same share of each class.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"{root}: no such folder of images")
    if not (root / "train").is_dir():
        return _undivided(listing(root), wanted)
    tests = [name for name in ("test", "val") if (root / name).is_dir()]
    if not tests:
        raise UsageError(f"{root} has a folder train but neither test nor val beside it")
    train, *others = (listing(root / name) for name in ("train", *tests))
    for other in others:
        _same_classes(train, other)
    splits = [part.files() for part in (train, *others)]
    return _dataset((train, *others), splits, splits, wanted)


def imagenet(root: Path, wanted: LoadOptions) -> Dataset:
    """Read ImageNet (ILSVRC2012): ``train`` and ``val`` with a folder for each synset."""
    return read(find_imagenet(root), wanted)


def caltech256(root: Path, wanted: LoadOptions) -> Dataset:
    """Read Caltech-256, without its folder of clutter."""
    return _undivided(listing(find_caltech256(root), deep=False, without=CLUTTER), wanted)


def find_imagenet(root: Path) -> Path:
    """The folder that has ImageNet's ``train`` and ``val``."""
    for folder in (root / "imagenet", root):
        if (folder / "train").is_dir() and (folder / "val").is_dir():
            return folder
    raise FileNotFoundError(
        f"imagenet is not in {root}: there are no folders imagenet/train and imagenet/val; "
        f"`sortnet data get imagenet` says how to get it"
    )


def find_caltech256(root: Path) -> Path:
    """The folder that has the class folders of Caltech-256."""
    for folder in (root / CALTECH, root / "caltech256" / CALTECH):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(
        f"caltech256 is not in {root}: there is no folder {CALTECH}; get it with "
        f"`sortnet data get caltech256 --root {root}`"
    )


def listing(root: Path, *, deep: bool = True, without: str = "") -> Listing:
    """List the images of a folder of class folders.

    Files of other names than images have, and hidden ones, are passed over.

    Arguments:
        root: The folder.
        deep: Whether a class folder's subfolders belong to the class.
        without: A folder that is no class.
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
        raise UsageError(f"{root} has {len(found.classes)} folders of images; classes are folders")
    _refuse_empty(found)
    return found


def _hidden(name: str) -> bool:
    return name.startswith(".")


def _images(root: Path, folder: str, deep: bool) -> Iterator[tuple[str, int]]:
    for path, size in every_file(root, folder, deep=deep):
        if Path(path).suffix.lower() in SUFFIXES:
            yield path, size


def every_file(root: Path, folder: str, *, deep: bool = True) -> Iterator[tuple[str, int]]:
    """Paths, relative to the root, and sizes of all files of a folder that are not hidden."""
    with os.scandir(root / folder) as entries:
        for entry in entries:
            path = f"{folder}/{entry.name}" if folder else entry.name
            if _hidden(entry.name):
                continue
            if entry.is_dir():
                if deep and not _leads_back(entry):
                    yield from every_file(root, path)
            else:  # a dangling link has size 0, and is found like an empty file
                yield path, entry.stat().st_size if entry.is_file() else 0


def _leads_back(entry: os.DirEntry[str]) -> bool:
    """Whether it is a link to a folder that it lies in, which would never end."""
    path = Path(entry.path)
    return entry.is_symlink() and path.parent.resolve().is_relative_to(path.resolve())


def _refuse_empty(found: Listing) -> None:
    empty = [path for path, size in zip(found.paths, found.sizes, strict=True) if size == 0]
    if empty:
        more = f" and {len(empty) - 1:,} more files are" if len(empty) > 1 else " is"
        raise UsageError(
            f"{found.root / empty[0]}{more} empty; find every bad file with "
            f"`sortnet data check {found.root}`"
        )


def _same_classes(train: Listing, other: Listing) -> None:
    different = set(train.classes) ^ set(other.classes)
    if different:
        raise UsageError(
            f"{train.root} and {other.root} have different classes: only one of them has "
            f"{', '.join(sorted(different)[:5])}"
        )


def _undivided(found: Listing, wanted: LoadOptions) -> Dataset:
    files = found.files()
    rest, test = stratified(files.labels, len(files) // TEST_SHARE, "folder", "test")
    if len(test) == 0:
        raise UsageError(f"{found.root} has {len(files)} images, too few for a test split")
    splits = [files.chosen(rest), files.chosen(test)]
    return _dataset((found,), [files], splits, wanted)


def _dataset(
    listings: Sequence[Listing],
    every: list[FileSplit],
    splits: list[FileSplit],
    wanted: LoadOptions,
) -> Dataset:
    found = listings[0]
    marks = [(part.paths, part.sizes) for part in listings]
    if wanted.preprocess not in (None, "none"):
        raise UsageError(f"images have no preprocessing {wanted.preprocess!r}; only svhn has")
    size = SIZE if wanted.size is None else wanted.size
    if size < 1:
        raise UsageError(f"images cannot have {size} pixels a side")
    train, test, *own = splits
    validation = own[0] if own else None
    if wanted.validation and own:
        raise UsageError(f"{wanted.name} has a validation split of its own; leave it at 0")
    wanted.room(len(train))
    if wanted.validation:
        rest, held = stratified(train.labels, wanted.validation, "folder", "validation")
        train, validation = train.chosen(rest), train.chosen(held)
    former = fingerprint("folder", found.classes, marks, size, wanted.validation, MEAN, STD)
    mark = partial(_content, former, every)
    return Dataset(
        wanted.name, found.classes, size, train, validation, test, MEAN, STD, True, mark, former
    )


def _content(listed: str, every: list[FileSplit]) -> str:
    """The fingerprint of what was listed and of each file's bytes."""
    return fingerprint(listed, [content.digest(files) for files in every])
