"""Measurements behind figures: gradients, second-order terms and first training steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sortnet.fusion import kernels
from sortnet.lab import data, measure
from sortnet.lab.measure.gradients import gradient_correlation
from sortnet.lab.recipes import RESNET, Recipe
from sortnet.networks import Network, create_model, display

IMAGES = 32
NETWORKS: Mapping[str, Mapping[str, Any]] = {
    "lenet": {"branched": True},
    "bignet": {"branched": True},
    "resnet20": {},
    "resnet56": {},
}


DEPTHS = ("resnet20", "resnet32", "resnet56")
LAGS = tuple(range(1, 17))
"""Distances along the line between two images, in points."""
POINTS = 64
CALIBRATION = 24


@cache
def digits(count: int = 100) -> tuple[Tensor, Tensor]:
    """Return embedded digits, normalized."""
    dataset = data.load("digits")
    batch = next(data.eval_batches(dataset, dataset.test, batch=count))
    return batch.images, batch.labels


@dataclass(frozen=True)
class Correlation:
    """The autocorrelation of input gradients in one network.

    Attributes:
        network: Its name.
        fusion: ``sum`` or ``sort``.
        by_seed: One row per seed, one column per lag in `LAGS`.
    """

    network: str
    fusion: str
    by_seed: tuple[tuple[float, ...], ...]

    @property
    def mean(self) -> dict[int, float]:
        """The mean over all lags, by seed."""
        return {seed: sum(row) / len(row) for seed, row in enumerate(self.by_seed)}


@cache
def correlations(seeds: int) -> tuple[Correlation, ...]:
    """Measure residual networks of each depth at initialization, between two digits."""
    images, _ = digits()
    found = []
    with kernels.using("plain"):  # no kernel is worth its compilation for one pass
        for network in DEPTHS:
            for fusion in ("sum", "sort"):
                rows = []
                for seed in range(seeds):
                    torch.manual_seed(seed)
                    made = create_model(network, 10, fusion)
                    pair = images[2 * seed : 2 * seed + CALIBRATION]
                    values = gradient_correlation(made, pair, LAGS, POINTS, seed)
                    rows.append(tuple(values.tolist()))
                found.append(Correlation(network, fusion, tuple(rows)))
    return tuple(found)


def correlation(seeds: int = 6) -> dict[str, Any]:
    """Return the autocorrelation of input gradients at initialization, by depth and fusion."""
    return {
        "about": f"first weights, {seeds} seeds, lines of {POINTS} points between two digits",
        "lags": list(LAGS),
        "series": [
            {"name": display(c.network), "fusion": c.fusion, "by_seed": list(c.by_seed)}
            for c in correlations(seeds)
        ],
    }


def activity() -> dict[str, Any]:
    """Return the second-order term's share of the output and how often it is nonzero, by block.

    Of the paper's small networks at initialization, on digits.
    """
    images, found = digits()[0][:IMAGES], {}
    with torch.random.fork_rng(), kernels.using("plain"):
        torch.manual_seed(0)
        for name, options in NETWORKS.items():
            title = display(name, "sort", branched="branched" in options)
            network = create_model(name, 10, "sort", **options).train()
            found[title] = measure.activity(network, images)
    return {
        "about": "first weights, on digits",
        "series": [
            {"name": name, "share": [p.share for p in parts], "active": [p.active for p in parts]}
            for name, parts in found.items()
        ],
    }


def growth(steps: int = 60, batch: int = 100) -> dict[str, Any]:
    """Return how the first steps at a rate of 0.1 change the weights of ResNet-20, on digits.

    Arguments:
        steps: Number of steps.
        batch: Images per step.

    Returns:
        For each start the loss at every step, and the largest factor by which the norm of a
        convolution's weights has grown.
    """
    images, labels = digits()
    tried: dict[str, tuple[str, dict[str, Any], int]] = {
        "sum": ("sum", {}, 0),
        "SORT": ("sort", {}, 0),
        "SORT, warm-up": ("sort", {}, steps),
        "SORT, gates from zero": ("sort", {"gate": "zero"}, 0),
    }
    series = []
    for name, (fusion, options, warm_up) in tried.items():
        with torch.random.fork_rng():
            torch.manual_seed(0)
            network = create_model("resnet20", 10, fusion, **options).train()
            order = torch.randint(len(images), (steps, batch))
        recipe = replace(RESNET, warm_up=warm_up)
        with kernels.using("plain"):  # compiling kernels would take longer than these steps
            losses, growths = _steps(network, recipe, [(images[i], labels[i]) for i in order])
        series.append({"name": name, "loss": losses, "growth": growths})
    return {"about": f"ResNet-20, digits, batches of {batch}, seed 0", "series": series}


def _steps(
    network: Network, recipe: Recipe, batches: Sequence[tuple[Tensor, Tensor]]
) -> tuple[list[float], list[float]]:
    weights = [m.weight for m in network.modules() if isinstance(m, nn.Conv2d)]
    first = [weight.detach().norm() for weight in weights]
    optimizer = torch.optim.SGD(
        network.parameters(), momentum=0.9, nesterov=True, weight_decay=recipe.decay
    )
    losses, growths = [], []
    for step, (images, labels) in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate(step)
        loss = F.cross_entropy(network(images), labels)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        norms = [weight.detach().norm() for weight in weights]
        losses.append(round(loss.item(), 4))
        growths.append(round(max(float(n / f) for n, f in zip(norms, first, strict=True)), 4))
    return losses, growths
