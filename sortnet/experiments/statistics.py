"""Means over seeds, and SORT against its baseline on the same seeds."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Summary:
    """Several runs of the same thing.

    Attributes:
        mean: Over the runs that ended with a number.
        deviation: Their standard deviation; none of a single run.
        runs: How many they are.
        diverged: How many did not converge.
    """

    mean: float | None
    deviation: float | None
    runs: int
    diverged: int = 0


def summary(values: Sequence[float | None]) -> Summary:
    """The mean and the deviation; None stands for a run that did not converge.

    Example:
        >>> summary([7.0, 9.0, None])
        Summary(mean=8.0, deviation=1.4142135623730951, runs=2, diverged=1)
    """
    found = [value for value in values if value is not None]
    mean = statistics.fmean(found) if found else None
    deviation = statistics.stdev(found) if len(found) > 1 else None
    return Summary(mean, deviation, len(found), len(values) - len(found))


@dataclass(frozen=True)
class Paired:
    """A difference on the same seeds.

    Attributes:
        mean: Of the differences.
        low: The lower end of the mean's 95 % interval, by Student's t.
        high: The upper end.
        p: How probable a mean at least as far from 0 is if there is no difference.
        pairs: How many seeds both have.
    """

    mean: float
    low: float
    high: float
    p: float
    pairs: int

    @property
    def lower(self) -> bool:
        """Whether it is below 0 beyond chance."""
        return self.high < 0

    @property
    def higher(self) -> bool:
        """Whether it is above 0 beyond chance."""
        return self.low > 0

    def __str__(self) -> str:
        return f"{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}], p {self.p:.2g}"


def paired(values: Mapping[int, float | None], base: Mapping[int, float | None]) -> Paired | None:
    """The difference of two things by seed; none for fewer than two common seeds.

    Arguments:
        values: By seed; None for a run that did not converge.
        base: What they are compared with.

    Example:
        >>> str(paired({0: 7.1, 1: 7.3, 2: 7.2}, {0: 7.5, 1: 7.6, 2: 7.7}))
        '-0.40 [-0.65, -0.15], p 0.02'
    """
    differences = [
        a - b
        for seed in sorted(values.keys() & base.keys())
        if (a := values[seed]) is not None and (b := base[seed]) is not None
    ]
    if len(differences) < 2:
        return None
    mean, spread = statistics.fmean(differences), statistics.stdev(differences)
    error = spread / math.sqrt(len(differences))
    if error == 0:
        return Paired(mean, mean, mean, 1.0 if mean == 0 else 0.0, len(differences))
    from scipy.stats import t as student

    freedom = len(differences) - 1
    reach = error * float(student.ppf(0.975, freedom))
    p = 2 * float(student.sf(abs(mean) / error, freedom))
    return Paired(mean, mean - reach, mean + reach, p, len(differences))
