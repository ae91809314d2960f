"""Test from Python whether SORT helps your model on your dataset.

The dataset is any PyTorch dataset of (image, label); here it draws rings. The model is any
function that returns a new module. Seeds, steps and images are few, so that this takes seconds;
the answer then says that it cannot tell, and how many seeds it would need.

$ python examples/compare_own_data.py --steps 30 --seeds 3
"""

import argparse
import tempfile

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import sortnet


class Rings(Dataset[tuple[Tensor, int]]):
    """Noisy images of 24 x 24 with a ring; its radius is the class."""

    classes = ("small", "medium", "large")

    def __init__(self, count: int, seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(3, (count,), generator=random)
        self.noise = torch.rand(count, 3, 24, 24, generator=random)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        y, x = torch.meshgrid(torch.arange(24.0), torch.arange(24.0), indexing="ij")
        distance = ((x - 11.5) ** 2 + (y - 11.5) ** 2).sqrt()
        ring = (distance - (4 + 3 * self.labels[i])).abs() < 1.5
        return 0.5 * ring + self.noise[i], int(self.labels[i])


class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch to the shortcut; this is the site that a fusion replaces."""
        return torch.relu(x + self.body(x))


def make_model(num_classes: int) -> nn.Module:
    """Return a small residual network."""
    stem = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU())
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, num_classes))
    return nn.Sequential(stem, Block(16), Block(16), head)


def main(steps: int = 30, seeds: int = 3) -> str:
    """Compare the sum with SORT; return the verdict."""
    with tempfile.TemporaryDirectory() as out:
        answer = sortnet.compare(
            make_model,
            (Rings(240, seed=0), Rings(200, seed=1)),
            fusions=("sum", "sort"),
            seeds=seeds,
            steps=steps,
            out=out,
        )
    print(answer)
    return answer.verdict


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    main(arguments.steps, arguments.seeds)
