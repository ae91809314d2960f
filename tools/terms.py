"""What training does to second-order terms and to weights: from the checkpoints of runs.

``python -m tools.terms RUNS --root data`` adds every checkpoint in and below RUNS to
`results/terms.json`. A run keeps its last two checkpoints, or more with ``--keep``.
"""

import argparse
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from rich.progress import track
from torch import Tensor, nn

from sortnet import files, pretrained
from sortnet.fusion import Fusion, kernels
from sortnet.lab import measure, runs
from sortnet.lab.data import Dataset, eval_batches
from sortnet.lab.experiments.definitions import DATA
from sortnet.lab.report.tables import line
from sortnet.lab.runs.directory import network_config
from sortnet.lab.training import checkpoint

STORED = Path("results/terms.json")
EVERY = 2500
"""Checkpoints are grouped by the nearest multiple of this number of steps."""
SHOWN = (2500, 5000, 10000, 20000, 40000, 60000, 65000, 70000)
IMAGES = 1000
STAGES = 3
"""Stages of convolutions in LeNet*, each with a fusion."""


def norms(network: nn.Module) -> dict[str, float]:
    """Return the norm of the weights of convolutions and linear layers, by stage."""
    squares: dict[str, float] = defaultdict(float)
    for name, module in network.named_modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            squares[name.split(".")[0]] += float(module.weight.detach().double().square().sum())
    return {name: round(square**0.5, 4) for name, square in squares.items()}


def agreement(network: nn.Module, images: Tensor) -> dict[str, float]:
    """Return the fraction of positions at which both branches of each fusion are positive.

    Arguments:
        network: A network with any fusion, the sum as well.
        images: :math:`(N, C, H, W)`.
    """
    found: dict[str, float] = {}

    def record(name: str, fusion: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        a, b = inputs
        found[name] = round(float(((a > 0) & (b > 0)).float().mean()), 4)

    fusions = [(name, m) for name, m in network.named_modules() if isinstance(m, Fusion)]
    hooks = [m.register_forward_hook(partial(record, name)) for name, m in fusions]
    with torch.no_grad():
        network(images)
    for hook in hooks:
        hook.remove()
    return found


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
        both = agreement(network, images)
    rounded = [{k: v if k == "name" else round(v, 4) for k, v in asdict(t).items()} for t in terms]
    return {"terms": rounded, "both": both, "norms": norms(network)}


def table(stored: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what happens along the runs of LeNet*-SORT, for docs/results.md: means over seeds.

    Arguments:
        stored: By run, by step; see `measured`.
    """
    cells: dict[tuple[str, int], _Rows] = defaultdict(_Rows)
    for name, steps in stored.items():
        if "lenet-branched-sort" not in name:
            continue
        plain = _nearest(stored.get(name.replace("-sort", ""), {}))
        for step, found in _nearest(steps).items():
            rows = cells[name.split("/")[0], step]
            rows.shares.append([term["share"] for term in found["terms"]])
            rows.both.append(list(found["both"].values()))
            if step in plain:
                rows.both_sum.append(list(plain[step]["both"].values()))
                pairs = zip(found["norms"].values(), plain[step]["norms"].values(), strict=True)
                rows.norms.append([a / b for a, b in pairs][:STAGES])
    heading = ["", "steps", "seeds", *_Rows.HEADING]
    body = [
        [DATA[data], f"{step:,}", str(len(rows.shares)), *rows.cells()]
        for (data, step), rows in sorted(cells.items())
        if step in SHOWN
    ]
    return "\n".join(map(line, [heading, ["---"] * len(heading), *body])) + "\n"


@dataclass
class _Rows:
    """What was measured at one step: by seed, of each stage of convolutions."""

    HEADING = (
        *("share of the output (%)", "both positive, SORT (%)", "both positive, sum (%)"),
        "norm of weights, SORT / sum",
    )

    shares: list[list[float]] = field(default_factory=list)
    both: list[list[float]] = field(default_factory=list)
    both_sum: list[list[float]] = field(default_factory=list)
    norms: list[list[float]] = field(default_factory=list)

    def cells(self) -> list[str]:
        """Return means over seeds."""
        percent = ((100, 1, rows) for rows in (self.shares, self.both, self.both_sum))
        return [
            " · ".join(f"{scale * mean(x):.{digits}f}" for x in zip(*rows, strict=True))
            for scale, digits, rows in (*percent, (1, 2, self.norms))
        ]


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
    for directory in track(runs.find(*given.runs), "measuring runs"):
        run = runs.read(directory)
        about = network_config(directory, {})
        steps = stored.setdefault(run.id, {})
        every = checkpoint.survey(directory / "checkpoints")[0]
        if new := [found for found in every if str(found.step) not in steps]:
            data = run.load(given.root)
            steps.update({str(found.step): measured(found, about, data) for found in new})
        stored[run.id] = dict(sorted(steps.items(), key=lambda item: int(item[0])))
    files.write_json(STORED, dict(sorted(stored.items())))


if __name__ == "__main__":
    main()
