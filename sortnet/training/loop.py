"""The one training loop.

Learning rate, order of the images, augmentation and dropout are functions of the seed and the
step, so that a checkpoint holds the weights, the momentum and a few numbers, and a run that was
killed and resumed is the uninterrupted one, bit for bit.
"""

import json
import math
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sortnet import data, limits
from sortnet.data import Augmentation, Batch, Dataset, Split
from sortnet.data.seeds import chance
from sortnet.errors import UsageError
from sortnet.recipes import Recipe
from sortnet.training import checkpoint
from sortnet.training.devices import resolve_device, widest_float
from sortnet.training.distributed import World
from sortnet.training.faults import Diverged, Interrupted, first_bad_module, signals
from sortnet.training.machine import Machine
from sortnet.training.scores import Scores
from sortnet.training.watch import Row, Watcher

ROLLBACKS = 5
"""How often a run goes back to a checkpoint before it is given up."""
MINUTES = 5.0
"""A checkpoint is written after so many minutes, however slow the steps are."""


SUMS = 4
"""Loss, wrong answers, norm of the gradient and images, added up from row to row.

Over all processes: every process has the same sums.
"""


@dataclass(frozen=True)
class Habits:
    """How a run is kept and watched; nothing of this changes what is learnt.

    Attributes:
        save_every: Steps between two checkpoints; a twentieth of the run, at most 500, without it.
        keep: How many of the newest checkpoints are kept.
        rollback: Whether a loss or gradient that is not finite takes the run back to its last
            checkpoint, with another order of the images and half the learning rate, and does not
            stop it.
        anyway: Whether to resume a run where threads, versions, processes or data have changed.
        compile: ``on``, ``off`` or ``auto``.
        device: The kind of device, one of `sortnet.training.DEVICES`.
    """

    save_every: int | None = None
    keep: int = 2
    rollback: bool = False
    anyway: bool = False
    compile: str = "auto"
    device: str = "auto"

    def __post_init__(self) -> None:
        limits.check(keep=self.keep)
        limits.check_given(save_every=self.save_every)


@dataclass
class State:
    """What a checkpoint holds besides tensors: all that the loop remembers."""

    step: int = 0
    seconds: float = 0.0
    metrics: int = 0
    rollbacks: int = 0
    best: float | None = None
    best_step: int | None = None
    sums: list[float] = field(default_factory=lambda: [0.0] * SUMS)


class Trainer:
    """Trains a network on a data set by a recipe, in a directory.

    Arguments:
        network: With its first weights.
        dataset: What it learns from.
        recipe: How.
        seed: Of order, augmentation and dropout.
        directory: Where checkpoints, metrics and events go.
        evaluations: How many times the validation images are looked at, if there are any.
        title: What watchers call it.
        precision: What convolutions compute in; `sortnet.training.machine` has the choice.
        habits: How the run is kept.
        world: The processes that train together, and the device of this one.
        watchers: Who is told.
    """

    def __init__(
        self,
        network: nn.Module,
        dataset: Dataset,
        recipe: Recipe,
        *,
        seed: int,
        directory: Path,
        evaluations: int = 20,
        title: str = "",
        precision: str = "float32",
        habits: Habits | None = None,
        world: World | None = None,
        watchers: Sequence[Watcher] = (),
    ) -> None:
        self.dataset, self.recipe, self.seed, self.directory = dataset, recipe, seed, directory
        self.habits = habits or Habits()
        self.world = world or World(device=resolve_device(self.habits.device))
        self.watchers = watchers if self.world.writes else ()
        self.machine = Machine.here(
            self.habits.compile, recipe.steps, precision, self.world.device
        )
        self.network = self.machine.place(network)
        self.called = self.machine.ready(self.world.join(self.network))
        self.optimizer = self._sgd()
        self.state = State()
        self.every = max(1, min(100, recipe.steps // 100))
        self.evaluate_every = math.ceil(recipe.steps / max(1, evaluations))
        self.save_every = self.habits.save_every or max(1, min(500, recipe.steps // 20))
        self.checkpoints = directory / "checkpoints"
        self.title = title or directory.name
        self.asked_to_stop = 0

    def _sgd(self) -> torch.optim.SGD:
        recipe = self.recipe
        norms = {
            id(p)
            for module in self.network.modules()
            if isinstance(module, nn.modules.batchnorm._NormBase)
            for p in module.parameters()
        }
        learnt = [p for p in self.network.parameters() if p.requires_grad]
        if not learnt:
            raise UsageError("all weights are frozen: there is nothing to learn")
        groups = [
            {"params": [p for p in learnt if id(p) not in norms]},
            {"params": [p for p in learnt if id(p) in norms]},
        ]
        if recipe.norm_decay is not None:
            groups[1]["weight_decay"] = recipe.norm_decay  # type: ignore[assignment]
        return self.machine.sgd(
            [group for group in groups if group["params"]],
            lr=recipe.rate(0),
            momentum=recipe.momentum,
            decay=recipe.decay,
            nesterov=recipe.nesterov,
        )

    # The loop

    def train(self) -> None:
        """Take all steps that are still to be taken, from the newest checkpoint on."""
        self.resume()
        self._tell("start", self.title, self.state.step, self.recipe.steps)
        try:
            with signals(self._ask_to_stop):
                while self.state.step < self.recipe.steps:
                    try:
                        self._steps()
                    except Diverged as error:
                        self._roll_back(error)
        finally:
            self._tell("stop")

    def _steps(self) -> None:
        self.called.train()
        saved = started = time.monotonic()
        for batch in self._stream():
            stop, late = self.step(batch, late=started - saved > 60 * MINUTES)
            self.state.seconds += time.monotonic() - started
            self._tell("step", self.state.step, self.recipe.batch)
            if self.state.step % self.every == 0 or self.state.step == self.recipe.steps:
                self._write_row()
            due = self.state.step % self.save_every == 0 or self.state.step == self.recipe.steps
            if self.dataset.validation is not None and self._evaluates():
                due |= self._validate(self.dataset.validation)
            if stop or due or late:
                self.save()
                saved = time.monotonic()
            if stop and self.state.step < self.recipe.steps:
                self.event("stop", signal=self.asked_to_stop)
                raise Interrupted(self.asked_to_stop or signal.SIGTERM, self.state.step)
            started = time.monotonic()

    def step(self, batch: Batch, late: bool = False) -> tuple[bool, bool]:
        """Take one step: nothing is changed if loss or gradient are not finite.

        Arguments:
            batch: This process's part of the step's images.
            late: Whether it is time for a checkpoint.

        Returns:
            Whether any process was asked to stop, and whether any is late for a checkpoint.
        """
        step, recipe = self.state.step, self.recipe
        images, labels = self.machine.images(batch.images), self.machine.labels(batch.labels)
        logits, loss = self._forward(self.called, images, labels)
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        gradients = [p.grad for p in self.network.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        wrong = (logits.detach().argmax(1) != labels).sum()
        figures = [loss.detach(), wrong, norm]
        *values, stops, lates = self._agree(figures, [bool(self.asked_to_stop), late])
        if not all(map(math.isfinite, values)):
            again = lambda: self._forward(self.network, images, labels)[1]  # noqa: E731
            raise Diverged(step, first_bad_module(self.network, images, again))
        rate = recipe.rate(step) * 0.5**self.state.rollbacks
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        if recipe.clip is not None:
            nn.utils.clip_grads_with_norm_(self.network.parameters(), recipe.clip, norm)
        self.optimizer.step()
        count = len(labels)
        new = (values[0] * count, values[1], values[2] * count, count * self.world.size)
        self.state.sums = [a + b for a, b in zip(self.state.sums, new, strict=True)]
        self.state.step += 1
        return stops > 0, lates > 0

    def _forward(
        self, network: nn.Module, images: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Logits and loss of this step, with its own dropout masks and precision."""
        state = self.state
        torch.manual_seed(chance(self.seed, state.rollbacks, state.step, self.world.rank))
        with self.machine.autocast():
            logits = network(images)
        half = self.machine.precision != "float32"
        return logits, F.cross_entropy(logits.float() if half else logits, labels)

    def _agree(self, figures: Sequence[Tensor], flags: Sequence[bool]) -> list[float]:
        """Add up figures and flags over all processes; what is not finite in one is so in all.

        All of them in one tensor: a step has this one collective besides DDP's, and this is the
        one time that it waits for the device.
        """
        device = self.world.device
        dtype = widest_float(device)
        # Filled on the device: a copy of a host's tensor would be waited for as well.
        raised = [torch.full((), float(flag), dtype=dtype, device=device) for flag in flags]
        numbers = torch.stack([*(figure.to(dtype) for figure in figures), *raised])
        return cast(list[float], self.world.sum(numbers).tolist())

    def _stream(self) -> Iterator[Batch]:
        recipe = self.recipe
        augmentation = Augmentation(
            recipe.pad,
            recipe.reflect,
            recipe.flip and self.dataset.flip,
            recipe.jitter,
            recipe.area,
        )
        return data.training(
            self.dataset,
            augmentation,
            batch=recipe.batch,
            seed=chance(self.seed, "images", self.state.rollbacks),
            start=self.state.step,
            stop=recipe.steps,
            rank=self.world.rank,
            world=self.world.size,
        )

    # Evaluation

    def evaluate(self, split: Split) -> Scores:
        """Look at a split once; all processes take part."""
        self.world.share(self.network)
        scores = score(self.network, self.dataset, split, self.machine, self.world)
        self.called.train()
        return scores

    def _evaluates(self) -> bool:
        step = self.state.step
        return step % self.evaluate_every == 0 or step == self.recipe.steps

    def _validate(self, split: Split) -> bool:
        """Evaluate on the validation split; whether this is the best so far."""
        scores = self.evaluate(split)
        self.append(scores.row(self.state.step, "validation"))
        if self.state.best is not None and scores.error >= self.state.best:
            return False
        self.state.best, self.state.best_step = scores.error, self.state.step
        return True

    # What is written

    def _write_row(self) -> None:
        loss, wrong, norm, count = self.state.sums
        self.state.sums = [0.0] * SUMS
        row = {
            "step": self.state.step,
            "split": "train",
            "loss": loss / count,
            "error": 100 * wrong / count,
            "rate": self.optimizer.param_groups[0]["lr"],
            "gradient": norm / count,
        }
        self.append(row)

    def append(self, row: Row) -> None:
        """Write a row of metrics; rows hold nothing that a second run would not find again."""
        if self.world.writes:
            with (self.directory / "metrics.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")
        self._tell("row", row)

    def event(self, name: str, **details: object) -> None:
        """Write down that something happened, and when."""
        if self.world.writes:
            event = {"time": time.time(), "event": name, "step": self.state.step, **details}
            with (self.directory / "events.jsonl").open("a") as file:
                file.write(json.dumps(event) + "\n")

    # Checkpoints

    def save(self) -> None:
        """Write a checkpoint, unless a weight is not finite, and remove old ones."""
        self.world.share(self.network)  # all processes judge the same numbers
        bad = checkpoint.finite(self.network.state_dict())
        if bad is not None:
            raise Diverged(self.state.step, bad)
        if not self.world.writes:
            return
        metrics = self.directory / "metrics.jsonl"
        with metrics.open("ab") as file:
            os.fsync(file.fileno())
            self.state.metrics = file.tell()
        parts = {"model": self.network.state_dict(), "optimizer": self._momentum()}
        state, environment = vars(self.state), self.environment()
        checkpoint.save(self.checkpoints, self.state.step, parts, state, environment)
        checkpoint.prune(self.checkpoints, self.habits.keep, self.state.best_step)

    def _momentum(self) -> dict[str, Tensor]:
        states = self.optimizer.state
        return {
            name: states[p]["momentum_buffer"]
            for name, p in self.network.named_parameters()
            if p in states and states[p].get("momentum_buffer") is not None
        }

    def environment(self) -> dict[str, Any]:
        """What a bit-identical continuation depends on."""
        return {
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "processes": self.world.size,
            "device": self.machine.device.type,
            "precision": self.machine.precision,
            "data": self.dataset.fingerprint,
        }

    def resume(self) -> None:
        """Take up the newest intact checkpoint, if there is one; all processes read it."""
        found, damaged = checkpoint.latest(self.checkpoints)
        for error in damaged:
            text = f"{error}; it is passed over"
            self._tell("note", text)
            self.event("damaged", reason=str(error))
        if found is None:
            if self.world.writes:
                (self.directory / "metrics.jsonl").write_bytes(b"")
            self.event("start", **_where())
            return
        self._compare(found)
        self.restore(found)
        if self.world.writes and not damaged:  # what a process left that was killed while pruning
            checkpoint.prune(self.checkpoints, self.habits.keep, self.state.best_step)
        self.event("resume", **_where())
        self._tell("note", f"resuming {self.directory} at step {self.state.step}")

    def _compare(self, found: checkpoint.Checkpoint) -> None:
        for name, now in self.environment().items():
            then = found.environment.get(name)
            if then != now and not self.habits.anyway:
                raise UsageError(
                    f"{self.directory} was trained with {name} {then}, and here it is {now}: the"
                    " result would not be the same; --anyway resumes all the same"
                )

    def restore(self, found: checkpoint.Checkpoint) -> None:
        """Set weights, momentum and state as they were; metrics behind it are cut off."""
        self.network.load_state_dict(found.tensors("model"))
        buffers = found.tensors("optimizer")
        self.optimizer.state.clear()
        for name, parameter in self.network.named_parameters():
            if name in buffers:
                buffer = torch.empty_like(parameter).copy_(buffers[name])
                self.optimizer.state[parameter]["momentum_buffer"] = buffer
        sums = found.state["sums"]
        if isinstance(sums[0], list):  # an older checkpoint has each process's own
            sums = [math.fsum(each) for each in zip(*sums, strict=True)]
        self.state = State(**{**found.state, "sums": sums})
        if self.world.writes:
            with (self.directory / "metrics.jsonl").open("ab") as file:
                file.truncate(self.state.metrics)

    def _roll_back(self, error: Diverged) -> None:
        self.event("nonfinite", where=error.where, at=error.step)
        found, _ = checkpoint.latest(self.checkpoints)
        if not self.habits.rollback or found is None or self.state.rollbacks == ROLLBACKS:
            raise error
        rollbacks = self.state.rollbacks + 1
        self.restore(found)
        self.state.rollbacks = rollbacks
        self.event("rollback", rollbacks=rollbacks)
        self._tell("note", f"{error}; going back to step {self.state.step}, at half the rate")

    # Signals and watchers

    def _ask_to_stop(self, number: int) -> None:
        self.asked_to_stop = number

    def _tell(self, what: str, *details: object) -> None:
        for watcher in self.watchers:
            getattr(watcher, what)(*details)


def score(
    network: nn.Module,
    dataset: Dataset,
    split: Split,
    machine: Machine | None = None,
    world: World | None = None,
) -> Scores:
    """Look at a split once, in order; the network is left in evaluation mode.

    In float32 whatever it was trained in, so that anyone who evaluates the weights finds the same.
    """
    machine, world = machine or Machine.here("off"), world or World()
    network = machine.place(network).eval()
    scores = Scores(len(dataset.classes), machine.device)
    batches = data.evaluation(dataset, split, rank=world.rank, world=world.size)
    with torch.inference_mode():
        for batch in batches:
            logits = network(machine.images(batch.images))
            scores.add(logits, machine.labels(batch.labels))
    for counts in scores.counts():
        world.sum(counts)
    return scores


def _where() -> dict[str, object]:
    return {"process": os.getpid(), "threads": torch.get_num_threads()}
