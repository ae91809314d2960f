"""Claims about gradients: how they shatter with depth, how exactly they are computed."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from sortnet.fusion import kernels
from sortnet.lab import data
from sortnet.lab.claims.finding import Check, Compared, Context, Finding, judged
from sortnet.lab.measure.gradients import gradient_correlation, rounding_error
from sortnet.lab.statistics import compare
from sortnet.networks import create_model, display

DEPTHS = ("resnet20", "resnet32", "resnet56")
LAGS = tuple(range(1, 17))
"""In steps of a line of 64: what is 1 to 16 of them apart."""
POINTS = 64
CALIBRATION = 24


@cache
def digits(count: int = 100) -> tuple[Tensor, Tensor]:
    """Embedded images, ready for a network."""
    dataset = data.load("digits")
    batch = next(data.eval_batches(dataset, dataset.test, batch=count))
    return batch.images, batch.labels


@dataclass(frozen=True)
class Correlation:
    """The autocorrelation of input gradients in one network.

    Attributes:
        network: Its name.
        fusion: ``sum`` or ``sort``.
        by_seed: One row for each seed, one column for each of `LAGS`.
    """

    network: str
    fusion: str
    by_seed: tuple[tuple[float, ...], ...]

    @property
    def mean(self) -> dict[int, float | None]:
        """Over all lags, by seed."""
        return {seed: sum(row) / len(row) for seed, row in enumerate(self.by_seed)}


@cache
def correlations(seeds: int) -> tuple[Correlation, ...]:
    """Residual networks of each depth at their first weights, along a line between two digits."""
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


def shattered(context: Context) -> Finding:
    """The mean autocorrelation of input gradients, SORT less sum, at first weights."""
    found = correlations(3 if context.brief else 12)
    by_name = {(c.network, c.fusion): c for c in found}
    compared, levels = [], []
    for network in DEPTHS:
        second, plain = by_name[network, "sort"].mean, by_name[network, "sum"].mean
        compared.append(Compared(display(network), compare(second, plain), expected=1))
        levels.append("/".join(f"{_mean(mean):.2f}" for mean in (plain, second)))
    note = f"means with sum/SORT {', '.join(levels)}, at first weights, on digits"
    return judged(compared, note)


def _mean(by_seed: dict[int, float | None]) -> float:
    known = [value for value in by_seed.values() if value is not None]
    return sum(known) / len(known)


def steadier(context: Context) -> Finding:
    """The gradient in float32 against float64: the logarithm of the error, SORT less sum."""
    images, labels = digits(8)
    compared = []
    branched: dict[str, Any] = {"branched": True}
    for network, options in (("lenet", branched), ("resnet20", {}), ("resnet56", {})):
        errors: dict[str, dict[int, float | None]] = {"sum": {}, "sort": {}}
        for fusion, by_seed in errors.items():
            for seed in range(3 if context.brief else 10):
                torch.manual_seed(seed)
                made = create_model(network, 10, fusion, **options)
                with kernels.using("plain"):
                    error = torch.tensor(rounding_error(made, images, labels))
                by_seed[seed] = float(error.log10())
        title = display(network, branched=bool(options))
        compared.append(Compared(title, compare(errors["sort"], errors["sum"])))
    return judged(compared, "log10 of the relative error in float32, at first weights, on digits")


CHECKS: dict[str, Check] = {"shattered-gradients": shattered, "steadier-gradients": steadier}
