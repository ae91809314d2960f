"""An answer as plain text, for a terminal of 80 columns."""

import textwrap
from collections.abc import Sequence

from sortnet.lab.compare.answer import Answer, Outcome
from sortnet.lab.measure import Ratio
from sortnet.lab.statistics import summary

WIDTH = 80
LABEL = 22
"""Longest name of a variant that is shown, in characters."""


def text(answer: Answer) -> str:
    """Return a whole answer, the verdict last."""
    seeds = f"{answer.seeds} seed{'s' * (answer.seeds != 1)}"
    if answer.max_seeds is not None:
        seeds += f" of at most {answer.max_seeds}"
    title = f"{answer.model} on {answer.data}: {seeds}, {answer.steps:,} steps of {answer.batch}"
    title += f" images ({answer.recipe}), {answer.precision}"
    parts = [textwrap.fill(title, WIDTH), _table(ERRORS, [_errors(o) for o in answer.outcomes])]
    if answer.outcomes[0].cost is not None:
        rows = [_cost(outcome, answer.outcomes[0]) for outcome in answer.outcomes]
        parts.append(_table(COSTS, rows))
    verdicts = [
        textwrap.fill(f"{o.label}: {o.text}", WIDTH, subsequent_indent="  ")
        for o in answer.outcomes[1:]
    ]
    return "\n\n".join([*parts, "\n".join(verdicts)])


ERRORS = ("variant", "test error %", "difference", "95 % interval", "p")
COSTS = ("variant", "parameters", "step", "inference", "saved")


def _errors(outcome: Outcome) -> Sequence[str]:
    found = summary(list(outcome.errors.values()))
    mean = "-" if found.mean is None else f"{found.mean:.2f}"
    mean += "" if found.deviation is None else f" ± {found.deviation:.2f}"
    mean += f" ({found.diverged} diverged)" if found.diverged else ""
    difference = outcome.difference
    if difference is None:
        return outcome.label, mean, "", "", ""
    interval = "-"
    if difference.low is not None and difference.high is not None:
        interval = f"[{difference.low:+.2f}, {difference.high:+.2f}]"
    p = "-" if difference.adjusted_p is None else f"{difference.adjusted_p:.2g}"
    return outcome.label, mean, f"{difference.mean:+.2f}", interval, p


def _cost(outcome: Outcome, baseline: Outcome) -> Sequence[str]:
    cost, base = outcome.cost, baseline.cost
    assert cost is not None
    assert base is not None
    if outcome is baseline:
        times = [f"{1000 * seconds:.3g} ms" for seconds in (cost.step, cost.inference)]
        return outcome.label, f"{cost.parameters:,}", *times, f"{cost.saved / 1e6:.3g} MB"
    return (
        outcome.label,
        f"{cost.parameters - base.parameters:+,}",
        _ratio(cost.step_ratio),
        _ratio(cost.inference_ratio),
        f"x {cost.saved / base.saved:.2f}",
    )


def _ratio(found: Ratio) -> str:
    return f"x {found.median:.2f} [{found.low:.2f}, {found.high:.2f}]"


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rows = [[textwrap.shorten(row[0], LABEL, placeholder="..."), *row[1:]] for row in rows]
    widths = [max(map(len, column)) for column in zip(heading, *rows, strict=True)]
    lines = []
    for row in (heading, *rows):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
