"""Claims about accuracy: from the results of experiments, SORT and its baseline on equal seeds."""

from collections.abc import Sequence
from dataclasses import dataclass

from sortnet.lab import paper
from sortnet.lab.claims.finding import (
    FAILS,
    HOLDS,
    OPEN,
    Check,
    Compared,
    Context,
    Finding,
    judged,
    missing,
    source,
)
from sortnet.lab.experiments import results
from sortnet.lab.experiments.definitions import EXPERIMENTS
from sortnet.lab.experiments.results import Stored
from sortnet.lab.measure import parameters
from sortnet.lab.statistics import FEWEST, compare
from sortnet.networks import create_model

Values = dict[int, float | None]


@dataclass(frozen=True)
class Table:
    """The results of an experiment, to be asked for cells; all are empty if there are none."""

    name: str
    stored: Stored | None

    @classmethod
    def of(cls, context: Context, name: str) -> "Table":
        """The best results of an experiment that there are."""
        return cls(name, context.best(name))

    def values(self, row: str, column: str) -> Values:
        """A cell's figures by seed."""
        for cell in self.stored["cells"] if self.stored else ():
            if (cell["row"], cell["column"]) == (row, column):
                return results.values(self.stored or {}, cell)
        return {}

    def compared(self, row: str, base: str, column: str, expected: int = -1) -> Compared:
        """A row less another one."""
        mine, other = self.values(row, column), self.values(base, column)
        name = f"{row} \N{MINUS SIGN} {base}, {column}"
        return compared(name, mine, other, expected)

    @property
    def note(self) -> str:
        """Where the figures come from."""
        if self.stored is None:
            return f"{self.name}: none"
        changed = dict.fromkeys(text for cell in self.stored["cells"] for text in cell["changed"])
        return f"{source(self.stored)}: {', '.join(changed) or 'as in the paper'}"


def compared(name: str, mine: Values, other: Values, expected: int = -1) -> Compared:
    """Compare two configurations by seed."""
    both = [(a, other[seed]) for seed, a in mine.items() if seed in other]
    failed = sum(a is None and b is not None for a, b in both)
    alone = sum(a is not None and b is None for a, b in both)
    return Compared(name, compare(mine, other), expected, failed, alone)


def _with_baseline(name: str) -> list[tuple[str, str, str]]:
    """Row, baseline and column of the cells whose row is SORT's."""
    cells = EXPERIMENTS[name].cells
    return [(c.row, c.baseline, c.column) for c in cells if c.baseline is not None]


def _against_baseline(
    context: Context, names: Sequence[str], rows: str = "", expected: int = -1
) -> Finding:
    every = []
    tables = [Table.of(context, name) for name in names]
    for table in tables:
        every += [
            table.compared(row, base, column, expected)
            for row, base, column in _with_baseline(table.name)
            if rows in row
        ]
    return judged(every, "; ".join(table.note for table in tables), *names)


def _rows(context: Context, pairs: Sequence[tuple[str, str]]) -> Finding:
    """Rows of Table 1 against each other, in each column."""
    table = Table.of(context, "table1")
    columns = ("LeNet*", "BigNet*", "ResNet-20")
    every = [table.compared(row, base, column) for row, base in pairs for column in columns]
    return judged(every, table.note, table.name)


def product_alone(context: Context) -> Finding:
    """In which networks most runs with the second-order term alone did not converge."""
    table = Table.of(context, "table1")
    found, failing, counts = [], [], []
    for column in ("BigNet*", "ResNet-20"):
        values = list(table.values("product", column).values())
        if values:
            bad = sum(value is None for value in values)
            failing.append(2 * bad >= len(values))
            counts.append(len(values))
            found.append(f"{column}: {bad} of {len(values)} runs did not converge")
    if not found:
        return missing(table.name)
    figures = f"{'; '.join(found)} ({table.note})"
    if len(found) < 2 or min(counts) < FEWEST or len(set(failing)) > 1:
        return Finding(OPEN, figures)
    return Finding(HOLDS if all(failing) else FAILS, figures)


def branched(context: Context) -> Finding:
    """Chains against their two-branch forms."""
    small, large = Table.of(context, "table2"), Table.of(context, "table3")
    every = [
        small.compared(f"{name}*", name, column)
        for name in ("LeNet", "BigNet")
        for column in ("CIFAR-10", "CIFAR-100", "SVHN")
    ]
    every += [large.compared("AlexNet*", "AlexNet", column) for column in ("top-1", "top-5")]
    return judged(every, f"{small.note}; {large.note}", small.name, large.name)


def depth_explains(context: Context) -> Finding:
    """The paper trains no network that is as deep as AlexNet* and has no branches."""
    plain, two = (create_model("alexnet", branched=both) for both in (False, True))
    figures = (
        f"AlexNet has 8 layers and {parameters(plain):,} parameters, AlexNet* 13 and"
        f" {parameters(two):,}: depth and size change together, and the paper has no control"
    )
    return Finding(OPEN, figures)


def _drop(table: Table, network: str, column: str) -> Values:
    """The relative drop of the error in per cent, by seed; none where SORT did not converge."""
    plain, second = (table.values(network + end, column) for end in ("", "-SORT"))
    return {
        seed: None if (after := second[seed]) is None else 100 * (before - after) / before
        for seed, before in plain.items()
        if before and seed in second
    }


def grows_with_depth(context: Context) -> Finding:
    """The relative drop of ResNet-56 less that of ResNet-20, on the same schedule."""
    small, short = Table.of(context, "table2"), Table.of(context, "depth")
    table = small if small.values("ResNet-56-SORT", "CIFAR-10") else short
    every = [
        compared(
            f"drop of ResNet-56 \N{MINUS SIGN} of ResNet-20 (%), {column}",
            _drop(table, "ResNet-56", column),
            _drop(table, "ResNet-20", column),
            expected=1,
        )
        for column in ("CIFAR-10", "CIFAR-100", "SVHN")
    ]
    return judged(every, table.note, small.name, short.name)


def overfitting(context: Context) -> Finding:
    """ResNet-56 less ResNet-20 on SVHN."""
    table = Table.of(context, "table2")
    every = [
        table.compared("ResNet-56", "ResNet-20", "SVHN", expected=1),
        table.compared("ResNet-56-SORT", "ResNet-20-SORT", "SVHN"),
    ]
    return judged(every, table.note, table.name)


def record(context: Context) -> Finding:
    """WRN-28-SORT on SVHN against the best number that the paper cites."""
    cited = [r.value for r in paper.find(data="svhn") if not r.network.islower()]
    best = min(value for value in cited if value is not None)
    table = Table.of(context, "table2")
    mine = table.values("WRN-28-SORT", "SVHN")
    limit: Values = dict.fromkeys(mine, best)
    every = [compared(f"WRN-28-SORT \N{MINUS SIGN} {best}", mine, limit)]
    return judged(every, table.note, table.name)


def bilinear_worse(context: Context) -> Finding:
    """Bilinear and compact bilinear pooling, and SORT, against BigNet*."""
    table = Table.of(context, "bilinear")
    every = [
        table.compared(row, "BigNet*", "CIFAR-10", -1 if "SORT" in row else 1)
        for row in ("BigNet*, bilinear", "BigNet*, compact bilinear", "BigNet*-SORT")
    ]
    return judged(every, table.note, table.name)


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
    "sort-beats-sum": lambda context: _against_baseline(context, ["table2"]),
    "gain-grows-with-depth": grows_with_depth,
    "less-structural-overfitting": overfitting,
    "svhn-record": record,
    "ilsvrc2012-gains": lambda context: _against_baseline(context, ["table3"]),
    "features-transfer": lambda context: _against_baseline(context, ["table4"], expected=1),
}
