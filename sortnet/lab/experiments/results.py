"""The results of an experiment: for each cell of its table, the runs that fill it, by seed.

This is where a table cell becomes a number: `CellResults.values`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sortnet.lab.experiments.definitions import Cell, Experiment, experiment
from sortnet.lab.experiments.sizes import Size, differences
from sortnet.lab.runs import Run, RunRecord, record
from sortnet.lab.statistics import Comparison, adjust, compare


@dataclass(frozen=True)
class CellResults:
    """A cell and the runs that fill it.

    Attributes:
        cell: The cell, with the paper's run.
        run: The same run at the size of the experiment, seed 0.
        records: The runs that have ended, by seed.
    """

    cell: Cell
    run: Run
    records: Mapping[int, RunRecord]

    @property
    def values(self) -> dict[int, float | None]:
        """The cell's metric by seed; None for a run that did not converge."""
        metric = self.cell.metric
        return {s: r.value(metric) for s, r in self.records.items() if r.has(metric)}

    @property
    def changed(self) -> list[str]:
        """The differences of the runs from the paper's."""
        return differences(self.run, self.cell.run)


@dataclass(frozen=True)
class CellComparison:
    """A cell compared with its baseline over the seeds that both have."""

    cell: CellResults
    baseline: CellResults
    difference: Comparison


@dataclass(frozen=True)
class ExperimentResults:
    """The cells of an experiment at one size, as far as their runs have ended."""

    experiment: Experiment
    size: Size
    cells: tuple[CellResults, ...]

    @property
    def records(self) -> list[RunRecord]:
        """The runs of all cells, each once."""
        return list({r.run.id: r for cell in self.cells for r in cell.records.values()}.values())

    @property
    def source(self) -> str:
        """Experiment and size, and the precision if it is not float32."""
        name = f"{self.experiment.name}, size {self.size.name}"
        precisions = {cell.run.precision for cell in self.cells}
        other = len(precisions) == 1 and precisions != {"float32"}
        return f"{name}, {precisions.pop()}" if other else name

    def cell(self, row: str | None, column: str) -> CellResults | None:
        """Return the cell of a row and column."""
        for found in self.cells:
            if (found.cell.row, found.cell.column) == (row, column):
                return found
        return None

    def filled(self) -> "ExperimentResults":
        """Return the same without the cells that no run fills yet."""
        return replace(self, cells=tuple(cell for cell in self.cells if cell.values))

    def pairs(self) -> list[tuple[CellResults, CellResults]]:
        """Return each cell that has a baseline, with the baseline's cell."""
        found = [(cell, self.cell(cell.cell.baseline, cell.cell.column)) for cell in self.cells]
        return [(cell, base) for cell, base in found if base is not None]

    def comparisons(self) -> list[CellComparison]:
        """Compare cells with their baselines, p-values corrected for each other.

        Cells without at least two seeds in common with their baseline are left out.
        """
        pairs = self.pairs()
        found = adjust(compare(cell.values, base.values) for cell, base in pairs)
        return [
            CellComparison(cell, base, difference)
            for (cell, base), difference in zip(pairs, found, strict=True)
            if difference is not None and difference.pairs > 1
        ]


def collect(
    name: str, size: Size, seeds: int | None, *directories: str | Path
) -> ExperimentResults:
    """Gather the runs of an experiment that have ended.

    Arguments:
        name: The experiment.
        size: Size and precision of its runs.
        seeds: Number of seeds; the size's own if None.
        directories: Directories of runs or of stored results; the first that has a run is used.
    """
    wanted = experiment(name)
    count = size.seeds if seeds is None else seeds
    known: dict[str, RunRecord | None] = {}
    cells = []
    for cell in wanted.cells:
        found = {}
        for run in (size.fit(cell.run, seed) for seed in range(count)):
            if run.id not in known:
                known[run.id] = record.find(run, *directories)
            if (one := known[run.id]) is not None:
                found[run.seed] = one
        cells.append(CellResults(cell, size.fit(cell.run), found))
    return ExperimentResults(wanted, size, tuple(cells))


def keep(results: ExperimentResults, directory: Path) -> None:
    """Store each run as a JSON file; one that comes from such a file stays as it is."""
    for one in results.records:
        if one.source.is_dir():
            record.write(one, directory)
