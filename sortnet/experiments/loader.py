"""How fast batches come: beside torchvision's usual way, and beside a training step."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sortnet import data, measure
from sortnet.data import Augmentation, Dataset
from sortnet.data.dataset import Held
from sortnet.errors import UsageError
from sortnet.recipes import RESNET
from sortnet.runs import Run, fresh
from sortnet.training import Trainer

STEPS = 20
"""Batches in a round."""


@dataclass(frozen=True)
class Speed:
    """What was measured.

    Attributes:
        batch: Images in a batch.
        seconds: For one of our batches.
        usual: For a batch of torchvision's `DataLoader` with PIL transforms, relative to ours.
        share: Of a training step of ResNet-20, spent on waiting for its batch.
    """

    batch: int
    seconds: float
    usual: measure.Ratio
    share: measure.Ratio

    def __str__(self) -> str:
        return (
            f"a batch of {self.batch} takes {1000 * self.seconds:.1f} ms, which is"
            f" {self.batch / self.seconds:,.0f} images/s: {self.usual.median:.1f} times"
            f" [{self.usual.low:.1f}, {self.usual.high:.1f}] as fast as torchvision's DataLoader"
            f" with PIL transforms, and {100 * self.share.median:.2f} %"
            f" [{100 * self.share.low:.2f}, {100 * self.share.high:.2f}] of a step of ResNet-20"
        )


def compare(name: str, root: str | Path, rounds: int = 11) -> Speed:
    """Measure our stream, torchvision's way and a training step, in turns.

    Arguments:
        name: Of a data set of small images.
        root: The directory of all data.
        rounds: How many times each is measured.
    """
    dataset = data.load(name, root)
    if not isinstance(dataset.train, Held):
        raise UsageError(f"{name} is read from disk; only sets of small images are compared")
    batch, step = RESNET.batch, _step(dataset)
    ours = data.training(
        dataset,
        Augmentation(RESNET.pad, flip=RESNET.flip),
        batch=batch,
        seed=0,
        stop=STEPS * (rounds + 1),
    )
    theirs = _usual(dataset, dataset.train, batch)

    def some(batches: Iterator[Any]) -> None:
        for _ in range(STEPS):
            next(batches)

    functions = [lambda: some(ours), lambda: some(theirs), step]
    for function in functions:
        function()
    mine, usual, steps = measure.side_by_side(functions, rounds)
    one = [seconds / STEPS for seconds in mine]
    return Speed(
        batch,
        sorted(one)[rounds // 2],
        measure.ratio(usual, mine),
        measure.ratio(one, [a + b for a, b in zip(steps, one, strict=True)]),
    )


def _step(dataset: Dataset) -> Any:  # noqa: ANN401
    trainer = Trainer(
        fresh(Run("resnet20", RESNET), dataset), dataset, RESNET, seed=0, directory=Path()
    )
    batch = next(trainer._stream())
    return lambda: trainer.step(batch)


def _usual(dataset: Dataset, split: Held, batch: int) -> Iterator[Any]:
    """What most programs do: PIL images, transforms one by one, a `DataLoader`."""
    from PIL import Image
    from torch.utils.data import DataLoader
    from torch.utils.data import Dataset as Base
    from torchvision import transforms

    side, pad = dataset.size, RESNET.pad
    transform = transforms.Compose(
        [
            transforms.RandomCrop(side, pad),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(dataset.mean, dataset.std),
        ]
    )
    pixels = split.images.permute(0, 2, 3, 1).contiguous().numpy()

    class Usual(Base[tuple[Tensor, int]]):
        def __len__(self) -> int:
            return len(split)

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            picture = Image.fromarray(pixels[split.rows[index]])
            return transform(picture), int(split.labels[index])

    while True:
        yield from DataLoader(Usual(), batch, shuffle=True, generator=torch.Generator())
