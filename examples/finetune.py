"""Fine-tune a trained torchvision ResNet with SORT.

With ``gate="zero"`` the second-order terms are initially multiplied by zero, so that the converted
network computes the same outputs as the original; fine-tuning learns the gates. To avoid a
download, this example first trains a small network on the digits 0 to 4, and then fine-tunes it on
5 to 9, with and without SORT. With ``torchvision.models.resnet50(weights="DEFAULT")`` the code
from `sortify` on is the same.

$ python examples/finetune.py --steps 40
"""

import argparse
import copy
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, ResNet

from sortnet import surgery
from sortnet.lab import data
from sortnet.lab.data import Batch, Dataset, Split


def some(digits: Dataset, split: Split, first: int) -> tuple[Tensor, Tensor]:
    """Return five consecutive digits of a split, labeled from 0."""
    images, labels = next(data.eval_batches(digits, split, batch=len(split)))
    chosen = (labels >= first) & (labels < first + 5)
    return images[chosen], labels[chosen] - first


def batches(images: Tensor, labels: Tensor, steps: int) -> Iterator[Batch]:
    """Yield random batches, the same for every model."""
    draw = torch.Generator().manual_seed(0)
    for _ in range(steps):
        rows = torch.randint(len(images), (32,), generator=draw)
        yield Batch(images[rows], labels[rows])


def train(model: nn.Module, images: Tensor, labels: Tensor, steps: int) -> None:
    """Train all weights of a model."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for batch in batches(images, labels, steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch.images), batch.labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the accuracy in percent."""
    model.eval()
    with torch.inference_mode():
        return 100 * float((model(images).argmax(1) == labels).float().mean())


def main(steps: int = 40) -> dict[str, float]:
    """Train, convert, fine-tune; return the accuracies in percent."""
    torch.manual_seed(0)
    digits = data.load("digits")
    old, new = some(digits, digits.train, 0), some(digits, digits.train, 5)
    old_test, new_test = some(digits, digits.test, 0), some(digits, digits.test, 5)

    original = ResNet(BasicBlock, [1, 1, 1, 1], num_classes=5)
    train(original, *old, steps)
    converted = surgery.sortify(original, gate="zero", example=old[0][:1])
    found = {
        "digits 0 to 4, original": accuracy(original, *old_test),
        "digits 0 to 4, converted": accuracy(converted, *old_test),
    }
    with torch.inference_mode():
        difference = (converted(old_test[0]) - original(old_test[0])).abs().max()
    print(f"after conversion, outputs differ by {difference:g}")
    for name, model in {"original": copy.deepcopy(original), "converted": converted}.items():
        found[f"digits 5 to 9, {name}, before"] = accuracy(model, *new_test)
        train(model, *new, steps)
        found[f"digits 5 to 9, {name}, after"] = accuracy(model, *new_test)
    for what, value in found.items():
        print(f"{what:34} {value:5.1f} % accuracy")
    gates = [p.abs().max().item() for name, p in converted.named_parameters() if "gate" in name]
    found["gate"] = max(gates)
    print(f"{len(gates)} sites; the largest gate went from 0 to {found['gate']:.3f}")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    main(parser.parse_args().steps)
