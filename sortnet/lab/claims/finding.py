"""The input and the outcome of a check, and how comparisons decide a claim."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sortnet.lab.experiments.results import ExperimentResults
from sortnet.lab.experiments.sizes import SIZES
from sortnet.lab.statistics import Comparison, adjust, compare

HOLDS, FAILS, OPEN = "holds", "does not hold", "not decided"

Values = Mapping[int, float | None]
"""A metric by seed; None for a run that did not converge."""


@dataclass(frozen=True)
class Finding:
    """The outcome of a check.

    Attributes:
        verdict: ``holds``, ``does not hold`` or ``not decided``.
        figures: What was measured, in words and numbers.
    """

    verdict: str
    figures: str


def finding(holds: bool, figures: str) -> Finding:
    """Return a finding that is decided."""
    return Finding(HOLDS if holds else FAILS, figures)


@dataclass(frozen=True)
class Context:
    """What a check may use.

    Attributes:
        size: How much to measure; little at ``smoke``.
        root: The directory of all datasets.
        results: The results of experiments that exist.
    """

    size: str
    root: Path = Path("data")
    results: Sequence[ExperimentResults] = field(default_factory=tuple)

    @property
    def brief(self) -> bool:
        """Whether all checks together should take only minutes."""
        return self.size == "smoke"

    def best(self, *names: str) -> tuple[ExperimentResults, ...]:
        """Return the results of each experiment nearest to the paper's schedule; never smoke.

        The nearest come first; of equal sizes, in the order of the names.
        """
        order = list(SIZES)
        rank = lambda r: (order.index(r.size.name), len(r.records))  # noqa: E731
        known = [r for r in self.results if r.records and r.size.name != "smoke"]
        each = ([r for r in known if r.experiment.name == name] for name in names)
        found = [max(some, key=rank) for some in each if some]
        return tuple(sorted(found, key=lambda r: -order.index(r.size.name)))


Check = Callable[[Context], Finding]


@dataclass(frozen=True)
class Expectation:
    """One of the comparisons a claim rests on, and the sign the claim expects.

    Attributes:
        name: What is compared.
        difference: Over the seeds that both have; None if they have none in common.
        expected: The sign of the difference that the claim states: -1 or 1.
        failed: Seeds on which it did not converge, but its baseline did.
        alone: Seeds on which it converged, and its baseline did not.
    """

    name: str
    difference: Comparison | None
    expected: int = -1
    failed: int = 0
    alone: int = 0

    @classmethod
    def of(cls, name: str, values: Values, baseline: Values, expected: int = -1) -> "Expectation":
        """Compare two configurations by seed."""
        both = [(a, baseline[seed]) for seed, a in values.items() if seed in baseline]
        failed = sum(a is None and b is not None for a, b in both)
        alone = sum(a is not None and b is None for a, b in both)
        return cls(name, compare(values, baseline), expected, failed, alone)

    @property
    def tested(self) -> bool:
        """Whether there are runs to compare."""
        return self.difference is not None or self.failed + self.alone > 0

    @property
    def met(self) -> bool:
        """Whether the difference is significant with the expected sign and no seed failed."""
        found = self.difference
        if found is None or self.failed:
            return False
        return found.lower if self.expected < 0 else found.higher

    @property
    def contradicted(self) -> bool:
        """Whether the difference is significant with the other sign."""
        found = self.difference
        return found is not None and (found.higher if self.expected < 0 else found.lower)

    def __str__(self) -> str:
        text = self.name
        if self.difference is not None:
            text += f" {self.difference}"
        if self.failed:
            text += f", did not converge on {_seeds(self.failed)}"
        if self.alone:
            text += f", its baseline did not converge on {_seeds(self.alone)}"
        return text


def _seeds(count: int) -> str:
    return "one seed" if count == 1 else f"{count} seeds"


def judge(expectations: Iterable[Expectation], note: str, *experiments: str) -> Finding:
    """Decide a claim that rests on several comparisons.

    It holds if every expectation is met, and does not hold if any is contradicted; the p-values
    are corrected for each other.

    Arguments:
        expectations: Including those for which there are no results yet.
        note: Where the figures come from.
        experiments: Experiments that would provide missing results.
    """
    every = list(expectations)
    adjusted = adjust(one.difference for one in every)
    every = [replace(one, difference=each) for one, each in zip(every, adjusted, strict=True)]
    tested = [one for one in every if one.tested]
    if not tested:
        return missing(*experiments)
    figures = f"{'; '.join(map(str, tested))} ({len(tested)} of {len(every)} compared; {note})"
    if any(one.contradicted for one in tested):
        return Finding(FAILS, figures)
    return Finding(HOLDS if all(one.met for one in every) else OPEN, figures)


def missing(*experiments: str) -> Finding:
    """Return a finding that names the commands that would provide results."""
    commands = " or ".join(f"`sortnet reproduce {name} --size mini`" for name in experiments)
    return Finding(OPEN, f"no results yet; {commands} would provide some")
