"""What ImageNet needs on several GPUs: counted from the networks, divided by a GPU's rates.

python -m tools.scale    # writes results/scale.json
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from sortnet import files
from sortnet.fusion import kernels
from sortnet.lab import measure
from sortnet.lab.recipes import DEFAULTS
from sortnet.networks import create_model, display

PASSES = 3
"""A backward pass is two forward passes' work: by the weights and by the input."""
WEIGHTS = 3 * 4
"""Bytes for each weight: itself, its gradient, its momentum, in float32."""
NETWORKS = {"alexnet": {"branched": True}, "resnet18": {}, "resnet34": {}, "resnet50": {}}
IMAGES = (8, 16)
"""Two batches; what the larger one keeps more is what an image costs."""


@dataclass(frozen=True)
class Demand:
    """What training a network needs.

    Attributes:
        name: The network, with SORT.
        parameters: How many numbers it learns, which are exchanged in every step.
        work: Multiply-adds of an image's forward pass.
        kept: Bytes that an image's forward pass keeps for the backward pass, in float32.
        batch: Images in a step of its recipe.
        steps: Of its recipe.
    """

    name: str
    parameters: int
    work: int
    kept: int
    batch: int
    steps: int

    def memory(self, gpus: int) -> float:
        """Bytes on each GPU: weights and what its part of the batch keeps; no workspace."""
        return WEIGHTS * self.parameters + self.kept * self.batch / gpus

    def exchanged(self, gpus: int) -> float:
        """Bytes that each GPU sends in a step, by a ring all-reduce of float32 gradients."""
        return 2 * (gpus - 1) / gpus * 4 * self.parameters

    def computing(self, gpus: int, rate: float) -> float:
        """Seconds of a step's arithmetic.

        Arguments:
            gpus: How many share the batch.
            rate: Multiply-adds that one of them does in a second.
        """
        return PASSES * self.work * self.batch / gpus / rate


def demand(network: str, **options: Any) -> Demand:  # noqa: ANN401
    """Count what a network of the paper needs, with SORT.

    Arguments:
        network: Out of `NETWORKS`.
        options: Further arguments of `create_model`.
    """
    model, recipe = create_model(network, fusion="sort", **options), DEFAULTS[network]
    with kernels.using("eager"):  # keeps the same, and there is nothing to compile
        kept = [
            measure.saved_bytes(model, torch.zeros(count, 3, model.size, model.size))
            for count in IMAGES
        ]
    return Demand(
        display(network, "sort", branched=bool(options.get("branched"))),
        measure.parameters(model),
        sum(stage.work.total for stage in measure.stages(model)),
        (kept[1] - kept[0]) // (IMAGES[1] - IMAGES[0]),
        recipe.batch,
        recipe.steps,
    )


def main() -> None:
    """Count all networks and write the results."""
    found = [asdict(demand(name, **options)) for name, options in NETWORKS.items()]
    files.write_json(Path("results/scale.json"), found)


if __name__ == "__main__":
    main()
