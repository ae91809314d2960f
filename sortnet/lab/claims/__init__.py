"""Every claim of the paper: how it was tested, the figures, and the verdict."""

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
"""Seeds that are searched for among the runs."""
CHECKS: dict[str, Check] = {
    **equations.CHECKS,
    **time_and_memory.CHECKS,
    **backprop.CHECKS,
    **accuracy.CHECKS,
    **training_curves.CHECKS,
}
"""By the claim's name."""


@dataclass(frozen=True)
class Verdict:
    """What came of a claim.

    Attributes:
        claim: What the paper says, and where.
        verdict: ``holds``, ``does not hold`` or ``not decided``.
        figures: What was measured, and on what.
    """

    claim: paper.Claim
    verdict: str
    figures: str

    def as_json(self) -> dict[str, str]:
        """As `sortnet report` reads it."""
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

    What can be computed or timed is, here and now. Claims about accuracy and training take the
    best results there are, of `sortnet reproduce` at size mini or paper: from the runs, and from
    what is stored; a verdict needs several seeds, for it is about more than chance.

    Arguments:
        size_: At smoke all of it takes minutes; otherwise every network is timed.
        root: The directory of all data.
        out: The directory of all runs.
        show: Is told what comes next, how much is done, and of how much.
        stored: The directory of what is kept of runs.
        only: Patterns of the names of claims; all are tested without any.

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
    """The claims whose names match any of some patterns; all without a pattern."""
    for pattern in only:
        if not any(fnmatch(claim.name, pattern) for claim in paper.CLAIMS):
            names = ", ".join(claim.name for claim in paper.CLAIMS)
            raise UsageError(f"no claim is like {pattern!r}; there are {names}")
    return [c for c in paper.CLAIMS if not only or any(fnmatch(c.name, p) for p in only)]


def known(*places: Path) -> Iterator[results.ExperimentResults]:
    """All results of experiments that there are, of any size but smoke."""
    sizes = [name for name in SIZES if name != "smoke"]
    for size_, precision in itertools.product(sizes, PRECISIONS):
        for name in EXPERIMENTS:
            found = results.collect(name, size(size_, precision), SEEDS, *places)
            if found.records:
                yield found


def write(verdicts: list[Verdict], path: Path) -> None:
    """Keep verdicts where `sortnet report` finds them; a file keeps those of other claims."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = {verdict.claim.name: verdict.as_json() for verdict in verdicts}
    names = [claim.name for claim in paper.CLAIMS]
    partial = path.is_file() and len(new) < len(names)
    old = {claim["name"]: claim for claim in files.read_json(path)} if partial else {}
    found = old | new
    files.write_json(path, [found[name] for name in names if name in found])
