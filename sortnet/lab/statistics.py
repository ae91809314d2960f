"""Means over seeds, and comparisons of two configurations over paired seeds.

A comparison is decided by a paired t-test, with these rules:

- Fewer than `FEWEST` pairs decide nothing: they have a mean difference, but no interval.
- Neither does the same difference on every seed. Without spread a t-test would give p = 0, but
  errors are counted in whole images, and equal counts can be chance.
- Where one verdict, table or page makes several comparisons, their p-values are corrected by
  Holm's method (`adjust`), and the corrected ones decide. An interval is that of one comparison.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

ALPHA = 0.05
"""A corrected p-value below this decides."""
FEWEST = 3
"""Pairs of runs below which nothing is decided."""
ROUNDING = 1e-9
"""Differences that vary by less than this share of the values are equal up to rounding."""


@dataclass(frozen=True)
class Summary:
    """Several runs of the same configuration.

    Attributes:
        mean: Over the runs that converged.
        deviation: Their standard deviation; None for a single run.
        runs: How many runs converged.
        diverged: How many did not.
    """

    mean: float | None
    deviation: float | None
    runs: int
    diverged: int = 0


def summary(values: Sequence[float | None]) -> Summary:
    """Return mean and standard deviation; None stands for a run that did not converge.

    Example:
        >>> summary([7.0, 9.0, None])
        Summary(mean=8.0, deviation=1.4142135623730951, runs=2, diverged=1)
    """
    found = [value for value in values if value is not None]
    mean = statistics.fmean(found) if found else None
    deviation = statistics.stdev(found) if len(found) > 1 else None
    return Summary(mean, deviation, len(found), len(values) - len(found))


@dataclass(frozen=True)
class Comparison:
    """The difference of two configurations over paired seeds.

    Attributes:
        mean: Of the differences.
        low: The lower end of the mean's 95 % interval; None if nothing can be decided.
        high: The upper end.
        p: The p-value of the paired t-test: the probability of a mean at least as far from 0 if
            there is no difference.
        pairs: How many seeds both have.
        adjusted_p: The p-value corrected for the other comparisons that were made (`adjust`).
    """

    mean: float
    low: float | None
    high: float | None
    p: float | None
    pairs: int
    adjusted_p: float | None

    @property
    def significant(self) -> bool:
        """Whether the corrected p-value is below `ALPHA`."""
        return self.adjusted_p is not None and self.adjusted_p < ALPHA

    @property
    def lower(self) -> bool:
        """Whether the difference is significantly below 0."""
        return self.significant and self.mean < 0

    @property
    def higher(self) -> bool:
        """Whether the difference is significantly above 0."""
        return self.significant and self.mean > 0

    def __str__(self) -> str:
        text = f"{self.mean:+.2f}"
        if self.p is None or self.adjusted_p is None:
            return f"{text} ({self._undecided})"
        text += f" [{self.low:+.2f}, {self.high:+.2f}], p {self.p:.2g}"
        return text if self.adjusted_p == self.p else f"{text}, corrected {self.adjusted_p:.2g}"

    @property
    def _undecided(self) -> str:
        if self.pairs >= FEWEST:
            return f"the same on all {self.pairs} seeds"
        return "one seed" if self.pairs == 1 else f"{self.pairs} seeds"


def compare(
    values: Mapping[int, float | None], baseline: Mapping[int, float | None]
) -> Comparison | None:
    """Compare two configurations on the seeds that both have.

    Arguments:
        values: By seed; None for a run that did not converge.
        baseline: The same for the configuration to compare with.

    Returns:
        ``values`` minus ``baseline``; None if they have no seed in common.

    Example:
        >>> print(compare({0: 7.1, 1: 7.3, 2: 7.2}, {0: 7.5, 1: 7.6, 2: 7.7}))
        -0.40 [-0.65, -0.15], p 0.02
        >>> print(compare({0: 7.1, 1: 7.3}, {0: 7.5, 1: 7.6}))
        -0.35 (2 seeds)
    """
    pairs = [
        (a, b)
        for seed in sorted(values.keys() & baseline.keys())
        if (a := values[seed]) is not None and (b := baseline[seed]) is not None
    ]
    if not pairs:
        return None
    differences = [a - b for a, b in pairs]
    mean = statistics.fmean(differences)
    spread = max(differences) - min(differences)
    largest = max(abs(value) for pair in pairs for value in pair)
    if len(pairs) < FEWEST or spread <= ROUNDING * largest:
        return Comparison(mean, None, None, None, len(pairs), None)
    from scipy.stats import ttest_1samp

    test = ttest_1samp(differences, 0)
    interval = test.confidence_interval(1 - ALPHA)
    low, high, p = float(interval.low), float(interval.high), float(test.pvalue)
    return Comparison(mean, low, high, p, len(pairs), p)


def holm(pvalues: Sequence[float]) -> list[float]:
    """Correct p-values for how many there are, by Holm's step-down method.

    If all that are below 0.05 after the correction are called significant, the probability that
    any of them is so by chance is at most 0.05, however the tests depend on each other.

    Example:
        >>> holm([0.04, 0.01, 0.5])
        [0.08, 0.03, 0.5]
    """
    adjusted = [0.0] * len(pvalues)
    largest = 0.0
    for rank, i in enumerate(sorted(range(len(pvalues)), key=pvalues.__getitem__)):
        largest = max(largest, min(1.0, (len(pvalues) - rank) * pvalues[i]))
        adjusted[i] = largest
    return adjusted


def adjust(comparisons: Iterable[Comparison | None]) -> list[Comparison | None]:
    """Correct the p-values of all comparisons that one verdict, table or page makes.

    Arguments:
        comparisons: Those without a p-value, and None for one that could not be made, do not
            count as tests.
    """
    every = list(comparisons)
    adjusted = iter(holm([each.p for each in every if each is not None and each.p is not None]))
    return [
        each if each is None or each.p is None else replace(each, adjusted_p=next(adjusted))
        for each in every
    ]
