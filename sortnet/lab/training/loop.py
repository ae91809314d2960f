"""The one training loop.

Learning rate, order of the images, augmentation and dropout are functions of the seed and the
step, so that a checkpoint holds the weights, the momentum and a few numbers, and a run that was
killed and resumed is the uninterrupted one, bit for bit.
"""

import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sortnet import files, limits
from sortnet.errors import Damaged, UsageError
from sortnet.fusion import Fusion, kernels
from sortnet.fusion.private import NormBase
from sortnet.lab import data
from sortnet.lab.data import Augmentation, Batch, Dataset, Split
from sortnet.lab.data.seeds import derive_seed
from sortnet.lab.recipes import Recipe
from sortnet.lab.training import checkpoint, environment
from sortnet.lab.training import jsonl as records
from sortnet.lab.training.callbacks import Callback, Row
from sortnet.lab.training.devices import resolve_device, widest_float
from sortnet.lab.training.distributed import Distributed
from sortnet.lab.training.failures import Diverged, Interrupted, first_bad_module, signals
from sortnet.lab.training.hardware import FUSED_SGD, Machine
from sortnet.lab.training.metrics import Scores

ROLLBACKS = 5
"""How often a run goes back to a checkpoint before it is given up."""
MINUTES = 5.0
"""A checkpoint is written after so many minutes, however slow the steps are."""

FIRST_STEP = "{}: the first step compiles kernels, up to half a minute once on this machine"

BUFFERS = {
    "sgd": {"momentum_buffer": ""},
    "adamw": {"exp_avg": "", "exp_avg_sq": ":squares"},
}
"""What each optimizer remembers of a parameter, and the suffix of its name in a checkpoint."""

COUNT = limits.Limit(0, limits.STEPS)
"""How many steps or bytes there can be."""
SUMS = 4
"""Loss, wrong answers, norm of the gradient and images, added up from row to row.

Over all processes: every process has the same sums.
"""


@dataclass(frozen=True)
class TrainerOptions:
    """How a run is kept and watched; nothing of this changes what is learnt.

    Attributes:
        save_every: Steps between two checkpoints; a twentieth of the run, at most 500, without it.
        keep: How many of the newest checkpoints are kept.
        rollback: Whether a loss or gradient that is not finite takes the run back to its last
            checkpoint, with another order of the images and half the learning rate, and does not
            stop it.
        anyway: Whether to resume a run where threads, versions, processes or data have changed.
        resume_from: The step of the checkpoint to resume from; by default the newest one. Newer
            ones are set aside.
        compile: ``on``, ``off`` or ``auto``.
        device: The kind of device, one of `sortnet.lab.training.DEVICES`.
    """

    save_every: int | None = None
    keep: int = 2
    rollback: bool = False
    anyway: bool = False
    compile: str = "auto"
    device: str = "auto"
    resume_from: int | None = None

    def __post_init__(self) -> None:
        limits.check(keep=self.keep)
        limits.check_given(save_every=self.save_every, resume_from=self.resume_from)


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
    scaler: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, found: checkpoint.Checkpoint) -> "State":
        """What a checkpoint remembers.

        Raises:
            Damaged: It is not the state of a run at that step.
        """
        try:
            state = cls(**found.state)
            if isinstance(state.sums[0], list):  # an older checkpoint has each process's own
                state.sums = [math.fsum(each) for each in zip(*state.sums, strict=True)]
            sound = state.step == found.step and state._is_sound()
        except (TypeError, ValueError, LookupError, OverflowError, AttributeError):
            sound = False
        if not sound:
            raise Damaged(f"{found.path} does not hold the state of a run; remove it to go on")
        return state

    def _is_sound(self) -> bool:
        counts = (self.step, self.metrics, *([] if self.best_step is None else [self.best_step]))
        numbers = (*self.sums, *([] if self.best is None else [self.best]))
        scales = self.scaler.values()
        return (
            all(COUNT.allows(count) for count in counts)
            and all(limits.finite(number) for number in numbers)
            and limits.Limit(0, limits.STEPS, whole=False).allows(self.seconds)
            and limits.Limit(0, ROLLBACKS).allows(self.rollbacks)
            and len(self.sums) == SUMS
            and all(limits.finite(number) and number >= 0 for number in scales)
        )


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
        precision: What convolutions compute in; `sortnet.lab.training.hardware` has the choice.
        habits: How the run is kept.
        world: The processes that train together, and the device of this one.
        callbacks: Called at each event.
        configuration: Of the run, as JSON; a checkpoint with another one is not resumed.
        claim: Called once a first step is taken: the directory is this run's from then on.
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
        habits: TrainerOptions | None = None,
        world: Distributed | None = None,
        callbacks: Sequence[Callback] = (),
        configuration: Mapping[str, Any] | None = None,
        claim: Callable[[], None] = lambda: None,
    ) -> None:
        self.recipe, self.seed, self.directory = recipe, seed, directory
        self.habits = habits or TrainerOptions()
        self.world = world or Distributed(device=resolve_device(self.habits.device))
        self.callbacks = callbacks if self.world.writes else ()
        self.machine = Machine.here(
            self.habits.compile, recipe.steps, precision, self.world.device
        )
        self.dataset = dataset.to(self.machine.device)
        self.network = self.machine.place(network)
        self.called = self.machine.ready(self.world.join(self.network))
        self.optimizer = self._optimizer()
        # float16 has no small numbers: the loss is scaled up, and gradients down again
        scales = self.machine.precision == "float16"
        self.scaler = torch.amp.GradScaler(self.machine.device.type, enabled=scales)
        self.state = State()
        self.every = max(1, min(100, recipe.steps // 100))
        self.evaluate_every = math.ceil(recipe.steps / max(1, evaluations))
        self.save_every = self.habits.save_every or max(1, min(500, recipe.steps // 20))
        self.checkpoints = directory / "checkpoints"
        self.title = title or directory.name
        self.asked_to_stop = 0
        self.configuration = configuration or {}
        self.claim, self.claimed, self.resumed = claim, False, False
        self.first_weights: dict[str, Tensor] | None = None

    def _optimizer(self) -> torch.optim.Optimizer:
        recipe = self.recipe
        norms = {
            id(p)
            for module in self.network.modules()
            if isinstance(module, NormBase)
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
        if recipe.optimizer == "adamw":
            if self.machine.precision == "float16":  # whose skipped steps AdamW does not count
                raise UsageError("AdamW is not for float16; choose bfloat16 or float32")
            return torch.optim.AdamW(
                [group for group in groups if group["params"]],
                recipe.rate(0),
                weight_decay=recipe.decay,
                fused=True if self.machine.device.type in FUSED_SGD else None,
            )
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
        try:
            with signals(self._ask_to_stop):
                if self._needs_kernels():
                    self._tell("note", FIRST_STEP.format(self.title))
                self._tell("start", self.title, self.state.step, self.recipe.steps)
                while self.state.step < self.recipe.steps:
                    try:
                        self._steps()
                    except Diverged as error:
                        self._begin()
                        self._roll_back(error)
            self._begin()
        finally:
            self._tell("stop")

    def _needs_kernels(self) -> bool:
        """Return True if the first step compiles kernels, or loads them."""
        if self.machine.compile or not kernels.enabled(self.machine.device.type):
            return False
        return any(isinstance(m, Fusion) and m.second for m in self.network.modules())

    def _steps(self) -> None:
        self.called.train()
        saved = started = time.monotonic()
        for batch in self._stream():
            stop, late = self.step(batch, late=started - saved > 60 * MINUTES)
            self.state.seconds += time.monotonic() - started
            self._begin()
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
        torch.autograd.backward(self.scaler.scale(loss))
        self.scaler.unscale_(self.optimizer)
        gradients = [p.grad for p in self.network.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        wrong = (logits.detach().argmax(1) != labels).sum()
        figures = [loss.detach(), wrong, norm]
        *values, stops, lates = self._agree(figures, [bool(self.asked_to_stop), late])
        skipped = self._overflowed(*values)
        if not skipped and not all(map(math.isfinite, values)):
            again = lambda: self._forward(self.network, images, labels)[1]  # noqa: E731
            raise Diverged(step, first_bad_module(self.network, images, again))
        rate = recipe.rate(step) * 0.5**self.state.rollbacks
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        if recipe.clip is not None and not skipped:
            nn.utils.clip_grads_with_norm_(self.network.parameters(), recipe.clip, norm)
        if not skipped:  # a fused SGD that skips its first step has no momentum, but garbage
            self.optimizer.step()
        self.scaler.update()
        count = len(labels)
        norms = 0.0 if skipped else values[2] * count
        new = (values[0] * count, values[1], norms, count * self.world.size)
        self.state.sums = [a + b for a, b in zip(self.state.sums, new, strict=True)]
        self.state.step += 1
        return stops > 0, lates > 0

    def _overflowed(self, loss: float, wrong: float, norm: float) -> bool:
        """Return True if it is the loss scale that made the gradient infinite.

        The step is then skipped and the scale halved, as `torch.amp.GradScaler` does. Below a
        scale of 1 the gradient itself is too large.
        """
        if not self.scaler.is_enabled() or math.isfinite(norm):
            return False
        return math.isfinite(loss) and self.scaler.get_scale() > 1

    def _forward(
        self, network: nn.Module, images: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Logits and loss of this step, with its own dropout masks and precision."""
        state = self.state
        torch.manual_seed(derive_seed(self.seed, state.rollbacks, state.step, self.world.rank))
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
            seed=derive_seed(self.seed, "images", self.state.rollbacks),
            start=self.state.step,
            stop=recipe.steps,
            rank=self.world.rank,
            world=self.world.size,
            device=self.machine.device,
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
            records.append(self.metrics, row)
        self._tell("row", row)

    def event(self, name: str, **details: object) -> None:
        """Write down that something happened, and when."""
        if self.world.writes:
            step = 0 if name == "start" else self.state.step  # a start is written a step later
            event = {"time": time.time(), "event": name, "step": step, **details}
            records.append(self.directory / "events.jsonl", event)

    @property
    def metrics(self) -> Path:
        """The file of all rows."""
        return self.directory / "metrics.jsonl"

    def _begin(self) -> None:
        """Claim the directory, unless that was done: a run that fails before it leaves nothing."""
        if self.claimed:
            return
        self.claimed = True
        if not self.world.writes:
            return
        self.claim()
        if not self.resumed:
            self.metrics.write_bytes(b"")
            self.event("start", **_where())

    # Checkpoints

    def save(self) -> None:
        """Write a checkpoint, unless a weight is not finite, and remove old ones."""
        self.world.share(self.network)
        bad = checkpoint.finite(self.network.state_dict())
        if self.world.having(bad is not None):  # all processes go on, or none does
            raise Diverged(self.state.step, bad or "the weights of another process")
        self.world.decide(self._write)
        self.first_weights = None

    def _write(self) -> None:
        with self.metrics.open("a+b") as file:
            os.fsync(file.fileno())
            file.seek(0)
            metrics = file.read()
        self.state.metrics = len(metrics)
        self.state.scaler = self.scaler.state_dict()
        checkpoint.save(
            self.checkpoints,
            self.state.step,
            {"model": self.network.state_dict(), "optimizer": self._momentum()},
            vars(self.state),
            self.environment(),
            self.configuration,
            {self.metrics.name: metrics},
        )
        checkpoint.prune(self.checkpoints, self.habits.keep, self.state.best_step)

    def _momentum(self) -> dict[str, Tensor]:
        """The optimizer's buffers by the names of their parameters, with a suffix for a second."""
        states = self.optimizer.state
        return {
            f"{name}{suffix}": states[p][key]
            for name, p in self.network.named_parameters()
            for key, suffix in BUFFERS[self.recipe.optimizer].items()
            if p in states and states[p].get(key) is not None
        }

    def environment(self) -> dict[str, Any]:
        """What a bit-identical continuation depends on."""
        return environment.describe(self.machine, self.world, self.dataset)

    def resume(self) -> None:
        """Take up a checkpoint, the newest intact one if no other is asked for.

        The first process alone looks for it and reads it. The others get its weights from that
        one, whatever they would find on their own disks.
        """
        self.resumed = self._adopt(self._restored)
        if self.resumed:
            self.event("resume", **_where())
            self._tell("note", f"resuming {self.directory} at step {self.state.step}")
        elif self.habits.rollback:  # there is nothing else to go back to before the first save
            state = self.network.state_dict()
            self.first_weights = {name: x.detach().clone() for name, x in state.items()}
        self._check_alike()

    def _restored(self) -> bool:
        """Find a checkpoint and restore it; False if there is none."""
        self.mend_events()
        found = self._chosen()
        if found is None:
            return False
        self._compare(found)
        self.restore(found)
        checkpoint.supersede(self.checkpoints, found.step)
        # What is left of a process that was killed while pruning.
        checkpoint.prune(self.checkpoints, self.habits.keep, self.state.best_step)
        return True

    def _chosen(self) -> checkpoint.Checkpoint | None:
        """The checkpoint to resume from; damaged ones are set aside."""
        restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
        if self.habits.resume_from is not None and not restarted:
            return checkpoint.at(self.checkpoints, self.habits.resume_from)
        found, damaged = checkpoint.latest(self.checkpoints)
        for error in damaged:
            aside = files.set_aside(error.path)
            self.report_damage(f"{error}; it is passed over and set aside as {aside.name}")
        return found

    def mend_events(self) -> None:
        """Drop events that are not whole, and say so."""
        if (reason := records.mend(self.directory / "events.jsonl")) is not None:
            self.report_damage(reason)

    def report_damage(self, reason: str) -> None:
        """Tell the watchers of damage, and write it down."""
        self._tell("note", reason)
        self.event("damaged", reason=reason)

    def _compare(self, found: checkpoint.Checkpoint) -> None:
        """Refuse another run's checkpoint, and an environment that would give other bits."""
        for name, value in self.configuration.items():
            if found.run and found.run.get(name) != value:
                raise UsageError(
                    f"{found.path} is a checkpoint of another run: its {name} is"
                    f" {brief_difference(found.run.get(name), value)}; remove it, or give this"
                    " run a directory of its own with --name"
                )
        if self.habits.anyway:
            return
        now = self.environment()
        for name, then, value in environment.changes(found.environment, now, self.dataset):
            if name == "processes" and isinstance(value, int):
                self._compare_processes(found, then)
                continue
            raise UsageError(
                f"{self.directory} was trained with {name} {then}, and here it is {value}: the"
                " result would not be the same; --anyway resumes all the same"
            )

    def _compare_processes(self, found: checkpoint.Checkpoint, then: int) -> None:
        """Let another number of processes resume between two epochs only."""
        batch, images, size = self.recipe.batch, len(self.dataset.train), self.world.size
        number = f"{then} process{'es' * (then != 1)}"
        begun = f"{self.directory} was trained by {number}, and here there are {size}"
        if batch % size:
            raise UsageError(f"{begun}, among which a batch of {batch} cannot be divided")
        if environment.between_epochs(found.step, batch, images):
            self._tell("note", f"{begun}: it goes on, but not as {number} would, bit for bit")
            return
        intact, _ = checkpoint.survey(self.checkpoints)
        fit = [c.step for c in intact if environment.between_epochs(c.step, batch, images)]
        other = f"--resume-from {fit[0]} starts at the end of one, " if fit else ""
        raise UsageError(
            f"{begun}: batch normalisation and dropout depend on that, and step {found.step} is in"
            f" the middle of an epoch; {other}--anyway resumes all the same"
        )

    def restore(self, found: checkpoint.Checkpoint) -> None:
        """Set weights, momentum and state as they were; metrics behind it are cut off.

        Raises:
            Damaged: The checkpoint is not one of this network; nothing is changed.
        """
        state, kept = State.of(found), found.text(self.metrics.name)
        weights, buffers = found.tensors("model"), found.tensors("optimizer")
        own = self.network.state_dict()
        suffixes = BUFFERS[self.recipe.optimizer].values()
        places = {f"{n}{x}": p for n, p in self.network.named_parameters() for x in suffixes}
        if (
            state.step > self.recipe.steps
            or (kept is not None and len(kept) != state.metrics)
            or (state.scaler and state.scaler.keys() != self.scaler.state_dict().keys())
            or weights.keys() != own.keys()
            or not _fit(weights, own)
            or not _fit(buffers, places)
        ):
            raise Damaged(f"{found.path} is not a checkpoint of this network; remove it to go on")
        self.network.load_state_dict(weights)
        self._set_state(state)
        self._set_momentum(list(buffers))
        for name, buffer in self._momentum().items():
            buffer.copy_(buffers[name])
        if self.world.writes:
            reason = records.restore(self.metrics, self.state.metrics, kept)
            if reason is not None:
                self.report_damage(reason)

    def _set_state(self, state: State) -> None:
        self.state = state
        if self.scaler.is_enabled() and self.state.scaler:
            self.scaler.load_state_dict(self.state.scaler)

    def _set_momentum(self, names: Sequence[str]) -> None:
        self.optimizer.state.clear()
        for name, parameter in self.network.named_parameters():
            for key, suffix in BUFFERS[self.recipe.optimizer].items():
                if f"{name}{suffix}" in names:
                    state = self.optimizer.state[parameter]
                    state[key] = torch.empty_like(parameter)
                    if self.recipe.optimizer == "adamw":
                        state["step"] = torch.tensor(
                            float(self.state.step), device=parameter.device
                        )

    def _adopt(self, restore: Callable[[], bool]) -> bool:
        """Restore something in the first process, and give the others all that it has now.

        Arguments:
            restore: Returns False if there is nothing, and then nothing is changed.
        """

        def restored() -> dict[str, Any] | None:
            if not restore():
                return None
            return {"state": vars(self.state), "momentum": list(self._momentum())}

        told = self.world.decide(restored)
        if told is None:
            return False
        if not self.world.writes:
            self._set_state(State(**told["state"]))
            self._set_momentum(told["momentum"])
        self.world.spread([*self.network.state_dict().values(), *self._momentum().values()])
        return True

    def _check_alike(self) -> None:
        """Fail if the processes do not have the same weights, momentum, state and data."""
        if self.world.size == 1:
            return
        tensors = [*self.network.state_dict().values(), *self._momentum().values()]
        hashes = [files.digest(x.detach().cpu().numpy().tobytes()) for x in tensors]
        content = [vars(self.state) | {"seconds": 0}, self.dataset.fingerprint, hashes]
        own = files.digest(files.canonical(content))
        if different := self.world.having(own != self.world.decide(lambda: own)):
            raise OSError(
                f"processes {', '.join(map(str, different))} do not have the weights and data of"
                " process 0"
            )

    def _roll_back(self, error: Diverged) -> None:
        self.event("nonfinite", where=error.where, at=error.step)
        rollbacks = self.state.rollbacks + 1
        if not self.habits.rollback or rollbacks > ROLLBACKS or not self._adopt(self._rolled_back):
            raise error
        self.state.rollbacks = rollbacks
        self.event("rollback", rollbacks=rollbacks)
        self._tell("note", f"{error}; going back to step {self.state.step}, at half the rate")

    def _rolled_back(self) -> bool:
        found, _ = checkpoint.latest(self.checkpoints)
        if found is not None:
            self.restore(found)
        elif self.first_weights is not None:
            self.network.load_state_dict(self.first_weights)
            self.optimizer.state.clear()
            self.state = State()
            self.metrics.write_bytes(b"")
        return found is not None or self.first_weights is not None

    # Signals and watchers

    def _ask_to_stop(self, number: int) -> None:
        self.asked_to_stop = number

    def _tell(self, what: str, *details: object) -> None:
        for watcher in self.callbacks:
            getattr(watcher, what)(*details)


def score(
    network: nn.Module,
    dataset: Dataset,
    split: Split,
    machine: Machine | None = None,
    world: Distributed | None = None,
) -> Scores:
    """Look at a split once, in order; the network is left in evaluation mode.

    In float32 whatever it was trained in, so that anyone who evaluates the weights finds the same.
    """
    machine, world = machine or Machine.here("off"), world or Distributed()
    network = machine.place(network).eval()
    scores = Scores(len(dataset.classes), machine.device)
    batches = data.evaluation(
        dataset, split, rank=world.rank, world=world.size, device=machine.device
    )
    with torch.inference_mode():
        for batch in batches:
            logits = network(machine.images(batch.images))
            scores.add(logits, machine.labels(batch.labels))
    for counts in scores.counts():
        world.sum(counts)
    return scores


def _fit(tensors: Mapping[str, Tensor], places: Mapping[str, Tensor]) -> bool:
    """Return True if tensors are finite and have the shapes and dtypes of those they replace."""
    alike = all(
        name in places and (x.shape, x.dtype) == (places[name].shape, places[name].dtype)
        for name, x in tensors.items()
    )
    return alike and checkpoint.finite(tensors) is None


def brief_difference(there: object, here: object) -> str:
    """Two differing values in words; of two objects only what differs in them.

    Example:
        >>> brief_difference({"rate": 0.1, "batch": 8}, {"rate": 0.3, "batch": 8})
        'rate 0.1, not 0.3'
    """
    if isinstance(there, dict) and isinstance(here, dict):
        for name in there:
            if there[name] != here.get(name):
                return f"{name} {brief_difference(there[name], here.get(name))}"
    return f"{there}, not {here}"


def _where() -> dict[str, object]:
    return {"process": os.getpid(), "threads": torch.get_num_threads()}
