"""SORT in an existing model: convert torchvision's ResNeXt and train it for a few steps.

This example lists the sites where branches are added, makes a copy that fuses them by SORT with
gates that start at zero, checks that the copy computes the same outputs, and trains both on
scikit-learn's handwritten digits.

    python examples/resnext.py
    python examples/resnext.py --steps 100 --batch 64 --gate none
"""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torchvision.models.resnet import Bottleneck, ResNet

from sortnet.surgery import sites, sortify


def digits(side: int) -> tuple[Tensor, Tensor]:
    """Return images with three equal channels, and their labels."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32)[:, None] / 8 - 1
    images = F.interpolate(images, (side, side), mode="bilinear")
    return images.expand(-1, 3, -1, -1), torch.tensor(data.target)


def train(model: nn.Module, images: Tensor, labels: Tensor, steps: int, batch: int) -> list[float]:
    """Train for some steps on the same images for every model; return the losses."""
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    losses = []
    for _ in range(steps):
        chosen = torch.randint(len(images), (batch,))
        loss = F.cross_entropy(model(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    """Convert, compare, train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--depths", type=int, nargs=4, default=[1, 1, 1, 1], help="3 4 6 3 is 50")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--gate", choices=["zero", "one", "none"], default="zero")
    options = parser.parse_args()

    torch.manual_seed(0)
    plain = ResNet(Bottleneck, options.depths, num_classes=10, groups=32, width_per_group=4)
    for site in sites(plain):
        print(site)

    gate = None if options.gate == "none" else options.gate
    changed = sortify(plain, gate=gate)
    images, labels = digits(32)
    difference = (changed.eval()(images[:4]) - plain.eval()(images[:4])).abs().max().item()
    print(f"\nbefore training, outputs differ by {difference:g}")
    for name, model in {"sum": plain, "SORT": changed}.items():
        losses = train(model.train(), images, labels, options.steps, options.batch)
        print(f"{name:5} loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    if gate == "zero":
        gates = torch.cat([p.detach() for n, p in changed.named_parameters() if "gate" in n])
        print(f"gates after training: {gates.min():.4f} to {gates.max():.4f}")


if __name__ == "__main__":
    main()
