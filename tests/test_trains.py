"""Every network of the paper trains at the paper's first learning rate, with and without SORT.

On scikit-learn's digits, brought to 32 x 32, for as many steps as show it.
"""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from sortnet import build


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32)[:, None].expand(-1, 3, -1, -1)
    images = F.interpolate(images / 16, size=32, mode="bilinear")
    return (images - images.mean()) / images.std(), torch.tensor(data.target)


@pytest.mark.parametrize(
    ("name", "fusion", "options", "rate", "clip"),
    [
        ("lenet", "sum", {}, 1e-2, None),
        ("lenet", "sum", {"branched": True}, 1e-2, None),
        ("lenet", "sort", {"branched": True}, 1e-2, None),
        ("resnet20", "sum", {}, 1e-1, None),
        ("resnet20", "sort", {}, 1e-1, None),
        ("resnet20", "sort", {"style": "xu"}, 1e-1, None),
        ("wrn28", "sort", {"width": 1}, 1e-1, None),
    ],
)
def test_loss_falls(
    digits: tuple[Tensor, Tensor],
    name: str,
    fusion: str,
    options: dict[str, Any],
    rate: float,
    clip: float | None,
) -> None:
    images, labels = digits
    network: nn.Module = build(name, classes=10, fusion=fusion, **options)
    optimizer = torch.optim.SGD(network.parameters(), rate, momentum=0.9, weight_decay=5e-4)
    losses = []
    for step in range(60):
        chosen = torch.randint(len(images), (32,))
        loss = F.cross_entropy(network(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        if clip is not None:
            nn.utils.clip_grad_norm_(network.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
        assert losses[-1] == losses[-1], f"not a number at step {step}"
    assert sum(losses[-10:]) / 10 < 1.5
