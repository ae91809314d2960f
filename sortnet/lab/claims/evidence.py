"""The results that claims about accuracy and training rest on."""

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

from sortnet.lab.claims.finding import Context, Expectation, Values
from sortnet.lab.experiments.results import CellResults, ExperimentResults

STYLES = ("", ", Xu's")
"""Endings of the rows of a network: He's style, or Xu's, which the paper most likely follows."""


@dataclass(frozen=True)
class Pair:
    """Two cells of one experiment, and so of one size and precision.

    Attributes:
        name: What is compared.
        row: The cell that is compared.
        base: The cell it is compared with.
    """

    name: str
    row: CellResults
    base: CellResults


@dataclass(frozen=True)
class Evidence:
    """The results of experiments, those nearest to the paper's schedule first.

    Attributes:
        names: The experiments.
        results: Of those that have runs.
    """

    names: tuple[str, ...]
    results: tuple[ExperimentResults, ...]

    @classmethod
    def of(cls, context: Context, *names: str) -> "Evidence":
        """Return the best results of some experiments."""
        return cls(names, context.best(*names))

    def values(self, row: str, column: str) -> Values:
        """Return a cell's metric by seed, from the first results that have it."""
        cells = (results.cell(row, column) for results in self.results)
        return next((cell.values for cell in cells if cell and cell.values), {})

    def pair(self, row: str, base: str, column: str) -> Pair | None:
        """Return two cells from the first results that have runs of both."""
        for results in self.results:
            for style in STYLES:
                cells = [results.cell(name + style, column) for name in (row, base)]
                one, other = (cell if cell and cell.records else None for cell in cells)
                if one and other:
                    name = _name(one.cell.row, other.cell.row, column)
                    several = len(self.results) > 1
                    return Pair(
                        f"{name}, size {results.size.name}" if several else name, one, other
                    )
        return None

    def compare(
        self,
        row: str,
        base: str,
        column: str,
        expected: int = -1,
        values: Callable[[CellResults], Values] = attrgetter("values"),
    ) -> Expectation:
        """Compare a row with another one.

        Arguments:
            row: The row.
            base: The row it is compared with.
            column: Their column.
            expected: The sign of the difference that the claim states: -1 or 1.
            values: Returns what is compared, by seed; by default the metric of the cell.
        """
        pair = self.pair(row, base, column)
        if pair is None:
            return Expectation.of(_name(row, base, column), {}, {}, expected)
        return Expectation.of(pair.name, values(pair.row), values(pair.base), expected)

    @property
    def note(self) -> str:
        """The sources of the figures."""
        return "; ".join(map(_source, self.results)) or f"{' and '.join(self.names)}: none"


def _name(row: str, base: str, column: str) -> str:
    return f"{row} \N{MINUS SIGN} {base}, {column}"


def _source(results: ExperimentResults) -> str:
    changed = dict.fromkeys(text for cell in results.filled().cells for text in cell.changed)
    return f"{results.source}: {', '.join(changed) or 'as in the paper'}"
