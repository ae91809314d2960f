"""Evaluation of a network on a split: top-1 and top-5 errors, loss and confusion matrix."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sortnet.lab import data
from sortnet.lab.data import Dataset, Split
from sortnet.lab.training.devices import widest_float
from sortnet.lab.training.distributed import Distributed
from sortnet.lab.training.hardware import Machine

TOP5_CLASSES = 6
"""Classes from which a top-5 error says anything."""


def evaluate(
    network: nn.Module,
    dataset: Dataset,
    split: Split,
    machine: Machine | None = None,
    distributed: Distributed | None = None,
) -> "Scores":
    """Run a network over a split once, in order. The network is left in evaluation mode.

    Runs in float32 whatever the network was trained in, so that evaluating its weights anywhere
    gives the same errors.
    """
    machine, distributed = machine or Machine.here("off"), distributed or Distributed()
    network = machine.place(network).eval()
    scores = Scores(len(dataset.classes), machine.device)
    batches = data.eval_batches(
        dataset, split, rank=distributed.rank, world_size=distributed.size, device=machine.device
    )
    with torch.inference_mode():
        for batch in batches:
            logits = network(machine.images(batch.images))
            scores.add(logits, machine.labels(batch.labels))
    for counts in scores.counts():
        distributed.all_reduce(counts)
    return scores


class Scores:
    """Counts over the batches of a split.

    Arguments:
        num_classes: Number of classes.
        device: Where the counts are kept.

    Attributes:
        confusion: Images by class (row) and prediction (column).
        predictions: The predicted class of each image, batch by batch.
        confidences: Its probability.
    """

    def __init__(self, num_classes: int, device: torch.device) -> None:
        self.confusion = torch.zeros(num_classes, num_classes, dtype=torch.int64, device=device)
        self.in_five = torch.zeros((), dtype=torch.int64, device=device)
        self.losses = torch.zeros((), dtype=widest_float(device), device=device)
        self.predictions: list[Tensor] = []
        self.confidences: list[Tensor] = []

    def add(self, logits: Tensor, labels: Tensor) -> None:
        """Count a batch: logits of shape :math:`(N, num_classes)`."""
        confidences, predictions = logits.softmax(1).max(1)
        flat = labels * len(self.confusion) + predictions
        self.confusion += flat.bincount(minlength=self.confusion.numel()).view_as(self.confusion)
        best = logits.topk(min(5, logits.shape[1]), dim=1).indices
        self.in_five += (best == labels[:, None]).sum()
        self.losses += F.cross_entropy(logits.to(self.losses.dtype), labels, reduction="sum")
        self.predictions.append(predictions.cpu())
        self.confidences.append(confidences.cpu())

    def counts(self) -> tuple[Tensor, ...]:
        """Return the tensors to sum over processes."""
        return self.confusion, self.in_five, self.losses

    @property
    def images(self) -> int:
        """Number of images counted."""
        return int(self.confusion.sum())

    @property
    def error(self) -> float:
        """Top-1 error in percent."""
        return 100 * (1 - int(self.confusion.diagonal().sum()) / self.images)

    @property
    def error5(self) -> float | None:
        """Top-5 error in percent; None with five classes or fewer, where it is always zero."""
        if len(self.confusion) < TOP5_CLASSES:
            return None
        return 100 * (1 - int(self.in_five) / self.images)

    @property
    def loss(self) -> float:
        """Mean cross-entropy."""
        return float(self.losses) / self.images

    def errors(self) -> dict[str, float]:
        """Return the errors in percent: ``error``, and ``error5`` where it says anything."""
        top5 = {} if self.error5 is None else {"error5": self.error5}
        return {"error": self.error, **top5}

    def row(self, step: int, split: str) -> dict[str, Any]:
        """Return the figures as a row of metrics."""
        return {"step": step, "split": split, "loss": self.loss, **self.errors()}
