"""Small tables of the docs: attacks, the oracle, comparisons, ImageNet on several GPUs."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from sortnet.lab.experiments.results import ExperimentResults
from sortnet.lab.report.tables import line
from sortnet.lab.runs import RunRecord
from sortnet.lab.statistics import adjust, compare, summary
from tools.scale import Demand

MODES = {
    "kernels": "eager, with kernels",
    "formulas": "eager, without kernels",
    "inductor": "`torch.compile` (Inductor)",
    "export": "`torch.export`",
    "checkpoint": "`torch.utils.checkpoint`",
    "ddp": "DistributedDataParallel",
    "frozen": "frozen statistics",
    "cumulative": "cumulative statistics",
    "double": "gradients of gradients",
}
PRECISIONS = {
    "bfloat16": "autocast to bfloat16",
    "float16": "autocast to float16",
    "half": "a bfloat16 module",
}
RATE = 50e12
"""Assumed multiply-adds per second of a GPU: a third of the 312 TFLOP/s that its maker states for
an A100 in bfloat16. Convolutional networks rarely get more."""
LINKS = {8: 200e9, 64: 20e9}
"""Assumed bytes per second between GPUs: within one machine, and over a network."""


def _table(heading: list[str], rows: list[list[str]]) -> str:
    return "\n".join(map(line, [heading, ["---"] * len(heading), *rows])) + "\n"


def chaos(result: Mapping[str, Any]) -> str:
    """Return attempts and failures by kind of attack, for docs/reliability.md."""
    total = {key: sum(row[key] for row in result["rows"]) for key in ("attempts", "failed")}
    commit = result["sortnet"][:7] or "unknown"
    text = (
        f"{total['attempts']:,} attempts in {result['seconds'] / 60:.0f} minutes,"
        f" {total['failed']:,} failed; torch {result['torch']}, commit {commit}.\n\n"
    )
    rows = [
        [row["attack"], *(str(row[key]) for key in ("attempts", "failed", "late"))]
        for row in result["rows"]
    ]
    return text + _table(["attack", "attempts", "failed", "not tried for lack of time"], rows)


def oracle(result: Mapping[str, Any]) -> str:
    """Return cases, failures and the largest errors by mode, for docs/correctness.md."""
    heading = ["subject", "mode", "precision", "cases", "failed", "largest error"]
    rows = [
        [
            row["subject"],
            MODES[row["mode"]],
            PRECISIONS.get(row["precision"], row["precision"]),
            str(row["cases"]),
            str(row["failed"]),
            f"{row['error']:.1e}",
            f"{row['plain']:.1e}",
        ]
        for row in result["rows"]
    ]
    text = f"{result['cases']:,} cases, torch {result['torch']}.\n\n"
    return text + _table([*heading, "plain composition's"], rows)


def comparison(answer: Mapping[str, Any]) -> str:
    """Return a comparison's variants and its verdict, for docs/compare.md."""
    rows = []
    for outcome in answer["outcomes"]:
        difference, cost = outcome["difference"], outcome["cost"]
        error = f"{outcome['mean']:.2f} ± {outcome['deviation']:.2f}"
        ratio = f"{cost['step_ratio']['median']:.2f}"
        row = [outcome["label"], error, "", "", f"{cost['parameters']:,}", ratio]
        if difference is not None:
            interval = f"[{difference['low']:+.2f}, {difference['high']:+.2f}]"
            row[2:4] = [f"{difference['mean']:+.2f} {interval}", f"{difference['adjusted_p']:.2g}"]
        rows.append(row)
    heading = ["variant", "test error (%)", "difference [95 %]", "p", "parameters", "step"]
    machine = answer["machine"]
    threads = f"{machine['threads']} thread{'s' * (machine['threads'] != 1)}"
    return (
        _table(heading, rows)
        + f"\n{answer['model']} on {answer['data']}: {answer['seeds']} seeds,"
        + f" {answer['steps']:,} steps of {answer['batch']} images ({answer['recipe']}),"
        + f" {answer['precision']}, {machine['processor']}, {threads}. Verdict:"
        + f" **{answer['verdict']}**.\n"
    )


def _training_error(record: RunRecord) -> float | None:
    """Return the mean error on training images in the last section."""
    curve, first = record.curves["train"], record.steps - record.run.recipe.sections[-1].steps
    points = zip(curve["step"], curve["error"], strict=True)
    found = [error for step, error in points if step > first and error is not None]
    return fmean(found) if found else None


MEASURES: dict[str, tuple[int, Callable[[RunRecord], float | None]]] = {
    "top-5 error, test (%)": (2, lambda record: record.test.get("error5")),
    "loss, test": (3, lambda record: record.test["loss"]),
    "error, training (%)": (2, _training_error),
}
"""What runs are compared by, besides their test error: digits shown, and the value of a run."""


def further(results: ExperimentResults) -> str:
    """Return comparisons by `MEASURES`, for docs/results.md.

    Comparisons that can decide nothing are left out.
    """
    rows, digits, differences = [], [], []
    for cell, base in results.pairs():
        for name, (places, measure) in MEASURES.items():
            with_sort, with_sum = (
                {seed: measure(r) for seed, r in found.records.items() if r.converged}
                for found in (cell, base)
            )
            difference = compare(with_sort, with_sum)
            if difference is None or difference.p is None:
                continue
            pair = f"{cell.cell.row} \N{MINUS SIGN} {base.cell.row}"
            means = (summary(list(found.values())).mean for found in (with_sum, with_sort))
            rows.append([pair, cell.cell.column, name, *(f"{mean:.{places}f}" for mean in means)])
            digits.append(places)
            differences.append(difference)
    for row, places, found in zip(rows, digits, adjust(differences), strict=True):
        assert found is not None
        ends = f"[{found.low:+.{places}f}, {found.high:+.{places}f}]"
        row += [f"{found.mean:+.{places}f} {ends}", f"{found.p:.2g}", f"{found.adjusted_p:.2g}"]
    heading = ["on the same seeds", "", "", "sum", "SORT", "difference [95 %]", "p"]
    return _table([*heading, "p, corrected"], rows)


def scale(stored: Sequence[dict[str, Any]]) -> str:
    """Return what a step needs by network and number of GPUs, for docs/scale.md."""
    heading = ["network", "GPUs", "images each", "memory each", "sent each", "computing"]
    rows = []
    for demand in (Demand(**entry) for entry in stored):
        for gpus, link in LINKS.items():
            computing, sending = demand.computing(gpus, RATE), demand.exchanged(gpus) / link
            rows.append(
                [
                    demand.name,
                    str(gpus),
                    str(demand.batch // gpus),
                    f"{demand.memory(gpus) / 1e9:.2f} GB",
                    f"{demand.exchanged(gpus) / 1e6:.0f} MB",
                    f"{1000 * computing:.2f} ms",
                    f"{1000 * sending:.2f} ms",
                    f"{demand.steps * max(computing, sending) / 3600:.1f} h",
                ]
            )
    return _table([*heading, "sending", "all steps"], rows)
