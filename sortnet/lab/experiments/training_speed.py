"""Our training loop compared with another: ``bench --against pytorch`` and ``--against float32``.

The usual PyTorch loop is that of most CIFAR repositories: PIL images, torchvision's transforms
image by image in a DataLoader with workers, a network in the default layout and float32, a plain
loop.
"""

import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sortnet.errors import UsageError
from sortnet.fusion import kernels
from sortnet.lab import measure
from sortnet.lab.data import Dataset
from sortnet.lab.data.dataset import InMemorySplit
from sortnet.lab.experiments.benchmark import CASES, BenchmarkCase
from sortnet.lab.recipes import DEFAULTS
from sortnet.lab.training import Trainer, description
from sortnet.lab.training.hardware import cores
from sortnet.networks import create_model

IMAGES = 5_000
STEPS = 10
"""Steps per turn; during our turn the other loop's workers fill their queue, in its favor."""


def compare_loops(
    other: str,
    networks: tuple[str, ...],
    rounds: int,
    precision: str,
    show: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> dict[str, Any]:
    """Train each network in both ways, in turns, and return the rates, ready for JSON.

    Arguments:
        other: ``pytorch`` for the usual loop, or ``float32`` for ours in float32.
        networks: Networks of `sortnet bench` for images of 32 x 32.
        rounds: Number of turns of each loop.
        precision: Precision of our loop.
        show: Called with the name of the next network, the number done, and the total.
    """
    for name in networks:
        if name not in CASES or name in ("alexnet", "resnet18", "resnet34", "resnet50"):
            raise UsageError(f"{name!r} has no benchmark of its training: images must be 32 x 32")
    if other == precision:
        raise UsageError("float32 against float32: pass --precision bfloat16 or float16")
    fusions = ("sum", "sort") if other == "float32" else ("sum",)
    cases = [(CASES[name], fusion) for name in networks for fusion in fusions]
    found = []
    for i, (case, fusion) in enumerate(cases):
        title = case.name + ("-SORT" if fusion == "sort" else "")
        show(title, i, len(cases))
        found.append({"network": title} | _measured(case, fusion, other, rounds, precision))
    return {
        "machine": description(),
        "against": other,
        "precision": precision,
        "rounds": rounds,
        "workers": cores(),
        "measurements": found,
    }


def _measured(
    case: BenchmarkCase, fusion: str, other: str, rounds: int, precision: str
) -> dict[str, Any]:
    """Return images a second of both ways, and how many times as fast ours is."""
    dataset = _random_images()
    ours = _ours(case, fusion, dataset, precision)
    theirs = _usual(case, dataset) if other == "pytorch" else _ours(case, fusion, dataset, other)
    turns = [_turn(ours), _turn(theirs)]
    for turn in turns:
        turn()  # kernels are compiled, workers are started
    mine, usual = measure.side_by_side(turns, rounds)
    rates = [STEPS * case.batch / statistics.median(times) for times in (mine, usual)]
    speedup = {k: round(v, 3) for k, v in vars(measure.ratio(usual, mine)).items()}
    return {"batch": case.batch, "images": [round(rate, 1) for rate in rates], "speedup": speedup}


def _turn(steps: Iterator[None]) -> Callable[[], None]:
    def some() -> None:
        for _ in range(STEPS):
            next(steps)

    return some


def _random_images() -> Dataset:
    """Return random images, a tenth of CIFAR-10: the speed does not depend on their content."""
    images = torch.randint(0, 256, (IMAGES, 3, 32, 32), dtype=torch.uint8)
    split = InMemorySplit.of(images, torch.arange(IMAGES) % 10)
    names = tuple(map(str, range(10)))
    mean, std = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
    return Dataset("random", names, 32, split, None, split, mean, std, True, "")


def _ours(case: BenchmarkCase, fusion: str, dataset: Dataset, precision: str) -> Iterator[None]:
    recipe = DEFAULTS[case.network]
    network = create_model(case.network, 10, fusion=fusion, **case.options)
    trainer = Trainer(network, dataset, recipe, seed=0, directory=Path(), precision=precision)
    trainer.wrapped.train()
    for batch in trainer.batches():
        trainer.step(batch)
        yield


def _usual(case: BenchmarkCase, dataset: Dataset) -> Iterator[None]:
    recipe = DEFAULTS[case.network]
    network = create_model(case.network, 10, **case.options)
    optimizer = torch.optim.SGD(
        network.parameters(),
        recipe.learning_rate(0),
        momentum=recipe.momentum,
        weight_decay=recipe.decay,
        nesterov=recipe.nesterov,
    )
    for images, labels in _loader(dataset, case.batch, recipe.pad):
        with kernels.using("plain"):
            loss = F.cross_entropy(network(images), labels)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
        if recipe.clip is not None:
            torch.nn.utils.clip_grad_norm_(network.parameters(), recipe.clip)
        optimizer.step()
        loss.item()
        yield


def _loader(dataset: Dataset, batch: int, pad: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of transformed PIL images from a DataLoader with one worker per core."""
    from PIL import Image
    from torch.utils.data import DataLoader
    from torch.utils.data import Dataset as Base
    from torchvision import transforms

    transform = transforms.Compose(
        [
            transforms.RandomCrop(dataset.size, pad),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(dataset.mean, dataset.std),
        ]
    )
    split = dataset.train
    assert isinstance(split, InMemorySplit)
    pixels = split.images.permute(0, 2, 3, 1).contiguous().numpy()

    class Usual(Base[tuple[Tensor, int]]):
        def __len__(self) -> int:
            return len(split)

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            return transform(Image.fromarray(pixels[index])), int(split.labels[index])

    loader = DataLoader(Usual(), batch, shuffle=True, num_workers=cores(), persistent_workers=True)
    while True:
        yield from loader
