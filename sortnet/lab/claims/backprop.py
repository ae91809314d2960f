"""Claims about gradients: how they shatter with depth, and their rounding errors."""

from typing import Any

import torch

from sortnet.fusion import kernels
from sortnet.lab.claims.finding import Check, Context, Expectation, Finding, judge
from sortnet.lab.experiments.figure_data import DEPTHS, correlations, digits
from sortnet.lab.measure.gradients import rounding_error
from sortnet.lab.statistics import compare
from sortnet.networks import create_model, display


def shattered(context: Context) -> Finding:
    """Compare the mean autocorrelation of input gradients at initialization."""
    found = correlations(3 if context.brief else 12)
    by_name = {(c.network, c.fusion): c for c in found}
    compared, levels = [], []
    for network in DEPTHS:
        second, plain = by_name[network, "sort"].mean, by_name[network, "sum"].mean
        compared.append(Expectation(display(network), compare(second, plain), expected=1))
        means = (sum(by_seed.values()) / len(by_seed) for by_seed in (plain, second))
        levels.append("/".join(f"{mean:.2f}" for mean in means))
    note = f"means with sum/SORT {', '.join(levels)}, at first weights, on digits"
    return judge(compared, note)


def steadier(context: Context) -> Finding:
    """Compare the error of the float32 gradient relative to float64, as a logarithm."""
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
        compared.append(Expectation(title, compare(errors["sort"], errors["sum"])))
    return judge(compared, "log10 of the relative error in float32, at first weights, on digits")


CHECKS: dict[str, Check] = {"shattered-gradients": shattered, "steadier-gradients": steadier}
