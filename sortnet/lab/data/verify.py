"""Checking every file of a data set."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sortnet.errors import UsageError
from sortnet.lab.data import cifar, folders, svhn
from sortnet.lab.data.download import Show, file_md5, quietly
from sortnet.lab.data.image_files import SUFFIXES, read_image
from sortnet.lab.data.sources import CIFAR10_FILES, SOURCES
from sortnet.lab.data.workers import in_order

TASK = 32
"""Images that a worker decodes at a time."""


class Problem(NamedTuple):
    """A bad file, and what is wrong with it."""

    path: Path
    reason: str


def check(name: str, root: str | Path = "data", *, show: Show | None = None) -> list[Problem]:
    """Check every file of a data set; all the bad ones are returned, an empty list is good news.

    Files that were published with a checksum are compared with it, of others the structure is
    checked, and every image of a folder is decoded.

    Arguments:
        name: Out of ``DATASETS``, or the path of a folder of images.
        root: The folder in which the named data sets lie.
        show: Called with what is going on, how far it is and how far it goes.
    """
    root, show = Path(root), show or quietly
    if name == "digits":
        return []
    if name in cifar.LAYOUTS:
        return list(_cifar_problems(name, root, show))
    if name == "svhn":
        return list(_svhn_problems(root, show))
    finders = {"imagenet": folders.find_imagenet, "caltech256": folders.find_caltech256}
    folder = finders[name](root) if name in finders else Path(name)
    if not folder.is_dir():
        raise UsageError(f"{name!r} is neither a data set nor a folder of images")
    return list(_folder_problems(folder, show))


def _cifar_problems(name: str, root: Path, show: Show) -> Iterator[Problem]:
    layout = cifar.LAYOUTS[name]
    folder, pickled = cifar.find(root, name)
    files = [*layout.train, *layout.test]
    for done, file in enumerate(files, start=1):
        path = folder / (Path(file).stem if pickled else file)
        try:
            if pickled:
                cifar.verified(path, layout)
            else:
                cifar.records(path, layout)
                if name == "cifar10":
                    _compare(path, CIFAR10_FILES[file])
        except (ValueError, OSError) as error:
            yield Problem(path, _reason(path, error))
        show(f"checking {name}", done, len(files))


def _svhn_problems(root: Path, show: Show) -> Iterator[Problem]:
    folder = svhn.find(root)
    for source in SOURCES["svhn"]:
        path = folder / source.name
        try:
            _compare(path, source.md5, show)
        except (ValueError, OSError) as error:
            yield Problem(path, _reason(path, error))


def _compare(path: Path, md5: str, show: Show = quietly) -> None:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing")
    found = file_md5(path, show)
    if found != md5:
        raise UsageError(f"{path} is not the published file: its MD5 is {found}, not {md5}")


def _reason(path: Path, error: Exception) -> str:
    """An error's message without the path that it begins with."""
    return str(error).removeprefix(str(path)).removeprefix(":").strip()


@dataclass(frozen=True)
class _Decoder:
    """Tries images; its copies do so in the workers."""

    root: Path

    def __getitem__(self, paths: list[str]) -> list[Problem]:
        return [problem for path in paths if (problem := self._problem(self.root / path))]

    def _problem(self, path: Path) -> Problem | None:
        if path.suffix.lower() not in SUFFIXES:
            return Problem(path, f"its name does not end like an image's ({_listed(SUFFIXES)})")
        try:
            read_image(path)
        except (ValueError, OSError) as error:
            return Problem(path, _reason(path, error))
        return None


def _listed(names: Iterable[str]) -> str:
    return " ".join(sorted(names))


def _folder_problems(folder: Path, show: Show) -> Iterator[Problem]:
    paths = sorted(path for path, _ in folders.every_file(folder, ""))
    tasks = [paths[begin : begin + TASK] for begin in range(0, len(paths), TASK)]
    for done, problems in enumerate(in_order(_Decoder(folder), tasks), start=1):
        yield from problems
        show("decoding images", min(done * TASK, len(paths)), len(paths))
