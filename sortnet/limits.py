"""The ranges of all numbers given as flags or read from files, in one table."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import cast

from sortnet.errors import UsageError

THREADS = 256
"""Threads that any machine can start; a machine with more cores may use one per core."""


@dataclass(frozen=True)
class Limit:
    """A range of numbers.

    Attributes:
        least: The smallest number.
        most: The largest number, which is finite: infinity is out of range.
        whole: Whether only integers are allowed.
        above: Whether `least` itself is excluded.
    """

    least: float
    most: float
    whole: bool = True
    above: bool = False

    def allows(self, value: object) -> bool:
        """Return True if this is a number in the range; NaN and bools are not."""
        kind = Integral if self.whole else Real
        if isinstance(value, bool) or not isinstance(value, kind):
            return False
        number = cast(float, value)
        return self.least <= number <= self.most and not (self.above and number == self.least)

    def __str__(self) -> str:
        kind, most = ("a whole number", f"{self.most:,}")
        if not self.whole:
            kind, most = ("a number", f"{self.most:g}")
        start = f"above {self.least:g} and up" if self.above else f"from {self.least:g}"
        return f"{kind} {start} to {most}"


def _number(most: float, *, above: bool = False) -> Limit:
    return Limit(0, most, whole=False, above=above)


STEPS = 10**12
IMAGES = 10**9
LIMITS: Mapping[str, Limit] = {
    # the network
    "num-classes": Limit(1, 10**6),
    "eps": _number(1e6, above=True),
    "size": Limit(1, 4096),
    "width": Limit(1, 64),
    # the recipe
    "batch": Limit(1, 10**6),
    "clip": _number(1e30, above=True),
    "decay": _number(1e6),
    "momentum": _number(1),
    "epochs": _number(1e6, above=True),
    "norm-decay": _number(1e6),
    "pad": Limit(0, 4096),
    "rate": _number(1e30, above=True),
    "scale": _number(1e6, above=True),
    "steps": Limit(1, STEPS),
    "warm-up": Limit(0, STEPS),
    # the run
    "evaluations": Limit(0, STEPS),
    "seed": Limit(0, 2**63 - 1),
    "validation": Limit(0, IMAGES),
    # checkpoints and resources
    "keep": Limit(1, 10**6),
    "resume-from": Limit(1, STEPS),
    "save-every": Limit(1, STEPS),
    "threads": Limit(1, max(THREADS, os.cpu_count() or 1)),
    # other commands
    "cpus": Limit(1, 10**4),
    "gpus": Limit(1, 10**4),
    "per-class": Limit(1, IMAGES),
    "max-seeds": Limit(3, 10**6),
    "port": Limit(0, 2**16 - 1),
    "processes": Limit(1, 10**4),
    "rounds": Limit(1, 10**6),
    "seeds": Limit(1, 10**6),
    "splits": Limit(1, 10**6),
    "top": Limit(1, 10**6),
}
"""Ranges by name of the flag."""


def check(**values: object) -> None:
    """Raise a `UsageError` for a number that is out of range.

    Arguments:
        values: Numbers by name in `LIMITS`, with underscores.

    Example:
        >>> check(batch=100)
        >>> check(batch=0)
        Traceback (most recent call last):
        ...
        sortnet.errors.UsageError: --batch is 0, but must be a whole number from 1 to 1,000,000
    """
    for name, value in values.items():
        flag = name.replace("_", "-")
        if not LIMITS[flag].allows(value):
            raise UsageError(f"--{flag} is {_brief(value)}, but must be {LIMITS[flag]}")


def check_given(**values: object) -> None:
    """Check the numbers that are not None."""
    check(**{name: value for name, value in values.items() if value is not None})


def check_options(options: Mapping[str, object]) -> None:
    """Check the numbers among the arguments of `sortnet.create_model`."""
    check(**{name: options[name] for name in ("eps", "size", "width") if name in options})


def finite(value: object) -> bool:
    """Return True if this is a number other than NaN and infinity."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _brief(value: object) -> str:
    text = str(value) if isinstance(value, Real) else repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
