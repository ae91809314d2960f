"""Callbacks of a run: progress on a terminal or as plain lines, step times, TensorBoard."""

import statistics
import sys
import time
from collections import deque
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from sortnet.errors import UsageError

Row = dict[str, Any]
PAUSE = 10.0
"""Seconds between two plain lines."""
WARM_UP = 2
"""First steps after each start, which compile kernels and are left out of every rate."""
NEWEST = 500
"""Steps over which the median is taken."""
ESTIMATE = 10
"""Timed steps after which the first plain line with an expected time is printed."""


class Callback:
    """Base class of callbacks; does nothing."""

    def start(self, title: str, step: int, steps: int) -> None:
        """Training starts or resumes at a step."""

    def step(self, step: int, images: int) -> None:
        """A step with so many images was taken; `step` counts from 1."""

    def row(self, row: Row) -> None:
        """A row of metrics was written."""

    def note(self, text: str) -> None:
        """There is something to tell the user."""

    def stop(self) -> None:
        """Training has ended, for any reason."""


class StepTimer(Callback):
    """Measures the median step time, without the first steps, which compile kernels."""

    def __init__(self) -> None:
        self.durations: deque[float] = deque(maxlen=NEWEST)
        self.last: float | None = None
        self.skip = WARM_UP

    def start(self, title: str, step: int, steps: int) -> None:
        """Start the clock."""
        self.last, self.skip = time.monotonic(), WARM_UP

    def step(self, step: int, images: int) -> None:
        """Record the duration of a step."""
        now = time.monotonic()
        if self.skip > 0:
            self.skip -= 1
        elif self.last is not None:
            self.durations.append(now - self.last)
        self.last = now

    @property
    def median(self) -> float | None:
        """Median duration of recent steps in seconds; None before there are any."""
        return statistics.median(self.durations) if self.durations else None


class Terminal(Callback):
    """Shows a progress bar with loss, error, step time and time left; plain lines in a file."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(file=sys.stderr)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.fields[figures]}"),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.figures = ""
        self.timer = StepTimer()
        self.shown = 0.0
        self.estimated = False

    def start(self, title: str, step: int, steps: int) -> None:
        """Show the bar."""
        self.title, self.steps = title, steps
        self.bar = self.progress.add_task(title, total=steps, completed=step, figures="")
        self.progress.start()
        self.shown, self.estimated = time.monotonic(), False
        self.timer.start(title, step, steps)

    def step(self, step: int, images: int) -> None:
        """Move the bar, or print a line when the step time is known and then every 10 s."""
        self.timer.step(step, images)
        figures = [self.figures] if self.figures else []
        if seconds := self.timer.median:
            left = timedelta(seconds=round((self.steps - step) * seconds))
            figures += [f"{1000 * seconds:.3g} ms per step", f"{left} left"]
        text = ", ".join(figures)
        if self.console.is_terminal:
            self.progress.update(self.bar, completed=step, figures=text)
        elif text and self._line_is_due():
            self.shown, self.estimated = time.monotonic(), True
            self.note(f"{self.title}: step {step} of {self.steps}, {text}")

    def _line_is_due(self) -> bool:
        first = not self.estimated and len(self.timer.durations) >= ESTIMATE
        return first or time.monotonic() - self.shown > PAUSE

    def row(self, row: Row) -> None:
        """Keep the figures of training for the bar; print those of an evaluation."""
        if row["split"] == "train":
            self.figures = f"loss {row['loss']:.3f}, error {row['error']:.1f} %"
        else:
            top5 = f" top-5 {row['error5']:.2f} %," if "error5" in row else ""
            self.note(
                f"{self.title}: step {row['step']}, {row['split']} error {row['error']:.2f} %,"
                f"{top5} loss {row['loss']:.3f}"
            )

    def note(self, text: str) -> None:
        """Print a line, above the bar if there is one."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def stop(self) -> None:
        """Remove the bar."""
        self.progress.stop()
        if hasattr(self, "bar"):
            self.progress.remove_task(self.bar)


class TensorBoard(Callback):
    """Writes metrics for TensorBoard; needs the extra ``tensorboard``."""

    def __init__(self, directory: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UsageError("TensorBoard is not installed: pip install tensorboard") from None
        self.writer = SummaryWriter(directory)

    def row(self, row: Row) -> None:
        """Write each figure of a row as a scalar."""
        for name, value in row.items():
            if name not in ("step", "split"):
                self.writer.add_scalar(f"{row['split']}/{name}", value, row["step"])

    def stop(self) -> None:
        """Flush and close the file."""
        self.writer.close()
