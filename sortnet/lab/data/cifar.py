"""CIFAR-10 and CIFAR-100: the official binary files, or the pickles torchvision downloads.

torchvision's own reader unpickles whatever is there; this one only files with the published MD5.
"""

import hashlib
import io
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sortnet.errors import UsageError
from sortnet.lab.data.dataset import Dataset, InMemorySplit, LoadOptions, fingerprint

SIDE = 32
PIXELS = 3 * SIDE * SIDE

NAMES_10 = "airplane automobile bird cat deer dog frog horse ship truck"
NAMES_100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach
couch crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster
house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear
pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road
rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel
streetcar sunflower sweet_pepper table tank telephone television tiger tractor train
trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""


@dataclass(frozen=True)
class Layout:
    """How one of the two datasets is stored.

    Attributes:
        folder: Folder of the official binary files.
        train: Files of the training split, with the number of records of each.
        test: Files of the test split.
        label_bytes: Bytes before each record's pixels; the last one is the (fine) label.
        names: File with the names of the classes; may be missing.
        pickles: Folder of the Python version.
        published: MD5 of its files, in the order of train and test.
        label_key: Key of the labels in the pickles.
        classes: Names of the classes.
        mean: Mean of each color channel.
        std: Standard deviation of each color channel.
    """

    folder: str
    train: dict[str, int]
    test: dict[str, int]
    label_bytes: int
    names: str
    pickles: str
    published: dict[str, str]
    label_key: str
    classes: tuple[str, ...]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


LAYOUTS = {
    "cifar10": Layout(
        folder="cifar-10-batches-bin",
        train={f"data_batch_{i}.bin": 10_000 for i in range(1, 6)},
        test={"test_batch.bin": 10_000},
        label_bytes=1,
        names="batches.meta.txt",
        pickles="cifar-10-batches-py",
        published={
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
        },
        label_key="labels",
        classes=tuple(NAMES_10.split()),
        mean=(125.3 / 255, 123.0 / 255, 113.9 / 255),
        std=(63.0 / 255, 62.1 / 255, 66.7 / 255),
    ),
    "cifar100": Layout(
        folder="cifar-100-binary",
        train={"train.bin": 50_000},
        test={"test.bin": 10_000},
        label_bytes=2,
        names="fine_label_names.txt",
        pickles="cifar-100-python",
        published={
            "train": "16019d7e3df5f24257cddd939b257f8d",
            "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
        },
        label_key="fine_labels",
        classes=tuple(NAMES_100.split()),
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
    ),
}


def read(root: Path, options: LoadOptions) -> Dataset:
    """Read CIFAR-10 or CIFAR-100 into memory.

    Arguments:
        root: Folder of the official folder, of torchvision's, or of the files themselves.
        options: How many of the training images are held out; the last ones are.
    """
    layout = LAYOUTS[options.name]
    options.check_plain(SIDE)
    folder, pickled = find(root, options.name)
    files = _unpickled if pickled else _binary
    images, labels = files(folder, layout, list(layout.train))
    options.check_validation(len(images))
    kept = len(images) - options.validation
    whole = InMemorySplit.of(images, labels)
    train, validation = whole.subset(torch.arange(kept)), None
    if options.validation:
        validation = whole.subset(torch.arange(kept, len(images)))
    test = InMemorySplit.of(*files(folder, layout, list(layout.test)))
    names = layout.classes if pickled else _names(folder, layout)
    parts = (images, labels, test.images, test.labels, options.validation)
    content = fingerprint(options.name, *parts, layout.mean, layout.std)
    return Dataset(
        options.name, names, SIDE, train, validation, test, layout.mean, layout.std, True, content
    )


def find(root: Path, name: str) -> tuple[Path, bool]:
    """Return the folder with any of the files, and whether they are pickles."""
    layout = LAYOUTS[name]
    binary, pickled = [*layout.train, *layout.test], list(layout.published)
    for folder in (root / layout.folder, root):
        if any((folder / file).is_file() for file in binary):
            return folder, False
    for folder in (root / layout.pickles, root):
        if any((folder / file).is_file() for file in pickled):
            return folder, True
    raise FileNotFoundError(
        f"{name} is not in {root}: neither {layout.folder}/{binary[0]} nor"
        f" {layout.pickles}/{pickled[0]} exists; download it with"
        f" `sortnet data get {name} --root {root}`"
    )


def records(path: Path, layout: Layout) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Read the records of a binary file, one per row; a wrong size or label is a `UsageError`."""
    length = layout.label_bytes + PIXELS
    count = (layout.train | layout.test)[path.name]
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing")
    size = path.stat().st_size
    if size != count * length:
        raise UsageError(
            f"{path} has {size:,} bytes, not {count:,} records of {length:,}: it is"
            f" {'truncated' if size < count * length else 'another file'}; download it again"
        )
    rows = np.fromfile(path, np.uint8).reshape(count, length)
    worst = int(rows[:, layout.label_bytes - 1].max())
    if worst >= len(layout.classes):
        raise UsageError(f"{path} has label {worst}; there are {len(layout.classes)} classes")
    return rows


def _binary(folder: Path, layout: Layout, files: list[str]) -> tuple[Tensor, Tensor]:
    rows = [records(folder / name, layout) for name in files]
    images = np.concatenate([part[:, layout.label_bytes :] for part in rows])
    labels = np.concatenate([part[:, layout.label_bytes - 1] for part in rows])
    return _shaped(images, labels)


def _shaped(images: Any, labels: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401
    pixels = torch.from_numpy(np.ascontiguousarray(images)).view(-1, 3, SIDE, SIDE)
    return pixels, torch.from_numpy(np.asarray(labels, np.int64))


def _names(folder: Path, layout: Layout) -> tuple[str, ...]:
    path = folder / layout.names
    if not path.is_file():
        return layout.classes
    names = tuple(path.read_text(encoding="utf-8", errors="replace").split())
    if len(names) != len(layout.classes):
        raise UsageError(f"{path} has {len(names)} names; there are {len(layout.classes)} classes")
    return names


class _Unpickler(pickle.Unpickler):
    """An unpickler that creates numpy arrays and refuses everything else."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401
        array = {"_reconstruct", "ndarray", "dtype"}
        if module in ("numpy", "numpy.core.multiarray") and name in array:
            home = np if name != "_reconstruct" else np._core.multiarray  # type: ignore[attr-defined]
            return getattr(home, name)
        raise pickle.UnpicklingError(f"{module}.{name} does not belong in a dataset")


def verified(path: Path, layout: Layout) -> bytes:
    """Return the content of a pickle if its MD5 is the published one."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing")
    content = path.read_bytes()
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != layout.published[path.name]:
        raise UsageError(f"{path} is not the published file (its MD5 differs); it was not opened")
    return content


def _unpickled(folder: Path, layout: Layout, files: list[str]) -> tuple[Tensor, Tensor]:
    images, labels = [], []
    for name in files:
        content = verified(folder / Path(name).stem, layout)
        entry = _Unpickler(io.BytesIO(content), encoding="latin1").load()
        images.append(np.asarray(entry["data"], np.uint8))
        labels += entry[layout.label_key]
    return _shaped(np.concatenate(images), labels)
