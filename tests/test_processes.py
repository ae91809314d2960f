"""Two processes on a device that refuses tensors of the CPU, as NCCL does."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from stand_in import DEVICE, StandIn, stand_in
from two_processes import together

from sortnet.lab import data, runs
from sortnet.lab.data import Batch, Dataset
from sortnet.lab.recipes import Recipe, Section
from sortnet.lab.runs import Run, fresh
from sortnet.lab.training import Distributed, Interrupted, Trainer, TrainerOptions, checkpoint

RECIPE = Recipe("short", (Section(0.05, 12),), batch=4, clip=1.0)
RUN = Run("resnet20", RECIPE, "sort")
OPTIONS = TrainerOptions(save_every=6)
LATE, STOP = 4, 8
"""The steps in which the second process is late for a checkpoint, and is asked to stop."""


class Counted(Trainer):
    """Records what each step of the loop waits for: collectives, and reads of the device."""

    device: StandIn
    turns: list[dict[str, Any]]

    def step(self, batch: Batch, save_due: bool = False) -> tuple[bool, bool]:
        """Take a step; in two of them, the second process is late or is asked to stop."""
        if self.turns:
            self.turns[-1]["waits"] = self.device.waits
        self.turns.append({"step": self.state.step, "collectives": [], "waits": 0})
        self.device.collectives, self.device.waits = self.turns[-1]["collectives"], 0
        second = self.distributed.rank == 1
        if second and self.state.step == STOP:
            self.stop_signal = signal.SIGTERM
        return super().step(batch, save_due or (second and self.state.step == LATE))


def _trainer(device: StandIn, dataset: Dataset, directory: Path) -> Counted:
    distributed = Distributed(dist.get_rank(), dist.get_world_size(), DEVICE)
    trainer = Counted(
        fresh(RUN, dataset),
        dataset,
        RECIPE,
        seed=0,
        directory=directory,
        evaluations=4,
        options=OPTIONS,
        distributed=distributed,
    )
    trainer.device, trainer.turns = device, []
    return trainer


def _live(rank: int, directory: Path) -> None:
    """Train until a signal comes, resume, evaluate; write down what was counted."""
    dist.init_process_group("gloo")
    with stand_in() as device:
        with pytest.raises(RuntimeError, match="allreduce: no backend for a tensor on the CPU"):
            dist.all_reduce(torch.ones(2))
        dataset = data.load("digits", validation=40)
        first = _trainer(device, dataset, directory)
        try:
            first.train()
        except Interrupted as interrupted:
            stopped = interrupted.step
        first.distributed.barrier()
        second = _trainer(device, dataset, directory)
        second.train()
        error = second.evaluate(dataset.test).error
        second.distributed.barrier()
    dist.destroy_process_group()
    found = {"stopped": stopped, "first": first.turns, "second": second.turns, "error": error}
    (directory / f"found{rank}.json").write_text(json.dumps(found))


def test_a_run_never_hands_the_group_a_tensor_of_the_cpu(tmp_path: Path) -> None:
    """Rows, evaluation, a signal, checkpoints and resuming; a quiet step waits once."""
    assert together(_live, tmp_path) == [0, 0]
    zero, one = (json.loads((tmp_path / f"found{i}.json").read_text()) for i in range(2))
    assert zero["stopped"] == one["stopped"] == STOP + 1
    assert zero["error"] == one["error"]
    assert [turn["step"] for turn in zero["second"]] == [9, 10, 11]
    splits = [row["split"] for row in runs.rows(tmp_path)]
    assert (splits.count("train"), splits.count("validation")) == (12, 4)
    found, damaged = checkpoint.latest(tmp_path / "checkpoints")
    assert found is not None
    assert (found.step, damaged) == (12, [])
    parameters = sum(p.numel() for p in fresh(RUN, data.load("digits")).parameters())
    assert all("broadcast" in dict(each["first"][LATE]["collectives"]) for each in (zero, one))
    for step in (3, 6, 7):  # nothing but a row of metrics is written in them
        for process in (zero, one):
            turn = process["first"][step]
            *gradients, ours = turn["collectives"]
            assert {name for name, _ in turn["collectives"]} == {"allreduce"}
            assert sum(size for _, size in gradients) == parameters  # in DDP's buckets
            assert ours == ["allreduce", 5]
            assert turn["waits"] == 1
