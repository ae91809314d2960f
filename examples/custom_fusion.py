"""Write your own fusion: pass any module that takes two branches to `sortnet.create_model`.

SORT's product of two branches grows with the square of the responses, so initialization matters.
This example compares a bounded product, a + b + tanh(a * b), with the sum and SORT, from the same
initial weights and on the same digits.

$ python examples/custom_fusion.py --steps 150
"""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sortnet
from sortnet.lab import data
from sortnet.networks import FusionLike


class Bounded(nn.Module):
    """a + b + w tanh(a * b), with a learnable w for each channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels, 1, 1))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Fuse two branches of shape (N, C, H, W)."""
        return a + b + self.weight * torch.tanh(a * b)


FUSIONS: dict[str, FusionLike] = {"sum": "sum", "sort": "sort", "bounded": Bounded}


def train(fusion: FusionLike, digits: data.Dataset, steps: int) -> float:
    """Train a LeNet* for some steps; return the test error in percent."""
    torch.manual_seed(0)  # the same initial weights for every fusion
    network = sortnet.create_model("lenet", num_classes=10, fusion=fusion, branched=True)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    augmentation = data.Augmentation(pad=4)
    for images, labels in data.train_batches(digits, augmentation, batch=50, seed=0, stop=steps):
        optimizer.zero_grad()
        F.cross_entropy(network(images), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    network.eval()
    with torch.inference_mode():
        wrong = [
            int((network(images).argmax(1) != labels).sum())
            for images, labels in data.eval_batches(digits, digits.test)
        ]
    return 100 * sum(wrong) / len(digits.test)


def main(steps: int = 150) -> dict[str, float]:
    """Train with each fusion and print the errors."""
    digits = data.load("digits")
    errors = {name: train(fusion, digits, steps) for name, fusion in FUSIONS.items()}
    for name, error in errors.items():
        print(f"{name:8} {error:5.1f} % test error after {steps} steps")
    return errors


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=150)
    main(parser.parse_args().steps)
