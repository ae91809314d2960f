"""Trainer options: checkpoints, resuming, compilation and device."""

from dataclasses import dataclass

from sortnet import limits


@dataclass(frozen=True)
class TrainerOptions:
    """How a run is saved, resumed and executed. Nothing here changes what is learned.

    Attributes:
        save_every: Steps between checkpoints. Defaults to a twentieth of the run, at most 500.
        keep: Number of recent checkpoints to keep.
        rollback: On a non-finite loss or gradient, return to the last checkpoint, reshuffle the
            images and halve the learning rate, instead of stopping.
        allow_mismatch: Resume even if threads, versions, processes or data have changed.
        compile: ``on``, ``off`` or ``auto``.
        device: One of `sortnet.lab.training.DEVICES`.
        resume_from: Step of the checkpoint to resume from. Defaults to the newest. Newer ones are
            set aside.
    """

    save_every: int | None = None
    keep: int = 2
    rollback: bool = False
    allow_mismatch: bool = False
    compile: str = "auto"
    device: str = "auto"
    resume_from: int | None = None

    def __post_init__(self) -> None:
        limits.check(keep=self.keep)
        limits.check_given(save_every=self.save_every, resume_from=self.resume_from)
