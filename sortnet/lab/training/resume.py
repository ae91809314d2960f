"""Saving a trainer's state, resuming from a checkpoint, and rolling back after NaN or Inf.

Only the main process reads and writes checkpoints. The others receive weights, momentum and state
from it, whatever their own disks hold.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sortnet import files
from sortnet.errors import Damaged
from sortnet.lab.training import checkpoint, environment, jsonl
from sortnet.lab.training.failures import Diverged
from sortnet.lab.training.optimizer import BUFFERS
from sortnet.lab.training.state import MAX_ROLLBACKS, State

if TYPE_CHECKING:
    from sortnet.lab.training.loop import Trainer


def save(trainer: "Trainer") -> None:
    """Write a checkpoint and remove old ones.

    Raises:
        Diverged: A weight is not finite, in any process.
    """
    trainer.distributed.broadcast_buffers(trainer.network)
    bad = checkpoint.first_nonfinite(trainer.network.state_dict())
    if trainer.distributed.ranks_with(bad is not None):  # all processes continue, or none
        raise Diverged(trainer.state.step, bad or "the weights of another process")
    trainer.distributed.on_main(lambda: _write(trainer))
    trainer.initial_weights = None


def _write(trainer: "Trainer") -> None:
    with trainer.log.metrics.open("a+b") as file:
        os.fsync(file.fileno())
        file.seek(0)
        metrics = file.read()
    state = trainer.state
    state.metrics, state.scaler = len(metrics), trainer.scaler.state_dict()
    checkpoint.save(
        trainer.checkpoints,
        state.step,
        {"model": trainer.network.state_dict(), "optimizer": momentum(trainer)},
        vars(state),
        environment.describe(trainer.machine, trainer.distributed, trainer.dataset),
        trainer.configuration,
        {trainer.log.metrics.name: metrics},
    )
    checkpoint.prune(trainer.checkpoints, trainer.options.keep, state.best_step)


def resume(trainer: "Trainer") -> None:
    """Restore the requested checkpoint, or the newest intact one, if there is any."""
    trainer.resumed = _restore_everywhere(trainer, lambda: _find_and_restore(trainer))
    if trainer.resumed:
        trainer.log.started("resume", trainer.state.step)
        trainer.log.note(f"resuming {trainer.directory} at step {trainer.state.step}")
    elif trainer.options.rollback:  # before the first checkpoint there is nothing else to restore
        state = trainer.network.state_dict()
        trainer.initial_weights = {name: x.detach().clone() for name, x in state.items()}
    _check_identical(trainer)


def _find_and_restore(trainer: "Trainer") -> bool:
    """Restore a checkpoint in this process; return False if there is none."""
    trainer.log.repair_events()
    found = _find(trainer)
    if found is None:
        return False
    environment.check_resumable(trainer, found)
    restore(trainer, found)
    checkpoint.supersede(trainer.checkpoints, found.step)
    # A process that was killed while pruning leaves some behind.
    checkpoint.prune(trainer.checkpoints, trainer.options.keep, trainer.state.best_step)
    return True


def _find(trainer: "Trainer") -> checkpoint.Checkpoint | None:
    """Return the checkpoint to resume from; damaged ones are set aside."""
    restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    if trainer.options.resume_from is not None and not restarted:
        return checkpoint.at(trainer.checkpoints, trainer.options.resume_from)
    found, damaged = checkpoint.latest(trainer.checkpoints)
    for error in damaged:
        aside = files.set_aside(error.path)
        trainer.log.damage(f"{error}; skipped and set aside as {aside.name}", trainer.state.step)
    return found


def restore(trainer: "Trainer", found: checkpoint.Checkpoint) -> None:
    """Restore weights, momentum and state, and cut off later metrics.

    Raises:
        Damaged: The checkpoint is not one of this network. Nothing is changed.
    """
    state, metrics = State.from_checkpoint(found), found.text(trainer.log.metrics.name)
    weights, buffers = found.tensors("model"), found.tensors("optimizer")
    own = trainer.network.state_dict()
    suffixes = BUFFERS[trainer.recipe.optimizer].values()
    targets = {f"{name}{x}": p for name, p in trainer.network.named_parameters() for x in suffixes}
    if (
        state.step > trainer.recipe.steps
        or (metrics is not None and len(metrics) != state.metrics)
        or (state.scaler and state.scaler.keys() != trainer.scaler.state_dict().keys())
        or weights.keys() != own.keys()
        or not _fit(weights, own)
        or not _fit(buffers, targets)
    ):
        raise Damaged(f"{found.path} is not a checkpoint of this network; remove it to continue")
    trainer.network.load_state_dict(weights)
    _allocate_momentum(trainer, list(buffers), state.step)
    for name, buffer in momentum(trainer).items():
        buffer.copy_(buffers[name])
    _set_state(trainer, state)
    if trainer.distributed.is_main:
        reason = jsonl.restore(trainer.log.metrics, state.metrics, metrics)
        if reason is not None:
            trainer.log.damage(reason, state.step)


def _fit(tensors: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> bool:
    """Return True if tensors are finite and have the shapes and dtypes of their targets."""
    alike = all(
        name in targets and (x.shape, x.dtype) == (targets[name].shape, targets[name].dtype)
        for name, x in tensors.items()
    )
    return alike and checkpoint.first_nonfinite(tensors) is None


def momentum(trainer: "Trainer") -> dict[str, Tensor]:
    """Return the optimizer's buffers by the names of their parameters."""
    states = trainer.optimizer.state
    return {
        f"{name}{suffix}": states[p][key]
        for name, p in trainer.network.named_parameters()
        for key, suffix in BUFFERS[trainer.recipe.optimizer].items()
        if p in states and states[p].get(key) is not None
    }


def _allocate_momentum(trainer: "Trainer", names: Sequence[str], step: int) -> None:
    trainer.optimizer.state.clear()
    for name, parameter in trainer.network.named_parameters():
        for key, suffix in BUFFERS[trainer.recipe.optimizer].items():
            if f"{name}{suffix}" in names:
                state = trainer.optimizer.state[parameter]
                state[key] = torch.empty_like(parameter)
                if trainer.recipe.optimizer == "adamw":
                    state["step"] = torch.tensor(float(step), device=parameter.device)


def _set_state(trainer: "Trainer", state: State) -> None:
    trainer.state = state
    if trainer.scaler.is_enabled() and state.scaler:
        trainer.scaler.load_state_dict(state.scaler)


def _restore_everywhere(trainer: "Trainer", restore_main: Callable[[], bool]) -> bool:
    """Restore the main process, and copy its weights, momentum and state to the others.

    Arguments:
        trainer: The trainer of this process.
        restore_main: Restores the main process; returns False, with nothing changed, if there is
            nothing to restore.
    """

    def restored() -> dict[str, Any] | None:
        if not restore_main():
            return None
        return {"state": vars(trainer.state), "momentum": list(momentum(trainer))}

    received = trainer.distributed.on_main(restored)
    if received is None:
        return False
    if not trainer.distributed.is_main:
        _set_state(trainer, State(**received["state"]))
        _allocate_momentum(trainer, received["momentum"], trainer.state.step)
    trainer.distributed.broadcast(_tensors(trainer))
    return True


def _tensors(trainer: "Trainer") -> list[Tensor]:
    return [*trainer.network.state_dict().values(), *momentum(trainer).values()]


def _check_identical(trainer: "Trainer") -> None:
    """Fail if the processes differ in weights, momentum, state or data."""
    distributed = trainer.distributed
    if distributed.size == 1:
        return
    hashes = [files.digest(x.detach().cpu().numpy().tobytes()) for x in _tensors(trainer)]
    content = [vars(trainer.state) | {"seconds": 0}, trainer.dataset.fingerprint, hashes]
    own = files.digest(files.canonical(content))
    if different := distributed.ranks_with(own != distributed.on_main(lambda: own)):
        raise OSError(
            f"processes {', '.join(map(str, different))} do not have the weights and data of"
            " process 0"
        )


def roll_back(trainer: "Trainer", error: Diverged) -> None:
    """Return to the last checkpoint at half the learning rate; raise the error if not allowed."""
    trainer.log.event("nonfinite", trainer.state.step, where=error.where, at=error.step)
    rollbacks = trainer.state.rollbacks + 1
    if not trainer.options.rollback or rollbacks > MAX_ROLLBACKS:
        raise error
    if not _restore_everywhere(trainer, lambda: _restore_earlier(trainer)):
        raise error
    trainer.state.rollbacks = rollbacks
    trainer.log.event("rollback", trainer.state.step, rollbacks=rollbacks)
    trainer.log.note(f"{error}; going back to step {trainer.state.step} at half the learning rate")


def _restore_earlier(trainer: "Trainer") -> bool:
    """Restore the newest checkpoint, or the initial weights before there is one."""
    found, _ = checkpoint.latest(trainer.checkpoints)
    if found is not None:
        restore(trainer, found)
    elif trainer.initial_weights is not None:
        trainer.network.load_state_dict(trainer.initial_weights)
        trainer.optimizer.state.clear()
        trainer.state = State()
        trainer.log.metrics.write_bytes(b"")
    return found is not None or trainer.initial_weights is not None
