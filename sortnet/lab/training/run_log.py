"""What a run writes while it trains: metrics.jsonl, events.jsonl, and calls of its callbacks."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from sortnet.lab.training import jsonl
from sortnet.lab.training.callbacks import Callback, Row


class RunLog:
    """Writes rows and events, and calls the callbacks. Only the main process writes.

    Arguments:
        directory: The run's directory.
        callbacks: Called at each event.
        is_main: Whether this process writes.
    """

    def __init__(self, directory: Path, callbacks: Sequence[Callback], is_main: bool) -> None:
        self.metrics = directory / "metrics.jsonl"
        self.events = directory / "events.jsonl"
        self.callbacks = callbacks if is_main else ()
        self.is_main = is_main

    def notify(self, method: str, *details: object) -> None:
        """Call a method of every callback."""
        for callback in self.callbacks:
            getattr(callback, method)(*details)

    def note(self, text: str) -> None:
        """Show a line to the user."""
        self.notify("note", text)

    def row(self, row: Row) -> None:
        """Append a row of metrics. Rows contain no times, so a repeated run writes the same."""
        if self.is_main:
            jsonl.append(self.metrics, row)
        self.notify("row", row)

    def event(self, name: str, step: int, **details: object) -> None:
        """Append an event with its time."""
        if self.is_main:
            entry = {"time": time.time(), "event": name, "step": step, **details}
            jsonl.append(self.events, entry)

    def started(self, name: str, step: int) -> None:
        """Append a ``start`` or ``resume`` event with the process and its threads."""
        self.event(name, step, process=os.getpid(), threads=torch.get_num_threads())

    def damage(self, reason: str, step: int) -> None:
        """Report a damaged file to the user and as an event."""
        self.note(reason)
        self.event("damaged", step, reason=reason)

    def repair_events(self) -> None:
        """Drop incomplete lines of events.jsonl, and report it."""
        if (reason := jsonl.repair(self.events)) is not None:
            self.damage(reason, 0)
