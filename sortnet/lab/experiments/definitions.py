"""The paper's tables and curves as data: which run fills which cell, and the paper's number.

Every run has the paper's network, data and schedule, and seed 0, except in our own experiments
(`recipes` and later). `sizes` shortens runs, `sweep` trains them, `results` collects them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from sortnet.errors import UsageError
from sortnet.lab import paper
from sortnet.lab.experiments.baselines import baseline, paper_values, training_key
from sortnet.lab.experiments.sizes import OWN_PRECISION
from sortnet.lab.recipes import BIGNET, DEFAULTS, GATED, IMAGENET_RESNET, LENET, RESNET, XU, Recipe
from sortnet.lab.runs import Run
from sortnet.networks import display

CURVES = 1000
"""Training images held out for learning curves: the paper's use the test images."""


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        row: The heading of its row.
        column: The heading of its column.
        run: The run that fills it.
        paper: The paper's number; None where it has a dash or nothing.
        metric: The metric of the run: ``error``, ``error5``, ``validation`` for the last error on
            held-out images, or a layer's accuracy after transfer.
        dash: Whether the paper prints a dash: the network did not converge.
        baseline: The row it is compared with, seed by seed: that of the run's
            `sortnet.lab.experiments.baselines.baseline`, if the column has it.
    """

    row: str
    column: str
    run: Run
    paper: float | None = None
    metric: str = "error"
    dash: bool = False
    baseline: str | None = None


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper.

    Attributes:
        name: The argument of `sortnet reproduce`.
        title: What it shows.
        cells: In the paper's order.
        transfer: The dataset to which the features of the trained networks are transferred.
    """

    name: str
    title: str
    cells: tuple[Cell, ...]
    transfer: str | None = None

    @property
    def runs(self) -> tuple[Run, ...]:
        """The runs of all cells, each once."""
        return tuple({cell.run.id: cell.run for cell in self.cells}.values())


def _run(result: paper.PaperResult, **changes: Any) -> Run:  # noqa: ANN401
    """Return the run of a cell of the paper; SORT's terms become ``sort``, to be trained once."""
    fusion = result.fusion or "sum"
    fusion = "sort" if fusion in ("sum+prod", "sum+root") else fusion
    options = {"branched": True} if result.branched else {}
    recipe = CAFFE if result.framework == "caffe" else DEFAULTS[result.network]
    data = "imagenet" if result.place == "Table 4" else result.data  # and then transferred
    run = Run(result.network, recipe, fusion, data, options=options)
    return replace(run, **changes)


def _cell(
    row: str, column: str, run: Run, metric: str = "error", place: str | None = None
) -> Cell:
    """Return a cell with the paper's number for its run, in `place` or else the latest table."""
    printed = [each for each in paper_values(run, metric) if place in (None, each.place)]
    value = printed[0].value if printed else None
    return Cell(row, column, run, value, metric, dash=bool(printed) and value is None)


def _with_baselines(cells: Iterable[Cell]) -> tuple[Cell, ...]:
    """Return the cells; those without a baseline get the row of their run's baseline."""
    every = tuple(cells)
    rows = {(cell.column, cell.metric, training_key(cell.run)): cell.row for cell in every}
    filled = []
    for cell in every:
        base = None if cell.baseline else baseline(cell.run)
        row = rows.get((cell.column, cell.metric, training_key(base))) if base else cell.baseline
        filled.append(replace(cell, baseline=row))
    return tuple(filled)


CAFFE: Recipe = replace(IMAGENET_RESNET, name="imagenet-caffe", jitter=False, area=None)
"""Our recipe for the ResNet-18 that the paper trained with Caffe: plain crops."""

DATA = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "svhn": "SVHN", "imagenet": "ILSVRC2012"}


LAYERS = {r.metric: r.metric.removesuffix("-accuracy") for r in paper.TABLE4}


def with_curve(run: Run) -> Run:
    """Return the run with images held out and evaluated every 2,000 steps."""
    evaluations = round(run.recipe.steps / 2000)
    return replace(run, validation=CURVES, evaluations=evaluations, name="curves")


def _title(result: paper.PaperResult) -> str:
    title = display(result.network, result.fusion or "sum", branched=result.branched)
    return title.replace("ResNet", "ResNetT") if result.framework == "torch" else title


def _table1() -> Iterable[Cell]:
    rows = {"prod": "product", "root": "product"}
    for result in paper.TABLE1:
        assert result.fusion is not None
        row = " + ".join(rows.get(term, term) for term in result.fusion.split("+"))
        column = display(result.network, branched=result.branched)
        yield _cell(row, column, _run(result), place="Table 1")


def _rows(results: Iterable[paper.PaperResult], columns: dict[str, str]) -> Iterable[Cell]:
    """Yield the networks that the paper trained, without the results it cites."""
    for result in results:
        if result.network not in DEFAULTS:
            continue
        metric = {"top1-error": "error", "top5-error": "error5"}.get(result.metric, result.metric)
        column = columns.get(result.metric) or DATA[result.data]
        yield _cell(_title(result), column, _run(result), metric)


def _curves() -> Iterable[Cell]:
    """Yield Figures 3 and 4, with and without SORT; the paper names only some of the networks."""
    small = ("lenet", "bignet", "resnet56", "wrn28")
    wanted = [(data, name) for name in small for data in ("cifar10", "cifar100", "svhn")]
    wanted += [("imagenet", "alexnet"), ("imagenet", "resnet18")]
    for data, network in wanted:
        metric = "top1-error" if data == "imagenet" else "error"
        results = paper.find_results(network=network, data=data, metric=metric)
        for result in results:
            if result.fusion not in ("sum", "sort") or result.place == "Table 1":
                continue
            if result.framework == "torch":
                continue
            held = data in ("cifar10", "cifar100")
            run = with_curve(_run(result)) if held else _run(result)
            yield _cell(_title(result), DATA[data], run)


def _bilinear() -> Iterable[Cell]:
    base = Run("bignet", BIGNET, "sum", "cifar10", options={"branched": True})
    yield _cell("BigNet*", "CIFAR-10", base)
    titles = {"bilinear": "BigNet*, bilinear", "compact": "BigNet*, compact bilinear"}
    for head, row in titles.items():  # another head, the same fusion
        run = replace(base, options={**base.options, "head": head})
        yield replace(_cell(row, "CIFAR-10", run), baseline="BigNet*")
    yield _cell("BigNet*-SORT", "CIFAR-10", replace(base, fusion="sort"))


def _recipes() -> Iterable[Cell]:
    """Yield a residual network with SORT by the paper's recipe, and by one with gates.

    The recipes differ in nothing else, so the network without SORT is trained only once.
    """
    for row, recipe, fusion in (
        ("ResNet-20", RESNET, "sum"),
        ("ResNet-20-SORT", RESNET, "sort"),
        ("ResNet-20-SORT, gated", GATED, "sort"),
    ):
        yield _cell(row, "CIFAR-10", Run("resnet20", recipe, fusion, "cifar10"))


def _attempt(
    fusion: str, warm_up: int = 0, gate: str | None = None, network: str = "resnet20"
) -> Run:
    """Return a run at a quarter of the schedule; the size mini takes a tenth of that."""
    recipe = replace(RESNET.scaled(0.25), warm_up=warm_up)
    options = {} if gate is None else {"gate": gate}
    name = "gate" if gate else f"warm{warm_up}" if warm_up else ""
    run = Run(network, recipe, fusion, "cifar10", options=options, name=name)
    return replace(run, validation=5000, evaluations=4)


def _attempts() -> Iterable[Cell]:
    """Yield what was tried to make SORT start well, judged by held-out images."""
    tried = {
        "ResNet-20": _attempt("sum"),
        "ResNet-20-SORT": _attempt("sort"),
        "ResNet-20-SORT, warm-up of 200 steps": _attempt("sort", warm_up=200),
        "ResNet-20-SORT, gates from zero": _attempt("sort", gate="zero"),
    }
    for row, run in tried.items():
        yield _cell(row, "CIFAR-10", run, "validation")


def _depth() -> Iterable[Cell]:
    """Test whether SORT gains with depth, in residual networks with the same schedule."""
    for network in ("resnet20", "resnet32", "resnet56"):
        plain = display(network)
        yield _cell(plain, "CIFAR-10", _attempt("sum", network=network))
        for gate, row in ((None, f"{plain}-SORT"), ("zero", f"{plain}-SORT, gated")):
            yield _cell(row, "CIFAR-10", _attempt("sort", gate=gate, network=network))


def _roots() -> Iterable[Cell]:
    """Test which term Table 1 has: the product, by section 3.1, or the root, by its text.

    The paper's LeNet* learns with that term alone.
    """
    for row, fusion in (("sum", "sum"), ("product", "prod"), ("root", "root")):
        run = Run("lenet", LENET, fusion, "cifar10", options={"branched": True})
        yield _cell(row, "LeNet*", run, place="Table 1")


def _styles() -> Iterable[Cell]:
    """Test whether SORT starts better in the implementation that the paper probably follows."""
    network = {"style": "xu"}
    for row, fusion, recipe, options in (
        ("ResNet-20", "sum", RESNET, {}),
        ("ResNet-20-SORT", "sort", RESNET, {}),
        ("ResNet-20-SORT, Xu's recipe", "sort", XU, {}),
        ("ResNet-20, Xu's recipe and network", "sum", XU, network),
        ("ResNet-20-SORT, Xu's recipe and network", "sort", XU, network),
    ):
        run = _attempt(fusion)
        run = replace(run, recipe=recipe.scaled(run.recipe.scale), options=options)
        yield _cell(row, "CIFAR-10", run)


def _evidence() -> Iterable[Cell]:
    """Test whether SORT helps: networks that a CPU can train at the paper's schedule."""
    for data in ("cifar100", "cifar10"):
        yield _long("LeNet*", data, "lenet", LENET, "sum", branched=True)
        yield _long("LeNet*-SORT", data, "lenet", LENET, "sort", branched=True)
        yield _long("LeNet", data, "lenet", LENET, "sum")
    yield _long("ResNet-20, Xu's", "cifar10", "resnet20", XU, "sum", style="xu")
    yield _long("ResNet-20-SORT, Xu's", "cifar10", "resnet20", XU, "sort", style="xu")
    yield _long("ResNet-20", "cifar10", "resnet20", RESNET, "sum")
    yield _long("ResNet-20-SORT, gated", "cifar10", "resnet20", GATED, "sort")
    deep = XU.scaled(0.25)
    yield _long("ResNet-56, Xu's", "cifar10", "resnet56", deep, "sum", style="xu")
    yield _long("ResNet-56-SORT, Xu's", "cifar10", "resnet56", deep, "sort", style="xu")


def _long(
    row: str,
    data: str,
    network: str,
    recipe: Recipe,
    fusion: str,
    **options: Any,  # noqa: ANN401
) -> Cell:
    """Return a cell of `_evidence`."""
    run = Run(network, recipe, fusion, data, options=options)
    return _cell(row, DATA[data], with_curve(run))


def _precision() -> Iterable[Cell]:
    """Compare bfloat16 with float32 on the same seeds."""
    base = Run("lenet", LENET, "sum", "cifar10", options={"branched": True}, name=OWN_PRECISION)
    networks = {
        "LeNet*": base,
        "ResNet-20": replace(base, network="resnet20", recipe=RESNET, options={}),
    }
    for precision, base_row in (("float32", None), ("bfloat16", "float32")):
        for column, run in networks.items():
            run = replace(run, precision=precision)
            yield Cell(precision, column, run, baseline=base_row)


def _rates() -> Iterable[Cell]:
    """Test whether BigNet, which has no batch normalization, learns at a first rate of 0.1."""
    for branched, fusion in ((False, "sum"), (True, "sum"), (True, "sort")):
        options = {"branched": True} if branched else {}
        run = Run("bignet", BIGNET, fusion, "cifar10", options=options)
        run = replace(run, validation=1000, evaluations=12)
        row = display("bignet", fusion, branched=branched)
        yield _cell(row, "CIFAR-10", run, "validation")


_DEFINITIONS: dict[str, tuple[str, Iterable[Cell]]] = {
    "table1": ("Table 1: fusions on CIFAR-10, error (%)", _table1()),
    "table2": ("Table 2: CIFAR-10, CIFAR-100 and SVHN, error (%)", _rows(paper.TABLE2, {})),
    "table3": (
        "Table 3: ILSVRC2012, error (%)",
        _rows(paper.TABLE3, {"top1-error": "top-1", "top5-error": "top-5"}),
    ),
    "table4": (
        "Table 4: features transferred to Caltech256, accuracy (%)",
        _rows(paper.TABLE4, LAYERS),
    ),
    "figures": ("Figures 3 and 4: learning curves, error (%)", _curves()),
    "bilinear": ("Section 3.4: bilinear pooling on BigNet*, CIFAR-10, error (%)", _bilinear()),
    "recipes": ("ResNet-20 on CIFAR-10 by the paper's recipe and by ours, error (%)", _recipes()),
    "attempts": (
        "How SORT starts well: ResNet-20 on CIFAR-10, error on held-out images (%)",
        _attempts(),
    ),
    "depth": ("Residual networks of three depths: CIFAR-10, error (%)", _depth()),
    "roots": ("Each term alone, between two branches: CIFAR-10, error (%)", _roots()),
    "styles": ("ResNet-20 by the usual recipe, and by Xu's: CIFAR-10, error (%)", _styles()),
    "evidence": ("With and without SORT at the paper's schedule, error (%)", _evidence()),
    "precision": ("bfloat16 against float32: CIFAR-10, error (%)", _precision()),
    "rates": ("BigNet at a first rate of 0.1: CIFAR-10, error on held-out images (%)", _rates()),
}
EXPERIMENTS = {
    name: Experiment(
        name, title, _with_baselines(cells), "caltech256" if name == "table4" else None
    )
    for name, (title, cells) in _DEFINITIONS.items()
}


def experiment(name: str) -> Experiment:
    """Return an experiment by its name.

    Raises:
        UsageError: There is none.
    """
    if name not in EXPERIMENTS:
        raise UsageError(
            f"unknown experiment {name!r}; there are {', '.join(EXPERIMENTS)} and cost"
        )
    return EXPERIMENTS[name]
