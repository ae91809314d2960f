"""What training does to second-order terms and to weights: from the checkpoints of runs.

``python -m tools.terms RUNS --root data`` adds every checkpoint in and below RUNS to
`results/terms.json`. A run keeps its last two checkpoints, or more with ``--keep``.
"""

import argparse
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from rich.progress import track
from torch import nn

from sortnet import files, pretrained
from sortnet.fusion import kernels
from sortnet.lab import measure, runs
from sortnet.lab.data import Dataset, eval_batches
from sortnet.lab.report.tables import line
from sortnet.lab.runs.directory import network_config
from sortnet.lab.training import checkpoint

STORED = Path("results/terms.json")
EVERY = 2500
"""Checkpoints are grouped by the nearest multiple of this number of steps."""
SHOWN = (2500, 5000, 10000, 20000, 40000, 60000, 65000, 70000)
IMAGES = 1000


def norms(network: nn.Module) -> dict[str, float]:
    """Return the norm of the weights of convolutions and linear layers, by stage."""
    squares: dict[str, float] = defaultdict(float)
    for name, module in network.named_modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            squares[name.split(".")[0]] += float(module.weight.detach().double().square().sum())
    return {name: round(square**0.5, 4) for name, square in squares.items()}


def measured(
    found: checkpoint.Checkpoint, config: pretrained.Config, data: Dataset
) -> dict[str, Any]:
    """Measure the network of a checkpoint, on held-out images.

    Arguments:
        found: The checkpoint.
        config: Its network.
        data: The dataset of its run, with a validation split.
    """
    assert data.validation is not None
    network = config.create_model()
    pretrained.fit(network, found.tensors("model"))
    images = next(iter(eval_batches(data, data.validation, batch=IMAGES))).images
    with kernels.using("plain"):
        terms = measure.activity(network.eval(), images)
    rounded = [{k: v if k == "name" else round(v, 4) for k, v in asdict(t).items()} for t in terms]
    return {"terms": rounded, "norms": norms(network)}


def table(stored: Mapping[str, Mapping[str, Any]]) -> str:
    """Return shares and norms along the runs of LeNet*, for docs/results.md.

    Arguments:
        stored: By run, by step; see `measured`.
    """
    shares, ratios = defaultdict(list), defaultdict(list)
    seeds = defaultdict(set)
    for name, steps in stored.items():
        if "lenet-branched-sort" not in name:
            continue
        data, _, seed = name.split("/")
        plain = stored.get(name.replace("-sort", ""), {})
        for step, found in _nearest(steps).items():
            shares[data, step].append([term["share"] for term in found["terms"]])
            seeds[data, step].add(seed)
            if other := _nearest(plain).get(step):
                pairs = zip(found["norms"].values(), other["norms"].values(), strict=True)
                ratios[data, step].append([a / b for a, b in pairs])
    layers = [f"conv{i}" for i in (1, 2, 3)]
    heading = [
        "",
        "steps",
        "seeds",
        *(f"share, {x}" for x in layers),
        *(f"norm, {x}" for x in layers),
    ]
    rows = []
    for data, step in sorted(shares, key=lambda key: (key[0], key[1])):
        if step not in SHOWN:
            continue
        share = [f"{mean(x):.2f}" for x in zip(*shares[data, step], strict=True)]
        ratio = [f"{mean(x):.2f}" for x in zip(*ratios[data, step], strict=True)][:3]
        rows.append([data, f"{step:,}", str(len(seeds[data, step])), *share, *(ratio or [""] * 3)])
    return "\n".join(map(line, [heading, ["---"] * len(heading), *rows])) + "\n"


def _nearest(steps: Mapping[str, Any]) -> dict[int, Any]:
    """Return checkpoints by their rounded step."""
    return {EVERY * round(int(step) / EVERY): found for step, found in steps.items()}


def main() -> None:
    """Measure the checkpoints of all runs and add them to the stored ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--root", type=Path, default=Path("data"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    stored = files.read_json(STORED) if STORED.exists() else {}
    for directory in track(runs.find(*given.runs)):
        run = runs.read(directory)
        about = network_config(directory, {})
        steps = stored.setdefault(run.id, {})
        for found in checkpoint.survey(directory / "checkpoints")[0]:
            if str(found.step) not in steps:
                steps[str(found.step)] = measured(found, about, run.load(given.root))
        stored[run.id] = dict(sorted(steps.items(), key=lambda item: int(item[0])))
    files.write_json(STORED, dict(sorted(stored.items())))


if __name__ == "__main__":
    main()
