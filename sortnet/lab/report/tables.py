"""The paper's tables, ours beside the paper's, from the results of `sortnet reproduce`."""

from collections.abc import Mapping
from typing import Any

from sortnet.lab.experiments import results
from sortnet.lab.statistics import Comparison, Summary, adjust, compare, summary

Cell = Mapping[str, Any]
DASH = "\N{EN DASH}"


def markdown(stored: results.Stored) -> str:
    """An experiment as Markdown: the table, the comparisons by seed, and what was changed.

    Arguments:
        stored: As `sortnet.lab.experiments.results.collect` gave it.
    """
    lines = [f"### {stored['title']}", "", *_table(stored)]
    if compared := comparisons(stored):
        lines += ["", _line(COMPARED), _line(["---"] * len(COMPARED))]
        lines += [_line(row) for row in compared]
    return "\n".join([*lines, "", *remarks(stored)]) + "\n"


def so_far(stored: results.Stored) -> str:
    """The same of what has been run."""
    return markdown(filled(stored))


def brief(stored: results.Stored) -> str:
    """Only the table, of what has been run."""
    return "\n".join(_table(filled(stored))) + "\n"


def _table(stored: results.Stored) -> list[str]:
    heading, rows = table(stored)
    return [_line(row) for row in (heading, ["---"] * len(heading), *rows)]


def filled(stored: results.Stored) -> results.Stored:
    """The same without the cells for which there is no run yet."""
    cells = [cell for cell in stored["cells"] if results.values(stored, cell)]
    return {**stored, "cells": cells}


def table(stored: results.Stored) -> tuple[list[str], list[list[str]]]:
    """Heading and rows: in each cell ours, as mean and deviation over seeds, and the paper's.

    A column of which the paper has nothing stands alone.
    """
    rows = list(dict.fromkeys(cell["row"] for cell in stored["cells"]))
    columns: dict[str, bool] = {}
    for cell in stored["cells"]:
        columns[cell["column"]] = columns.get(cell["column"], False) or bool(_printed(cell))
    cells = {(cell["row"], cell["column"]): cell for cell in stored["cells"]}
    heading = [""]
    for column, printed in columns.items():
        heading += [column, "paper"] if printed else [column]
    lines = []
    for row in rows:
        line = [row]
        for column, printed in columns.items():
            cell = cells.get((row, column))
            both = ["", ""] if cell is None else [_ours(stored, cell), _printed(cell)]
            line += both if printed else both[:1]
        lines.append(line)
    return heading, lines


def _ours(stored: results.Stored, cell: Cell) -> str:
    found = results.values(stored, cell)
    if not found:
        return "not run"
    return _figure(summary(list(found.values())))


def _figure(found: Summary) -> str:
    """The mean and deviation; a dash for what did not converge, as in the paper."""
    if found.mean is None:
        return DASH
    text = f"{found.mean:.2f}"
    if found.deviation is not None:
        text += f" ± {found.deviation:.2f}"
    if found.diverged:
        text += f" ({found.diverged} of {found.runs + found.diverged} did not converge)"
    return text


def _printed(cell: Cell) -> str:
    if cell["dash"]:
        return DASH
    return "" if cell["paper"] is None else f"{cell['paper']:.2f}"


COMPARED = ["on the same seeds", "", "difference [95 %]", "p", "p, corrected", "seeds", "paper"]


def comparisons(stored: results.Stored) -> list[list[str]]:
    """Each row that has a baseline, less that baseline, where they have two seeds in common."""
    cells = {(cell["row"], cell["column"]): cell for cell in stored["cells"]}
    pairs = [
        (cell, base)
        for cell in stored["cells"]
        if (base := cells.get((cell["baseline"], cell["column"]))) is not None
    ]
    found = adjust(
        compare(results.values(stored, cell), results.values(stored, base)) for cell, base in pairs
    )
    return [
        _compared(cell, base, each)
        for (cell, base), each in zip(pairs, found, strict=True)
        if each is not None and each.pairs > 1
    ]


def _compared(cell: Cell, base: Cell, found: Comparison) -> list[str]:
    difference = f"{found.mean:+.2f}"
    if found.low is not None:
        difference += f" [{found.low:+.2f}, {found.high:+.2f}]"
    known = cell["paper"] is not None and base["paper"] is not None
    return [
        f"{cell['row']} \N{MINUS SIGN} {base['row']}",
        cell["column"],
        difference,
        *("" if p is None else f"{p:.2g}" for p in (found.p, found.adjusted_p)),
        str(found.pairs),
        f"{cell['paper'] - base['paper']:+.2f}" if known else "",
    ]


def remarks(stored: results.Stored) -> list[str]:
    """What a reader has to know: the size, what differs from the paper, where it was run."""
    groups: dict[str, list[Cell]] = {}
    for cell in stored["cells"]:
        groups.setdefault(", ".join(cell["changed"]) or "as in the paper", []).append(cell)
    precision = stored.get("precision", "float32")
    size = stored["size"] if precision == "float32" else f"{stored['size']}, {precision}"
    lines = [f"Size {size}: {stored['about']}."]
    lines += [f"- {_names(stored, cells)}: {text}." for text, cells in groups.items()]
    carried = dict.fromkeys(
        e["transfer"]["data"] for e in stored["runs"].values() if e["transfer"]
    )
    if carried and any(cell["metric"].endswith("-accuracy") for cell in stored["cells"]):
        lines.append(f"- Features carried over to {', '.join(carried)}.")
    if machines := dict.fromkeys(machine(entry["machine"]) for entry in stored["runs"].values()):
        lines.append(f"- Trained on {'; '.join(machines)}.")
    seeds = [len(found) for cell in stored["cells"] if (found := results.values(stored, cell))]
    if seeds:
        few, most = min(seeds), max(seeds)
        lines.append(f"- Seeds in a cell: {few if few == most else f'{few} to {most}'}.")
    if tested := sum(row[COMPARED.index("p")] != "" for row in comparisons(stored)):
        lines.append(f"- {_how_compared(tested)}")
    if any(DASH in row for row in table(stored)[1]):
        lines.append(f"- {DASH}: did not converge: at chance in the end, or not finite.")
    return lines


def _how_compared(tested: int) -> str:
    """What the columns of `COMPARED` are."""
    text = "Differences: paired t-test over seeds; each interval is for one comparison alone"
    if tested > 1:
        text += f". p, corrected: by Holm's method, for the {tested} comparisons of this table"
    return f"{text}. Fewer than three seeds decide nothing."


def _names(stored: results.Stored, cells: list[Cell]) -> str:
    """Some cells by the columns or rows that they make up, or else one by one."""
    for heading in ("column", "row"):
        names = dict.fromkeys(cell[heading] for cell in cells)
        if sum(cell[heading] in names for cell in stored["cells"]) == len(cells):
            return ", ".join(names)
    return ", ".join(f"{cell['row']} on {cell['column']}" for cell in cells)


def machine(about: Mapping[str, Any]) -> str:
    """A machine in a few words, from what run.json says of it."""
    gpu = "" if about["gpu"] == "none" else f", {about['gpu']}"
    return f"{about['processor']}{gpu}, threads: {about['threads']}, torch {about['torch']}"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
