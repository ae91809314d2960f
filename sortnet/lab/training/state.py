"""The numbers of a training run that a checkpoint stores besides weights and momentum."""

import math
from dataclasses import dataclass, field

from sortnet import limits
from sortnet.errors import Damaged
from sortnet.lab.training.checkpoint import Checkpoint

MAX_ROLLBACKS = 5
"""How often a run returns to a checkpoint before it is given up."""
SUMS = 4
"""Length of `State.sums`."""
COUNT = limits.Limit(0, limits.STEPS)
"""Range of a number of steps or bytes."""


@dataclass
class State:
    """Everything the training loop remembers, apart from tensors.

    Attributes:
        step: Steps taken so far.
        seconds: Time spent in them.
        metrics: Size of metrics.jsonl in bytes.
        rollbacks: How often the run returned to a checkpoint.
        best: Lowest validation error so far, in percent.
        best_step: The step it was measured at.
        sums: Loss, wrong answers, gradient norm and images since the last row of metrics, over
            all processes.
        scaler: State of the `GradScaler` (float16 only).
    """

    step: int = 0
    seconds: float = 0.0
    metrics: int = 0
    rollbacks: int = 0
    best: float | None = None
    best_step: int | None = None
    sums: list[float] = field(default_factory=lambda: [0.0] * SUMS)
    scaler: dict[str, float] = field(default_factory=dict)

    @classmethod
    def from_checkpoint(cls, found: Checkpoint) -> "State":
        """Read the state out of a checkpoint.

        Raises:
            Damaged: It is not the state of a run at that step.
        """
        try:
            state = cls(**found.state)
            if isinstance(state.sums[0], list):  # older checkpoints store one list per process
                state.sums = [math.fsum(each) for each in zip(*state.sums, strict=True)]
            valid = state.step == found.step and state._is_valid()
        except (TypeError, ValueError, LookupError, OverflowError, AttributeError):
            valid = False
        if not valid:
            raise Damaged(f"{found.path} does not hold the state of a run; remove it to continue")
        return state

    def _is_valid(self) -> bool:
        counts = (self.step, self.metrics, *([] if self.best_step is None else [self.best_step]))
        numbers = (*self.sums, *([] if self.best is None else [self.best]))
        scales = self.scaler.values()
        return (
            all(COUNT.allows(count) for count in counts)
            and all(limits.finite(number) for number in numbers)
            and limits.Limit(0, limits.STEPS, whole=False).allows(self.seconds)
            and limits.Limit(0, MAX_ROLLBACKS).allows(self.rollbacks)
            and len(self.sums) == SUMS
            and all(limits.finite(number) and number >= 0 for number in scales)
        )
