"""The cost of each variant: parameters, step time, inference time, bytes saved for backward."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from sortnet.lab import data
from sortnet.lab.compare.answer import Cost
from sortnet.lab.compare.plan import ComparisonPlan
from sortnet.lab.data import Augmentation, Batch
from sortnet.lab.measure import parameters, ratio, saved_bytes, side_by_side
from sortnet.lab.training import Machine

SECONDS = 6.0
"""Approximate time for measuring the step, and again the inference, in seconds."""
ROUNDS = (8, 48)
"""Smallest and largest number of rounds."""
WARM_UP = 3


@dataclass(frozen=True, eq=False)
class _Timed:
    """A variant that is measured."""

    model: nn.Module
    machine: Machine
    batch: Batch

    def forward(self) -> None:
        with torch.inference_mode(), self.machine.autocast():
            self.model(self.batch.images)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad(set_to_none=True)
        with self.machine.autocast():
            logits = self.model(self.batch.images)
        torch.autograd.backward(F.cross_entropy(logits.float(), self.batch.labels))
        optimizer.step()


def measure_costs(planned: ComparisonPlan) -> list[Cost]:
    """Measure all variants in turns, on a batch of the training images."""
    machine = Machine.here("off", None, planned.first.precision, planned.device)
    batches = data.train_batches(
        planned.dataset, Augmentation(), batch=planned.recipe.batch, seed=0, stop=1, workers=0
    )
    raw = next(batches)
    batch = Batch(machine.images(raw.images), machine.labels(raw.labels))
    subjects = [
        _Timed(machine.place(planned.build(variant)), machine, batch)
        for variant in planned.variants
    ]
    saved = [_saved(subject) for subject in subjects]
    steps = _in_turns([_stepping(subject) for subject in subjects])
    for subject in subjects:
        subject.model.eval()
    forwards = _in_turns([subject.forward for subject in subjects])
    return [
        Cost(
            parameters(subject.model),
            _median(steps[i]),
            ratio(steps[i], steps[0]),
            _median(forwards[i]),
            ratio(forwards[i], forwards[0]),
            saved[i],
        )
        for i, subject in enumerate(subjects)
    ]


def _saved(subject: _Timed) -> int:
    subject.model.train()
    with subject.machine.autocast():
        return saved_bytes(subject.model, subject.batch.images)


def _stepping(subject: _Timed) -> Callable[[], None]:
    """Return a training step that leaves the weights unchanged: its learning rate is 0."""
    trainable = [p for p in subject.model.parameters() if p.requires_grad]
    optimizer = subject.machine.sgd(trainable, lr=0.0, momentum=0.9, decay=0.0)
    return lambda: subject.step(optimizer)


def _in_turns(functions: list[Callable[[], None]]) -> list[list[float]]:
    for function in functions * WARM_UP:
        function()
    start = time.perf_counter()
    for function in functions:
        function()
    least, most = ROUNDS
    rounds = int(SECONDS / max(1e-6, time.perf_counter() - start))
    return side_by_side(functions, min(most, max(least, rounds)))


def _median(times: list[float]) -> float:
    return sorted(times)[len(times) // 2]
