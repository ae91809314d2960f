"""The demands of ImageNet training on several GPUs, counted from the networks.

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
"""A backward pass takes twice the work of a forward pass: gradients of weights and of inputs."""
WEIGHTS = 3 * 4
"""Bytes per weight: weight, gradient and momentum in float32."""
NETWORKS = {"alexnet": {"branched": True}, "resnet18": {}, "resnet34": {}, "resnet50": {}}
IMAGES = (8, 16)
"""Two batch sizes; the difference of the saved bytes gives the bytes per image."""


@dataclass(frozen=True)
class Demand:
    """The demands of training a network.

    Attributes:
        name: The network, with SORT.
        parameters: Number of parameters, whose gradients are exchanged in every step.
        work: Multiply-adds per image of a forward pass.
        kept: Bytes per image saved for backward, in float32.
        batch: Images per step of its recipe.
        steps: Steps of its recipe.
    """

    name: str
    parameters: int
    work: int
    kept: int
    batch: int
    steps: int

    def memory(self, gpus: int) -> float:
        """Return the bytes on each GPU: weights, and what its part of the batch saves."""
        return WEIGHTS * self.parameters + self.kept * self.batch / gpus

    def exchanged(self, gpus: int) -> float:
        """Return the bytes that each GPU sends per step, in a ring all-reduce in float32."""
        return 2 * (gpus - 1) / gpus * 4 * self.parameters

    def computing(self, gpus: int, rate: float) -> float:
        """Return the seconds of arithmetic per step.

        Arguments:
            gpus: Number of GPUs that share the batch.
            rate: Multiply-adds per second of one GPU.
        """
        return PASSES * self.work * self.batch / gpus / rate


def demand(network: str, **options: Any) -> Demand:  # noqa: ANN401
    """Count the demands of a network of the paper, with SORT.

    Arguments:
        network: A name in `NETWORKS`.
        options: Further arguments of `create_model`.
    """
    model, recipe = create_model(network, fusion="sort", **options), DEFAULTS[network]
    with kernels.using("eager"):  # saves the same as kernels, without compiling them
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
