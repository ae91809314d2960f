"""Every claim of the paper: how it was tested, the figures, and the verdict."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from sortnet import files, paper
from sortnet.experiments import results
from sortnet.experiments.checks import CHECKS, Context
from sortnet.experiments.sizes import SIZES, size
from sortnet.experiments.tables import EXPERIMENTS
from sortnet.training.machine import PRECISIONS

SEEDS = 10
"""As many seeds are looked for among the runs."""


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
) -> Iterator[Verdict]:
    """Test each claim of the paper, in its order.

    What can be computed or timed is, here and now. Claims about accuracy and training take the
    best results there are, of `sortnet reproduce` at size mini or paper: from the runs, and from
    what is stored; a verdict needs several seeds, for it is about more than chance.

    Arguments:
        size_: At smoke all of it takes minutes; otherwise every network is timed.
        root: The directory of all data.
        out: The directory of all runs.
        show: Is told what comes next, how much is done, and of how much.
        stored: The directory of what is kept of runs.
    """
    context = Context(size(size_).name, Path(root), tuple(known(Path(out), Path(stored))))
    for i, claim in enumerate(paper.CLAIMS):
        show(claim.name, i, len(paper.CLAIMS))
        with torch.random.fork_rng():
            torch.manual_seed(0)
            found = CHECKS[claim.name](context)
        yield Verdict(claim, found.verdict, found.figures)


def known(*places: Path) -> Iterator[results.Stored]:
    """All results of experiments that there are, of any size but smoke."""
    sizes = [name for name in SIZES if name != "smoke"]
    for size_, precision in itertools.product(sizes, PRECISIONS):
        for name in EXPERIMENTS:
            found = results.collect(name, size(size_, precision), SEEDS, *places)
            if found["runs"]:
                yield found


def write(verdicts: list[Verdict], path: Path) -> None:
    """Keep verdicts where `sortnet report` finds them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_json(path, [verdict.as_json() for verdict in verdicts])
