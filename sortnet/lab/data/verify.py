"""Checking every file of a dataset."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sortnet.errors import UsageError
from sortnet.lab.data import cifar, folders, svhn
from sortnet.lab.data.dataset import LoadOptions
from sortnet.lab.data.download import OnProgress, file_md5, no_progress
from sortnet.lab.data.image_files import SUFFIXES, read_image
from sortnet.lab.data.sources import CIFAR10_FILES, SOURCES
from sortnet.lab.data.workers import map_in_workers

TASK = 32
"""Images that a worker decodes at a time."""


class Problem(NamedTuple):
    """A bad file or folder, and what is wrong with it."""

    path: Path
    reason: str


def check(
    name: str, root: str | Path = "data", *, on_progress: OnProgress | None = None
) -> list[Problem]:
    """Check every file of a dataset; return all problems, an empty list if there are none.

    Files with a published checksum are compared with it. Of an image folder every image is
    decoded, and whatever `load` would refuse is a problem.

    Arguments:
        name: A name in ``DATASETS``, or the path of an image folder.
        root: Folder of the named datasets.
        on_progress: Called with a description, the amount done and the total.
    """
    root, on_progress = Path(root), on_progress or no_progress
    if name == "digits":
        return []
    if name in cifar.LAYOUTS:
        return list(_cifar_problems(name, root, on_progress))
    if name == "svhn":
        return list(_svhn_problems(root, on_progress))
    if name == "imagenet":
        folder, read = folders.find_imagenet(root), folders.imagenet
    elif name == "caltech256":
        folder, read = folders.find_caltech256(root), folders.caltech256
    else:
        folder, root, read = Path(name), Path(name), folders.read
    if not folder.is_dir():
        raise UsageError(f"{name!r} is neither a dataset nor a folder of images")
    structure = _structure_problems(folder, lambda: read(root, LoadOptions(name)))
    return [*structure, *_file_problems(folder, on_progress)]


def _structure_problems(folder: Path, read: Callable[[], object]) -> Iterator[Problem]:
    """Apply the rules of `load`: two or more classes, none empty, the same in all splits."""
    try:
        read()
    except folders.EmptyFileError:
        pass  # decoding reports each file
    except UsageError as error:
        yield Problem(folder, _reason(folder, error))


def _cifar_problems(name: str, root: Path, on_progress: OnProgress) -> Iterator[Problem]:
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
        on_progress(f"checking {name}", done, len(files))


def _svhn_problems(root: Path, on_progress: OnProgress) -> Iterator[Problem]:
    folder = svhn.find(root)
    for source in SOURCES["svhn"]:
        path = folder / source.name
        try:
            _compare(path, source.md5, on_progress)
        except (ValueError, OSError) as error:
            yield Problem(path, _reason(path, error))


def _compare(path: Path, md5: str, on_progress: OnProgress = no_progress) -> None:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing")
    found = file_md5(path, on_progress)
    if found != md5:
        raise UsageError(f"{path} is not the published file: its MD5 is {found}, not {md5}")


def _reason(path: Path, error: Exception) -> str:
    """Return an error's message without the path at its beginning."""
    return str(error).removeprefix(f"{path}:").removeprefix(f"{path} ").strip()


@dataclass(frozen=True)
class _Decoder:
    """Decodes images, in the worker processes."""

    root: Path

    def __getitem__(self, paths: list[str]) -> list[Problem]:
        return [problem for path in paths if (problem := self._problem(self.root / path))]

    def _problem(self, path: Path) -> Problem | None:
        if path.suffix.lower() not in SUFFIXES:
            endings = " ".join(sorted(SUFFIXES))
            return Problem(path, f"skipped: its name does not end like an image's ({endings})")
        try:
            read_image(path)
        except (ValueError, OSError) as error:
            return Problem(path, _reason(path, error))
        return None


def _file_problems(folder: Path, on_progress: OnProgress) -> Iterator[Problem]:
    paths = sorted(path for path, _ in folders.every_file(folder, ""))
    tasks = [paths[begin : begin + TASK] for begin in range(0, len(paths), TASK)]
    for done, problems in enumerate(map_in_workers(_Decoder(folder), tasks), start=1):
        yield from problems
        on_progress("decoding images", min(done * TASK, len(paths)), len(paths))
