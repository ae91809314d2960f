"""What an evaluation counts: top-1 and top-5 errors, the loss, and who is taken for whom."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sortnet.lab.training.devices import widest_float


class Scores:
    """Counts over the batches of a split.

    Arguments:
        classes: How many classes there are.
        device: Where the counts are kept.
    """

    def __init__(self, classes: int, device: torch.device) -> None:
        self.confusion = torch.zeros(classes, classes, dtype=torch.int64, device=device)
        self.in_five = torch.zeros((), dtype=torch.int64, device=device)
        self.losses = torch.zeros((), dtype=widest_float(device), device=device)
        self.chosen: list[Tensor] = []
        self.sure: list[Tensor] = []

    def add(self, logits: Tensor, labels: Tensor) -> None:
        """Count a batch: logits of shape :math:`(N, classes)`."""
        sure, chosen = logits.softmax(1).max(1)
        flat = labels * len(self.confusion) + chosen
        self.confusion += flat.bincount(minlength=self.confusion.numel()).view_as(self.confusion)
        best = logits.topk(min(5, logits.shape[1]), dim=1).indices
        self.in_five += (best == labels[:, None]).sum()
        self.losses += F.cross_entropy(logits.to(self.losses.dtype), labels, reduction="sum")
        self.chosen.append(chosen.cpu())
        self.sure.append(sure.cpu())

    def counts(self) -> tuple[Tensor, ...]:
        """The tensors that are to be added up over processes."""
        return self.confusion, self.in_five, self.losses

    @property
    def images(self) -> int:
        """How many images were counted."""
        return int(self.confusion.sum())

    @property
    def error(self) -> float:
        """The top-1 error in per cent."""
        return 100 * (1 - int(self.confusion.diagonal().sum()) / self.images)

    @property
    def error5(self) -> float:
        """The top-5 error in per cent."""
        return 100 * (1 - int(self.in_five) / self.images)

    @property
    def loss(self) -> float:
        """The mean cross-entropy."""
        return float(self.losses) / self.images

    def row(self, step: int, split: str) -> dict[str, Any]:
        """The figures as a row of metrics."""
        return {
            "step": step,
            "split": split,
            "loss": self.loss,
            "error": self.error,
            "error5": self.error5,
        }
