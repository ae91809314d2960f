"""Watching a run: a bar on a terminal, plain lines elsewhere, TensorBoard if asked for."""

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
"""Steps at each start that no rate or estimate counts."""
NEWEST = 500
"""Steps over which the median is taken."""


class Callback:
    """Is told what happens in training; this one does nothing about it."""

    def start(self, title: str, step: int, steps: int) -> None:
        """Training starts, or goes on, at a step."""

    def step(self, step: int, images: int) -> None:
        """So many steps have been taken, the last one with so many images."""

    def row(self, row: Row) -> None:
        """A row of metrics was written."""

    def note(self, text: str) -> None:
        """Something happened that a person should know."""

    def stop(self) -> None:
        """Training has ended, for whatever reason."""


class StepTimer(Callback):
    """Measures steps: the median of the newest ones, without the first, which compile kernels."""

    def __init__(self) -> None:
        self.durations: deque[float] = deque(maxlen=NEWEST)
        self.last: float | None = None
        self.skip = WARM_UP

    def start(self, title: str, step: int, steps: int) -> None:
        """Start the clock."""
        self.last, self.skip = time.monotonic(), WARM_UP

    def step(self, step: int, images: int) -> None:
        """Take the time of a step."""
        now = time.monotonic()
        if self.skip > 0:
            self.skip -= 1
        elif self.last is not None:
            self.durations.append(now - self.last)
        self.last = now

    @property
    def median(self) -> float | None:
        """The median of the newest steps, in seconds; None before there are any."""
        return statistics.median(self.durations) if self.durations else None


class Terminal(Callback):
    """Shows a bar with loss, error, images per second and the time left; plain lines elsewhere."""

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

    def start(self, title: str, step: int, steps: int) -> None:
        """Show the bar."""
        self.title, self.steps = title, steps
        self.bar = self.progress.add_task(title, total=steps, completed=step, figures="")
        self.progress.start()
        self.shown = time.monotonic()
        self.timer.start(title, step, steps)

    def step(self, step: int, images: int) -> None:
        """Move the bar, or now and then print a line."""
        self.timer.step(step, images)
        figures = self.figures
        if seconds := self.timer.median:
            left = timedelta(seconds=round((self.steps - step) * seconds))
            figures = f"{figures} {images / seconds:,.0f} images/s, {left} left".lstrip()
        now = time.monotonic()
        if self.console.is_terminal:
            self.progress.update(self.bar, completed=step, figures=figures)
        elif now - self.shown > PAUSE:
            self.shown = now
            self.note(f"{self.title}: step {step} of {self.steps}, {figures}")

    def row(self, row: Row) -> None:
        """Keep the newest figures for the bar."""
        if row["split"] == "train":
            self.figures = f"loss {row['loss']:.3f} error {row['error']:.1f} %"
        else:
            self.note(
                f"{self.title}: step {row['step']}, {row['split']} error {row['error']:.2f} %,"
                f" top-5 {row['error5']:.2f} %, loss {row['loss']:.3f}"
            )

    def note(self, text: str) -> None:
        """Print a line, above the bar if there is one."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def stop(self) -> None:
        """Take the bar away."""
        self.progress.stop()
        if hasattr(self, "bar"):
            self.progress.remove_task(self.bar)


class TensorBoard(Callback):
    """Writes the rows where TensorBoard finds them; needs the extra ``tensorboard``."""

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
        """Write what is left."""
        self.writer.close()
