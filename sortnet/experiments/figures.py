"""What figures show that is measured and not trained: gradients and second-order terms."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sortnet import data, measure, runs
from sortnet.experiments.checks.gradients import LAGS, POINTS, correlations, digits
from sortnet.fusion import kernels
from sortnet.networks import Network, build, display

IMAGES = 32
NETWORKS: Mapping[str, Mapping[str, Any]] = {
    "lenet": {"branched": True},
    "bignet": {"branched": True},
    "resnet20": {},
    "resnet56": {},
}


def correlation(seeds: int = 6) -> dict[str, Any]:
    """The autocorrelation of input gradients at first weights, by depth, with and without SORT."""
    return {
        "about": f"first weights, {seeds} seeds, lines of {POINTS} points between two digits",
        "lags": list(LAGS),
        "series": [
            {"name": display(c.network), "fusion": c.fusion, "by_seed": list(c.by_seed)}
            for c in correlations(seeds)
        ],
    }


def activity(directories: Sequence[str | Path] = (), root: str | Path = "data") -> dict[str, Any]:
    """The second-order term's share of the output and how often it acts, block by block.

    Arguments:
        directories: Runs whose trained networks are shown some of their training images; without
            any it is the paper's small networks at their first weights, on digits.
        root: The directory of all data.
    """
    shown = _trained(directories, root) if directories else _first()
    with kernels.using("plain"):
        found = {name: measure.activity(network, images) for name, network, images in shown}
    return {
        "about": "trained networks" if directories else "first weights, on digits",
        "series": [
            {"name": name, "share": [p.share for p in parts], "active": [p.active for p in parts]}
            for name, parts in found.items()
        ],
    }


def _first() -> Iterator[tuple[str, Network, Tensor]]:
    images, _ = digits()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for name, options in NETWORKS.items():
            title = display(name, "sort", branched="branched" in options)
            yield title, build(name, 10, "sort", **options).train(), images[:IMAGES]


def _trained(
    directories: Sequence[str | Path], root: str | Path
) -> Iterator[tuple[str, Network, Tensor]]:
    for directory in directories:
        run = runs.read(directory)
        dataset = run.load(root)
        network, _ = runs.load(directory)
        batch = next(data.evaluation(dataset, dataset.train, batch=IMAGES))
        yield f"{run.title}, {run.data}, seed {run.seed}", network, batch.images
