"""The tables of experiments in Markdown, our numbers beside the paper's."""

from collections.abc import Mapping
from typing import Any

from sortnet.lab.experiments.definitions import Cell
from sortnet.lab.experiments.results import CellComparison, CellResults, ExperimentResults
from sortnet.lab.statistics import Summary, summary

DASH = "\N{EN DASH}"
COMPARED = ["on the same seeds", "", "difference [95 %]", "p", "p, corrected", "seeds", "paper"]


def markdown(results: ExperimentResults) -> str:
    """Return an experiment: the table, the comparisons by seed, and remarks."""
    lines = [f"**{results.experiment.title}**", "", *_table(results)]
    if compared := comparisons(results):
        lines += ["", line(COMPARED), line(["---"] * len(COMPARED))]
        lines += [line(row) for row in compared]
    return "\n".join([*lines, "", *remarks(results)]) + "\n"


def completed(results: ExperimentResults) -> str:
    """Return the same without the cells that have no run yet."""
    return markdown(results.filled())


def brief(results: ExperimentResults) -> str:
    """Return only the table, without the cells that have no run yet."""
    return "\n".join(_table(results.filled())) + "\n"


def _table(results: ExperimentResults) -> list[str]:
    heading, rows = table(results)
    return [line(row) for row in (heading, ["---"] * len(heading), *rows)]


def table(results: ExperimentResults) -> tuple[list[str], list[list[str]]]:
    """Return heading and rows: in each cell our mean and deviation over seeds, then the paper's.

    A column for which the paper prints nothing has no column of the paper beside it.
    """
    columns: dict[str, bool] = {}
    for found in results.cells:
        column = found.cell.column
        columns[column] = columns.get(column, False) or bool(_printed(found.cell))
    heading = [""]
    for column, printed in columns.items():
        heading += [column, "paper"] if printed else [column]
    rows = []
    for name in dict.fromkeys(found.cell.row for found in results.cells):
        row = [name]
        for column, printed in columns.items():
            one = results.cell(name, column)
            both = ["", ""] if one is None else [_ours(one), _printed(one.cell)]
            row += both if printed else both[:1]
        rows.append(row)
    return heading, rows


def _ours(cell: CellResults) -> str:
    return _number(summary(list(cell.values.values()))) if cell.values else "not run"


def _number(found: Summary) -> str:
    """Return mean and deviation; a dash if no run converged, as in the paper."""
    if found.mean is None:
        return DASH
    text = f"{found.mean:.2f}"
    if found.deviation is not None:
        text += f" ± {found.deviation:.2f}"
    if found.diverged:
        text += f" ({found.diverged} of {found.runs + found.diverged} did not converge)"
    return text


def _printed(cell: Cell) -> str:
    if cell.dash:
        return DASH
    return "" if cell.paper is None else f"{cell.paper:.2f}"


def comparisons(results: ExperimentResults) -> list[list[str]]:
    """Return a row of `COMPARED` for each cell that can be compared with its baseline."""
    return [_compared(found) for found in results.comparisons()]


def _compared(found: CellComparison) -> list[str]:
    cell, base, compared = found.cell.cell, found.baseline.cell, found.difference
    difference = f"{compared.mean:+.2f}"
    if compared.low is not None:
        difference += f" [{compared.low:+.2f}, {compared.high:+.2f}]"
    known = cell.paper is not None and base.paper is not None
    return [
        f"{cell.row} \N{MINUS SIGN} {base.row}",
        cell.column,
        difference,
        *("" if p is None else f"{p:.2g}" for p in (compared.p, compared.adjusted_p)),
        str(compared.pairs),
        f"{(cell.paper or 0) - (base.paper or 0):+.2f}" if known else "",
    ]


def remarks(results: ExperimentResults) -> list[str]:
    """Return remarks on the table: size, differences from the paper, machine, seeds."""
    groups: dict[str, list[CellResults]] = {}
    for cell in results.cells:
        groups.setdefault(", ".join(cell.changed) or "as in the paper", []).append(cell)
    _, _, size = results.source.partition("size ")
    lines = [f"Size {size}: {results.size.about}."]
    lines += [f"- {_names(results, cells)}: {text}." for text, cells in groups.items()]
    carried = dict.fromkeys(r.transfer["data"] for r in results.records if r.transfer)
    if carried and any(cell.cell.metric.endswith("-accuracy") for cell in results.cells):
        lines.append(f"- Features transferred to {', '.join(carried)}.")
    if machines := dict.fromkeys(machine(record.machine) for record in results.records):
        lines.append(f"- Trained on {'; '.join(machines)}.")
    if seeds := [len(cell.values) for cell in results.cells]:
        few, most = min(seeds), max(seeds)
        lines.append(f"- Seeds per cell: {few if few == most else f'{few} to {most}'}.")
    if tested := sum(row[COMPARED.index("p")] != "" for row in comparisons(results)):
        lines.append(f"- {_how_compared(tested)}")
    if any(DASH in row for row in table(results)[1]):
        lines.append(f"- {DASH}: did not converge: at chance level in the end, or not finite.")
    return lines


def _how_compared(tested: int) -> str:
    """Explain the columns of `COMPARED`."""
    text = "Differences: paired t-test over seeds; each interval is for one comparison alone"
    if tested > 1:
        text += f". p, corrected: by Holm's method, for the {tested} comparisons of this table"
    return f"{text}. Fewer than three seeds decide nothing."


def _names(results: ExperimentResults, cells: list[CellResults]) -> str:
    """Name cells by the columns or rows that they fill, or else one by one."""
    for heading in ("column", "row"):
        names = dict.fromkeys(getattr(found.cell, heading) for found in cells)
        if sum(getattr(found.cell, heading) in names for found in results.cells) == len(cells):
            return ", ".join(names)
    return ", ".join(f"{found.cell.row} on {found.cell.column}" for found in cells)


def machine(about: Mapping[str, Any]) -> str:
    """Describe a machine in a few words, from run.json."""
    gpu = "" if about["gpu"] == "none" else f", {about['gpu']}"
    return f"{about['processor']}{gpu}, threads: {about['threads']}, torch {about['torch']}"


def line(cells: list[str]) -> str:
    """Return a row of a Markdown table."""
    return "| " + " | ".join(cells) + " |"
