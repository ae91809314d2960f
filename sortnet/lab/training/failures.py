"""What ends a run before its last step: NaN or Inf, and signals."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import torch
from torch import Tensor, nn

HANG_UP = getattr(signal, "SIGHUP", None)  # Windows has none
STOPPING = (signal.SIGINT, signal.SIGTERM, *([] if HANG_UP is None else [HANG_UP]))
"""Signals that make a run save and stop."""


class Diverged(ArithmeticError):
    """Loss, gradient or weights are not finite.

    Attributes:
        step: The step that was not taken, counted from 0.
        where: The first module or parameter with a NaN or Inf.
    """

    def __init__(self, step: int, where: str) -> None:
        super().__init__(f"step {step} is not finite, first in {where}; the step was not taken")
        self.step, self.where = step, where


class Interrupted(Exception):
    """A signal ended the run; its progress is saved.

    Attributes:
        number: The signal.
        step: Steps taken so far.
    """

    def __init__(self, number: int, step: int) -> None:
        super().__init__(f"stopped at step {step} and saved; run the same command again to resume")
        self.number, self.step = number, step


@contextmanager
def signals(request_stop: Callable[[int], None]) -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGHUP into a request to stop; a second SIGINT ends at once.

    A second SIGTERM does not: schedulers send it to every process, and torchrun and srun pass it
    on. SIGHUP comes when a terminal is closed. Where it is ignored, under nohup, it stays so.
    """
    before = {number: signal.getsignal(number) for number in STOPPING}
    if before.get(HANG_UP) == signal.SIG_IGN:
        before.pop(HANG_UP)

    def handle(number: int, _frame: FrameType | None) -> None:
        request_stop(number)
        if number == signal.SIGINT:
            signal.signal(number, before[signal.SIGINT])

    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def first_bad_module(network: nn.Module, images: Tensor, forward: Callable[[], Tensor]) -> str:
    """Return the name of the first module whose output or gradient is not finite.

    Repeats the step's forward pass with a hook on every module. If all outputs and the loss are
    finite, it was a gradient; backward visits modules from the last to the first. The network's
    buffers are restored.

    Arguments:
        network: The network, with the gradients of the step.
        images: The step's batch.
        forward: Repeats the step's forward pass with the same seed and precision, and returns the
            loss. It must call this network uncompiled; otherwise its hooks see nothing.
    """
    found: list[str] = []

    def record(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _inputs: object, output: object) -> None:
            if isinstance(output, Tensor) and not _finite(output):
                found.append(name)

        return hook

    if not _finite(images):
        return "the images"
    hooks = [
        module.register_forward_hook(record(name))
        for name, module in network.named_modules()
        if name
    ]
    buffers = [(buffer, buffer.clone()) for buffer in network.buffers()]
    try:
        with torch.no_grad():
            loss = forward()
    finally:
        for hook in hooks:
            hook.remove()
        for buffer, before in buffers:  # batch normalization counted the batch twice
            buffer.copy_(before)
    if found:
        return f"the output of {found[0]}"
    if not _finite(loss):
        return "the loss"
    bad = [n for n, p in network.named_parameters() if p.grad is not None and not _finite(p.grad)]
    return f"the gradient of {bad[-1]}" if bad else "the norm of the gradient"


def _finite(x: Tensor) -> bool:
    return bool(torch.isfinite(x).all())
