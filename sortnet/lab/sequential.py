"""How many seeds a comparison needs: planned in advance, or added until the interval decides.

Errors of two variants on the same seed are paired; what counts is the standard deviation of their
differences. `seeds_needed` plans a fixed number of seeds by the power of the paired t-test.
`boundaries` is the stopping rule behind ``--until decided``: after each seed the t statistic is
compared with a boundary, and the boundaries together keep the probability of a wrong decision.

References:
    K. K. G. Lan and D. L. DeMets. Discrete sequential boundaries for clinical trials.
    Biometrika 70(3), 1983.

    C. Jennison and B. W. Turnbull. Group Sequential Methods with Applications to Clinical Trials.
    Chapman and Hall, 2000. (Repeated confidence intervals: chapter 9; t statistics: chapter 11.)
"""

import math
from functools import lru_cache

from sortnet.errors import UsageError
from sortnet.lab.statistics import ALPHA, FEWEST

POWER = 0.8
"""Default power: the probability of finding a true difference."""
MOST = 100_000
"""Largest number of seeds that is planned."""
SIMULATIONS = 400_000
"""Sequences of null differences from which boundaries are computed."""


@lru_cache(maxsize=256)
def seeds_needed(
    deviation: float, difference: float, *, alpha: float = ALPHA, power: float = POWER
) -> int:
    """Return how many paired seeds find a difference with the given power.

    By a two-sided paired t-test; its power is that of the noncentral t distribution.

    Arguments:
        deviation: The standard deviation of the paired differences.
        difference: The true difference, in the same unit.
        alpha: The probability of finding one where there is none.
        power: The probability of finding it.

    Example:
        >>> seeds_needed(1.0, 1.0), seeds_needed(0.5, 0.5), seeds_needed(1.0, 0.5)
        (10, 10, 34)
    """
    if not deviation >= 0 or not difference > 0:
        raise UsageError(
            f"seeds cannot be planned for difference {difference} and deviation {deviation}"
        )
    low, high = FEWEST - 1, FEWEST
    while _power(high, deviation, difference, alpha) < power:
        low, high = high, 2 * high
        if high > MOST:
            return MOST
    while high - low > 1:
        middle = (low + high) // 2
        enough = _power(middle, deviation, difference, alpha) >= power
        low, high = (low, middle) if enough else (middle, high)
    return high


def _power(seeds: int, deviation: float, difference: float, alpha: float) -> float:
    """Return the power of a paired t-test; the wrong side's tail counts for nothing."""
    from scipy.stats import nct, t

    if deviation == 0:
        return 1.0
    critical = t.ppf(1 - alpha / 2, seeds - 1)
    return float(nct.sf(critical, seeds - 1, math.sqrt(seeds) * difference / deviation))


@lru_cache(maxsize=32)
def boundaries(most: int, alpha: float = ALPHA) -> dict[int, float]:
    """Return the largest absolute t statistic after each number of seeds that decides nothing.

    The error probability is spent over the looks, one after each seed from the third on, by the
    spending function of Lan and DeMets (1983) that resembles O'Brien and Fleming's boundaries:
    hardly any of it at the first looks. So a comparison that runs to its last seed loses little
    power compared with a t-test planned for that many seeds.

    Under the null hypothesis the joint distribution of the t statistics has no parameters (they
    do not change with the unit of the differences), so it is simulated: at each look the boundary
    is the quantile among the sequences that have not crossed one before. The generator is fixed,
    and the standard error of the total probability is 0.0004 at 0.05.

    Arguments:
        most: The largest number of seeds, which has to be chosen before the first look.
        alpha: The probability of deciding anything where there is no difference.

    Example:
        >>> {n: round(t, 1) for n, t in boundaries(5).items() if n > 3}
        {4: 4.5, 5: 3.2}
    """
    import numpy as np

    if not FEWEST <= most <= 1000:
        raise UsageError(f"--max-seeds is {most}, but must be from {FEWEST} to 1000")
    random = np.random.default_rng(1983)
    count = SIMULATIONS
    total, squares = np.zeros(count), np.zeros(count)
    found, spent = {}, 0
    for seeds in range(1, most + 1):
        new = random.standard_normal(len(total))
        total, squares = total + new, squares + new * new
        if seeds < FEWEST:
            continue
        variance = (squares - total * total / seeds) / (seeds - 1)
        statistic = np.abs(total) / np.sqrt(seeds * variance)
        crossing = max(1, round(count * _spent(seeds / most, alpha)) - spent)
        spent += crossing
        found[seeds] = float(np.partition(statistic, -crossing)[-crossing])
        going = statistic < found[seeds]
        total, squares = total[going], squares[going]
    return found


def _spent(part: float, alpha: float) -> float:
    """Return the error probability that is spent after a part of all seeds."""
    from scipy.stats import norm

    return float(2 * norm.sf(norm.isf(alpha / 2) / math.sqrt(part)))
