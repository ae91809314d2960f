"""Test every claim of the paper: measurements and a verdict."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import torch

from sortnet import files
from sortnet.errors import UsageError
from sortnet.lab import paper
from sortnet.lab.claims import accuracy, backprop, equations, time_and_memory, training_curves
from sortnet.lab.claims.finding import Check, Context
from sortnet.lab.experiments import results
from sortnet.lab.experiments.definitions import EXPERIMENTS
from sortnet.lab.experiments.sizes import SIZES, size
from sortnet.lab.training.hardware import PRECISIONS

SEEDS = 10
"""Seeds to look for among the runs."""
CHECKS: dict[str, Check] = {
    **equations.CHECKS,
    **time_and_memory.CHECKS,
    **backprop.CHECKS,
    **accuracy.CHECKS,
    **training_curves.CHECKS,
}
"""Checks by name of the claim."""


@dataclass(frozen=True)
class Verdict:
    """A claim and its verdict.

    Attributes:
        claim: What the paper says, and where.
        verdict: ``holds``, ``does not hold`` or ``not decided``.
        figures: What was measured, and on what data.
    """

    claim: paper.Claim
    verdict: str
    figures: str

    def as_json(self) -> dict[str, str]:
        """Return what `sortnet report` reads."""
        return {
            "name": self.claim.name,
            "place": self.claim.place,
            "text": self.claim.statement,
            "verdict": self.verdict,
            "figures": self.figures,
        }


def claims(
    size_: str = "smoke",
    root: str | Path = "data",
    out: str | Path = "runs",
    show: Callable[[str, int, int], None] = lambda name, done, total: None,
    stored: str | Path = "results",
    only: Sequence[str] = (),
) -> Iterator[Verdict]:
    """Test the claims of the paper, in its order.

    Claims about the operation and its cost are computed and timed now. Claims about accuracy and
    training use the results of `sortnet reproduce` nearest to the paper's schedule, from run
    directories and stored records; a verdict needs at least three seeds.

    Arguments:
        size_: ``smoke`` takes minutes; otherwise every network is timed.
        root: The directory of all datasets.
        out: The directory of all runs.
        show: Called with the next claim's name, the number of claims done, and of all.
        stored: The directory of stored records.
        only: Patterns of the claims' names; all claims if empty.

    Raises:
        ValueError: No claim has such a name.
    """
    chosen = selected(only)
    context = Context(size(size_).name, Path(root), tuple(known(Path(out), Path(stored))))
    for i, claim in enumerate(chosen):
        show(claim.name, i, len(chosen))
        with torch.random.fork_rng():
            torch.manual_seed(0)
            found = CHECKS[claim.name](context)
        yield Verdict(claim, found.verdict, found.figures)


def selected(only: Sequence[str]) -> list[paper.Claim]:
    """Return the claims whose names match any of the patterns; all without a pattern."""
    for pattern in only:
        if not any(fnmatch(claim.name, pattern) for claim in paper.CLAIMS):
            names = ", ".join(claim.name for claim in paper.CLAIMS)
            raise UsageError(f"no claim matches {pattern!r}; there are {names}")
    return [c for c in paper.CLAIMS if not only or any(fnmatch(c.name, p) for p in only)]


def known(*places: Path) -> Iterator[results.ExperimentResults]:
    """Return the results of all experiments that have any, at any size but smoke."""
    sizes = [name for name in SIZES if name != "smoke"]
    for size_, precision in itertools.product(sizes, PRECISIONS):
        for name in EXPERIMENTS:
            found = results.collect(name, size(size_, precision), SEEDS, *places)
            if found.records:
                yield found


def write(verdicts: list[Verdict], path: Path) -> None:
    """Write verdicts for `sortnet report`; verdicts on other claims in the file are kept."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = {verdict.claim.name: verdict.as_json() for verdict in verdicts}
    names = [claim.name for claim in paper.CLAIMS]
    partial = path.is_file() and len(new) < len(names)
    old = {claim["name"]: claim for claim in files.read_json(path)} if partial else {}
    found = old | new
    files.write_json(path, [found[name] for name in names if name in found])
