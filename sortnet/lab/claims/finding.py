"""What a check is given, and what it gives."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sortnet.lab.experiments.results import Stored
from sortnet.lab.experiments.sizes import SIZES
from sortnet.lab.statistics import Comparison, adjust

HOLDS, FAILS, OPEN = "holds", "does not hold", "not decided"


@dataclass(frozen=True)
class Finding:
    """What a check found.

    Attributes:
        verdict: ``holds``, ``does not hold`` or ``not decided``.
        figures: What was measured, in words and numbers.
    """

    verdict: str
    figures: str


def finding(holds: bool, figures: str) -> Finding:
    """A finding that is decided."""
    return Finding(HOLDS if holds else FAILS, figures)


@dataclass(frozen=True)
class Context:
    """What a check may use.

    Attributes:
        size: How much is measured: at ``smoke`` little.
        root: The directory of all data.
        results: Of experiments, whatever there is.
    """

    size: str
    root: Path = Path("data")
    results: Sequence[Stored] = field(default_factory=tuple)

    @property
    def brief(self) -> bool:
        """Whether it has to be done in minutes."""
        return self.size == "smoke"

    def best(self, name: str) -> Stored | None:
        """The results of an experiment nearest to the paper's; a smoke test's decide nothing."""
        order = list(SIZES)
        known = [r for r in self.results if r["experiment"] == name and r["size"] != "smoke"]
        known = [r for r in known if r["runs"]]
        rank = lambda r: (order.index(r["size"]), len(r["runs"]))  # noqa: E731
        return max(known, key=rank, default=None)


def source(stored: Stored) -> str:
    """Which results these are: experiment, size, and the precision if it is not float32."""
    precision = stored.get("precision", "float32")
    text = f"{stored['experiment']}, size {stored['size']}"
    return text if precision == "float32" else f"{text}, {precision}"


Check = Callable[[Context], Finding]


@dataclass(frozen=True)
class Compared:
    """One comparison out of several that a claim rests on.

    Attributes:
        name: What is compared.
        difference: Over the seeds that both have; None if they have none in common.
        expected: The sign that the claim says: -1 or 1.
        failed: On how many seeds it did not converge, but its baseline did.
        alone: On how many it did, and its baseline did not.
    """

    name: str
    difference: Comparison | None
    expected: int = -1
    failed: int = 0
    alone: int = 0

    @property
    def run(self) -> bool:
        """Whether there is anything to compare."""
        return self.difference is not None or self.failed + self.alone > 0

    @property
    def agrees(self) -> bool:
        """Whether it is as claimed by more than chance, and converged where its baseline did."""
        found = self.difference
        if found is None or self.failed:
            return False
        return found.lower if self.expected < 0 else found.higher

    @property
    def contradicts(self) -> bool:
        """Whether it is the other way round by more than chance."""
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


def judged(compared: Iterable[Compared], note: str, *experiments: str) -> Finding:
    """A claim about all of several comparisons.

    It holds if each of them is as claimed by more than chance, and does not hold if any is the
    other way round by more than chance. The p-values are corrected for each other.

    Arguments:
        compared: Also those for which there are no results yet.
        note: Where the figures come from.
        experiments: Those that would give figures where there are none.
    """
    every = list(compared)
    adjusted = adjust(one.difference for one in every)
    every = [replace(one, difference=each) for one, each in zip(every, adjusted, strict=True)]
    there = [one for one in every if one.run]
    if not there:
        return missing(*experiments)
    figures = f"{'; '.join(map(str, there))} ({len(there)} of {len(every)} compared; {note})"
    if any(one.contradicts for one in there):
        return Finding(FAILS, figures)
    return Finding(HOLDS if all(one.agrees for one in every) else OPEN, figures)


def missing(*experiments: str) -> Finding:
    """There is nothing to judge by yet, but there are commands that would give it."""
    commands = " or ".join(f"`sortnet reproduce {name} --size mini`" for name in experiments)
    return Finding(OPEN, f"no results yet; {commands} would give some")
