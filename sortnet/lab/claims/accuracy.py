"""Claims about accuracy: from the results of experiments, SORT and its baseline on equal seeds."""

from collections.abc import Sequence

from sortnet.lab import paper
from sortnet.lab.claims.evidence import Evidence
from sortnet.lab.claims.finding import (
    FAILS,
    HOLDS,
    OPEN,
    Check,
    Context,
    Expectation,
    Finding,
    Values,
    judge,
    missing,
)
from sortnet.lab.experiments.definitions import EXPERIMENTS
from sortnet.lab.measure import parameters
from sortnet.lab.statistics import FEWEST
from sortnet.networks import create_model

LONG = "evidence"
"""The experiment with runs at the paper's schedule."""


def _against_baseline(context: Context, name: str, *others: str, expected: int = -1) -> Finding:
    """Compare each cell of a table with its baseline; other experiments may have it, too."""
    table = Evidence.of(context, *others, name)
    every = [
        table.compare(cell.row, cell.baseline, cell.column, expected)
        for cell in EXPERIMENTS[name].cells
        if cell.baseline is not None
    ]
    return judge(every, table.note, name)


def _rows(context: Context, pairs: Sequence[tuple[str, str]]) -> Finding:
    """Compare pairs of rows of Table 1, in each column."""
    table = Evidence.of(context, "table1")
    columns = ("LeNet*", "BigNet*", "ResNet-20")
    every = [table.compare(row, base, column) for row, base in pairs for column in columns]
    return judge(every, table.note, *table.names)


def product_alone(context: Context) -> Finding:
    """Count the runs with the second-order term alone that did not converge."""
    table = Evidence.of(context, "table1")
    found, failing, counts = [], [], []
    for column in ("BigNet*", "ResNet-20"):
        values = list(table.values("product", column).values())
        if values:
            bad = sum(value is None for value in values)
            failing.append(2 * bad >= len(values))
            counts.append(len(values))
            found.append(f"{column}: {bad} of {len(values)} runs did not converge")
    if not found:
        return missing(*table.names)
    figures = f"{'; '.join(found)} ({table.note})"
    if len(found) < 2 or min(counts) < FEWEST or len(set(failing)) > 1:
        return Finding(OPEN, figures)
    return Finding(HOLDS if all(failing) else FAILS, figures)


def branched(context: Context) -> Finding:
    """Compare chains with their two-branch forms."""
    small, large = Evidence.of(context, LONG, "table2"), Evidence.of(context, "table3")
    every = [
        small.compare(f"{name}*", name, column)
        for name in ("LeNet", "BigNet")
        for column in ("CIFAR-10", "CIFAR-100", "SVHN")
    ]
    every += [large.compare("AlexNet*", "AlexNet", column) for column in ("top-1", "top-5")]
    return judge(every, f"{small.note}; {large.note}", "table2", "table3")


def depth_explains(context: Context) -> Finding:
    """Leave the claim undecided: the paper has no network as deep as AlexNet* without branches."""
    plain, two = (create_model("alexnet", branched=both) for both in (False, True))
    figures = (
        f"AlexNet has 8 layers and {parameters(plain):,} parameters, AlexNet* 13 and"
        f" {parameters(two):,}: depth and size change together, and the paper has no control"
    )
    return Finding(OPEN, figures)


def _drop(table: Evidence, network: str, column: str) -> Values:
    """Return the relative drop of the error in percent by seed; None if SORT did not converge."""
    plain, second = (table.values(network + end, column) for end in ("", "-SORT"))
    return {
        seed: None if (after := second[seed]) is None else 100 * (before - after) / before
        for seed, before in plain.items()
        if before and seed in second
    }


def grows_with_depth(context: Context) -> Finding:
    """Compare the relative drop of ResNet-56 with that of ResNet-20, on the same schedule."""
    small, short = Evidence.of(context, "table2"), Evidence.of(context, "depth")
    table = small if small.values("ResNet-56-SORT", "CIFAR-10") else short
    every = [
        Expectation.of(
            f"drop of ResNet-56 \N{MINUS SIGN} of ResNet-20 (%), {column}",
            _drop(table, "ResNet-56", column),
            _drop(table, "ResNet-20", column),
            expected=1,
        )
        for column in ("CIFAR-10", "CIFAR-100", "SVHN")
    ]
    return judge(every, table.note, *small.names, *short.names)


def overfitting(context: Context) -> Finding:
    """Compare ResNet-56 with ResNet-20 on SVHN."""
    table = Evidence.of(context, "table2")
    every = [
        table.compare("ResNet-56", "ResNet-20", "SVHN", expected=1),
        table.compare("ResNet-56-SORT", "ResNet-20-SORT", "SVHN"),
    ]
    return judge(every, table.note, *table.names)


def record(context: Context) -> Finding:
    """Compare WRN-28-SORT on SVHN with the best number that the paper cites."""
    cited = [r.value for r in paper.find_results(data="svhn") if not r.network.islower()]
    best = min(value for value in cited if value is not None)
    table = Evidence.of(context, "table2")
    mine = table.values("WRN-28-SORT", "SVHN")
    limit: Values = dict.fromkeys(mine, best)
    every = [Expectation.of(f"WRN-28-SORT \N{MINUS SIGN} {best}", mine, limit)]
    return judge(every, table.note, *table.names)


def bilinear_worse(context: Context) -> Finding:
    """Compare bilinear pooling, compact bilinear pooling and SORT with BigNet*."""
    table = Evidence.of(context, "bilinear")
    every = [
        table.compare(row, "BigNet*", "CIFAR-10", -1 if "SORT" in row else 1)
        for row in ("BigNet*, bilinear", "BigNet*, compact bilinear", "BigNet*-SORT")
    ]
    return judge(every, table.note, *table.names)


CHECKS: dict[str, Check] = {
    "bilinear-worse": bilinear_worse,
    "product-alone-diverges": product_alone,
    "sum-plus-product": lambda context: _rows(context, [("sum + product", "sum")]),
    "max-plus-product": lambda context: _rows(context, [("max + product", "max")]),
    "both-orders-needed": lambda context: _rows(
        context,
        [
            (f"{first} + product", alone)
            for first in ("sum", "max")
            for alone in (first, "product")
        ],
    ),
    "branched-beats-plain": branched,
    "depth-explains-branching": depth_explains,
    "sort-beats-sum": lambda context: _against_baseline(context, "table2", LONG),
    "gain-grows-with-depth": grows_with_depth,
    "less-structural-overfitting": overfitting,
    "svhn-record": record,
    "ilsvrc2012-gains": lambda context: _against_baseline(context, "table3"),
    "features-transfer": lambda context: _against_baseline(context, "table4", expected=1),
}
