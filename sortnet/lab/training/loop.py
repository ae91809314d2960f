"""The training loop.

Learning rate, order of the images, augmentation and dropout are functions of (seed, step). A
checkpoint therefore holds only weights, momentum and a few numbers, and a run that is killed and
resumed ends with the same bits as an uninterrupted one.
"""

import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sortnet.lab import data
from sortnet.lab.data import Augmentation, Batch, Dataset, Split
from sortnet.lab.data.seeds import derive_seed
from sortnet.lab.recipes import Recipe
from sortnet.lab.training import first_step, resume
from sortnet.lab.training.callbacks import Callback
from sortnet.lab.training.devices import resolve_device, widest_float
from sortnet.lab.training.distributed import Distributed
from sortnet.lab.training.evaluation import Scores, evaluate
from sortnet.lab.training.failures import Diverged, Interrupted, first_bad_module, signals
from sortnet.lab.training.hardware import Machine
from sortnet.lab.training.optimizer import create_optimizer
from sortnet.lab.training.options import TrainerOptions
from sortnet.lab.training.run_log import RunLog
from sortnet.lab.training.state import SUMS, State

SAVE_MINUTES = 5.0
"""A checkpoint is written at least this often, however slow the steps are."""


class Trainer:
    """Trains a network on a dataset by a recipe, in a directory.

    Arguments:
        network: The network with its initial weights.
        dataset: The data to train, validate and test on.
        recipe: Learning-rate schedule, batch size, augmentation and the rest.
        seed: Seed of image order, augmentation and dropout.
        directory: Where checkpoints, metrics and events are written.
        evaluations: How often the validation split is evaluated, if there is one.
        title: Name shown by callbacks.
        precision: Dtype of convolutions, see `sortnet.lab.training.hardware`.
        options: Checkpoints, resuming, compilation and device.
        distributed: The processes that train together, and the device of this one.
        callbacks: Called at each event.
        configuration: The run as JSON. A checkpoint with another one is refused.
        on_first_step: Called after the first step of this process, before anything is written.
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
        options: TrainerOptions | None = None,
        distributed: Distributed | None = None,
        callbacks: Sequence[Callback] = (),
        configuration: Mapping[str, Any] | None = None,
        on_first_step: Callable[[], None] = lambda: None,
    ) -> None:
        self.recipe, self.seed, self.directory = recipe, seed, directory
        self.options = options or TrainerOptions()
        self.distributed = distributed or Distributed(device=resolve_device(self.options.device))
        self.log = RunLog(directory, callbacks, self.distributed.is_main)
        self.machine = Machine.here(
            self.options.compile, recipe.steps, precision, self.distributed.device
        )
        self.dataset = dataset.to(self.machine.device)
        self.network = self.machine.place(network)
        self.wrapped = self.machine.maybe_compile(self.distributed.wrap(self.network))
        self.optimizer = create_optimizer(self.network, recipe, self.machine)
        # float16 underflows: the loss is scaled up, and the gradients down again
        scales = self.machine.precision == "float16"
        self.scaler = torch.amp.GradScaler(self.machine.device.type, enabled=scales)
        self.state = State()
        self.log_every = max(1, min(100, recipe.steps // 100))
        self.evaluate_every = math.ceil(recipe.steps / max(1, evaluations))
        self.save_every = self.options.save_every or max(1, min(500, recipe.steps // 20))
        self.checkpoints = directory / "checkpoints"
        self.title = title or directory.name
        self.stop_signal = 0
        self.configuration = configuration or {}
        self.on_first_step, self.has_stepped, self.resumed = on_first_step, False, False
        self.initial_weights: dict[str, Tensor] | None = None

    def train(self) -> None:
        """Take all remaining steps, starting from the newest checkpoint."""
        resume.resume(self)
        try:
            with signals(self._request_stop):
                first_step.announce(self)
                self.log.notify("start", self.title, self.state.step, self.recipe.steps)
                while self.state.step < self.recipe.steps:
                    try:
                        self._take_steps()
                    except Diverged as error:
                        self._after_first_step()
                        resume.roll_back(self, error)
            self._after_first_step()
        finally:
            self.log.notify("stop")

    def _take_steps(self) -> None:
        """Step through the remaining batches: log, evaluate and save where it is due."""
        self.wrapped.train()
        saved = started = time.monotonic()
        for batch in self.batches():
            stop, save_due = self.step(batch, save_due=started - saved > 60 * SAVE_MINUTES)
            self.state.seconds += time.monotonic() - started
            self._after_first_step()
            self.log.notify("step", self.state.step, self.recipe.batch)
            if self._is_due(self.log_every):
                self._log_training()
            save_due |= self._is_due(self.save_every)
            if self.dataset.validation is not None and self._is_due(self.evaluate_every):
                save_due |= self._validate(self.dataset.validation)
            if stop or save_due:
                self.save()
                saved = time.monotonic()
            if stop and self.state.step < self.recipe.steps:
                self.log.event("stop", self.state.step, signal=self.stop_signal)
                raise Interrupted(self.stop_signal or signal.SIGTERM, self.state.step)
            started = time.monotonic()

    def _is_due(self, every: int) -> bool:
        return self.state.step % every == 0 or self.state.step == self.recipe.steps

    def batches(self) -> Iterator[Batch]:
        """Yield this process's part of the batches of all remaining steps."""
        recipe = self.recipe
        flip = recipe.flip and self.dataset.flip
        return data.train_batches(
            self.dataset,
            Augmentation(recipe.pad, recipe.reflect, flip, recipe.jitter, recipe.area),
            batch=recipe.batch,
            seed=derive_seed(self.seed, "images", self.state.rollbacks),
            start=self.state.step,
            stop=recipe.steps,
            rank=self.distributed.rank,
            world_size=self.distributed.size,
            device=self.machine.device,
        )

    def step(self, batch: Batch, save_due: bool = False) -> tuple[bool, bool]:
        """Take one step. If loss or gradient are not finite, nothing is changed.

        Arguments:
            batch: This process's part of the step's images.
            save_due: Whether this process's last checkpoint is too old.

        Returns:
            Whether any process was asked to stop, and whether a checkpoint is due in any.
        """
        images, labels = self.machine.images(batch.images), self.machine.labels(batch.labels)
        logits, loss = self._forward(self.wrapped, images, labels)
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(self.scaler.scale(loss))
        self.scaler.unscale_(self.optimizer)
        gradients = [p.grad for p in self.network.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        wrong = (logits.detach().argmax(1) != labels).sum()
        figures = [loss.detach(), wrong, norm]
        *values, stops, saves = self._all_reduce(figures, [bool(self.stop_signal), save_due])
        skipped = self._overflowed(*values)
        if not skipped and not all(map(math.isfinite, values)):
            again = lambda: self._forward(self.network, images, labels)[1]  # noqa: E731
            raise Diverged(self.state.step, first_bad_module(self.network, images, again))
        self._set_learning_rate()
        if not skipped:  # `scaler.step` would leave a fused SGD with uninitialized momentum
            if self.recipe.clip is not None:
                nn.utils.clip_grads_with_norm_(self.network.parameters(), self.recipe.clip, norm)
            self.optimizer.step()
        self.scaler.update()
        self._add_to_sums(*values, count=len(labels), skipped=skipped)
        self.state.step += 1
        return stops > 0, saves > 0

    def _forward(
        self, network: nn.Module, images: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return logits and loss, with this step's dropout masks and precision."""
        state, rank = self.state, self.distributed.rank
        torch.manual_seed(derive_seed(self.seed, state.rollbacks, state.step, rank))
        with self.machine.autocast():
            logits = network(images)
        half = self.machine.precision != "float32"
        return logits, F.cross_entropy(logits.float() if half else logits, labels)

    def _all_reduce(self, figures: Sequence[Tensor], flags: Sequence[bool]) -> list[float]:
        """Sum figures and flags over all processes; a NaN in one becomes a NaN in all.

        All in one tensor: this is the step's only collective besides DDP's, and the only time it
        waits for the device.
        """
        device = self.distributed.device
        dtype = widest_float(device)
        # Filled on the device: copying a host tensor would wait as well.
        raised = [torch.full((), float(flag), dtype=dtype, device=device) for flag in flags]
        numbers = torch.stack([*(figure.to(dtype) for figure in figures), *raised])
        return cast(list[float], self.distributed.all_reduce(numbers).tolist())

    def _overflowed(self, loss: float, wrong: float, norm: float) -> bool:
        """Return True if the loss scale made the gradient infinite.

        The step is then skipped and the scale halved, as `torch.amp.GradScaler` does. At a scale
        of 1 or less the gradient itself is too large.
        """
        if not self.scaler.is_enabled() or math.isfinite(norm):
            return False
        return math.isfinite(loss) and self.scaler.get_scale() > 1

    def _set_learning_rate(self) -> None:
        rate = self.recipe.learning_rate(self.state.step) * 0.5**self.state.rollbacks
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def _add_to_sums(
        self, loss: float, wrong: float, norm: float, *, count: int, skipped: bool
    ) -> None:
        norms = 0.0 if skipped else norm * count
        new = (loss * count, wrong, norms, count * self.distributed.size)
        self.state.sums = [a + b for a, b in zip(self.state.sums, new, strict=True)]

    def _log_training(self) -> None:
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
        self.log.row(row)

    def evaluate(self, split: Split) -> Scores:
        """Evaluate the network on a split. All processes take part."""
        self.distributed.broadcast_buffers(self.network)
        scores = evaluate(self.network, self.dataset, split, self.machine, self.distributed)
        self.wrapped.train()
        return scores

    def _validate(self, split: Split) -> bool:
        """Evaluate on the validation split; return True if this is the best so far."""
        scores = self.evaluate(split)
        self.log.row(scores.row(self.state.step, "validation"))
        if self.state.best is not None and scores.error >= self.state.best:
            return False
        self.state.best, self.state.best_step = scores.error, self.state.step
        return True

    def save(self) -> None:
        """Write a checkpoint, unless a weight is not finite."""
        resume.save(self)

    def _after_first_step(self) -> None:
        """Claim the directory, once. A run that fails before its first step writes nothing."""
        if self.has_stepped:
            return
        self.has_stepped = True
        if not self.distributed.is_main:
            return
        self.on_first_step()
        first_step.remember_kernels(self)
        if not self.resumed:
            self.log.metrics.write_bytes(b"")
            self.log.started("start", 0)

    def _request_stop(self, number: int) -> None:
        self.stop_signal = number
