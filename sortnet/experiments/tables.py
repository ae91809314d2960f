"""The paper's tables and curves as data: which run belongs in which cell, and what the paper has.

Every run here is the paper's: its network, its data, its schedule, seed 0, but for the last five
experiments, which are ours. `sizes` makes them shorter, `sweep` trains them, `results` collects
what came of them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from sortnet import paper
from sortnet.networks import display
from sortnet.recipes import BIGNET, DEFAULTS, GATED, IMAGENET_RESNET, LENET, RESNET, XU, Recipe
from sortnet.runs import Run

CURVES = 1000
"""Training images held out for learning curves: the paper's use the test images."""


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        row: Its row's heading.
        column: Its column's.
        run: The run that fills it.
        paper: What the paper prints; none where it has a dash or nothing.
        metric: Which figure of the run it is: ``error``, ``error5``, ``validation`` for the last
            one on held-out images, or a layer's accuracy after transfer.
        dash: Whether the paper prints a dash: the network did not converge.
        baseline: The row with which this one is compared, seed by seed.
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
        name: As `sortnet reproduce` takes it.
        title: What it shows.
        cells: In the paper's order.
        transfer: The data to which the trained networks' features are carried over.
    """

    name: str
    title: str
    cells: tuple[Cell, ...]
    transfer: str | None = None

    @property
    def runs(self) -> tuple[Run, ...]:
        """The runs of all cells, each once."""
        return tuple({cell.run.id: cell.run for cell in self.cells}.values())


def _run(result: paper.Result, **changes: Any) -> Run:  # noqa: ANN401
    """The run behind a cell of the paper; terms that are SORT's are called so, to be run once."""
    fusion = result.fusion or "sum"
    fusion = "sort" if fusion in ("sum+prod", "sum+root") else fusion
    options = {"branched": True} if result.branched else {}
    recipe = CAFFE if result.framework == "caffe" else DEFAULTS[result.network]
    run = Run(result.network, recipe, fusion, result.data, options=options)
    return replace(run, **changes)


CAFFE: Recipe = replace(IMAGENET_RESNET, name="imagenet-caffe", jitter=False, area=None)
"""Of the ResNet-18 that the paper trained with Caffe: plain crops, as Caffe has them. Ours."""

DATA = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "svhn": "SVHN", "imagenet": "ILSVRC2012"}


def with_curve(run: Run) -> Run:
    """The run with some images held out, on which it is evaluated every 2,000 steps."""
    evaluations = round(run.recipe.steps / 2000)
    return replace(run, validation=CURVES, evaluations=evaluations, name="curves")


def _title(result: paper.Result) -> str:
    title = display(result.network, result.fusion or "sum", branched=result.branched)
    return title.replace("ResNet", "ResNetT") if result.framework == "torch" else title


def _table1() -> Iterable[Cell]:
    rows = {"prod": "product", "root": "product"}
    for result in paper.TABLE1:
        assert result.fusion is not None
        row = " + ".join(rows.get(term, term) for term in result.fusion.split("+"))
        column = display(result.network, branched=result.branched)
        base = None if row == "sum" else "sum"
        yield Cell(
            row, column, _run(result), result.value, dash=result.value is None, baseline=base
        )


def _rows(results: Iterable[paper.Result], columns: dict[str, str]) -> Iterable[Cell]:
    """The networks that the paper trained; what it cites from others cannot be run."""
    for result in results:
        if result.network not in DEFAULTS:
            continue
        metric = {"top1-error": "error", "top5-error": "error5"}.get(result.metric, result.metric)
        base = _title(paper.baseline(result)) if result.fusion == "sort" else None
        column = columns.get(result.metric) or DATA[result.data]
        yield Cell(_title(result), column, _run(result), result.value, metric, baseline=base)


def _transferred() -> Iterable[Cell]:
    layers = {r.metric: r.metric.removesuffix("-accuracy") for r in paper.TABLE4}
    for cell in _rows(paper.TABLE4, layers):
        yield replace(cell, run=replace(cell.run, data="imagenet"))


def _curves() -> Iterable[Cell]:
    """Figures 3 and 4, with and without SORT; the text says of which networks only in part."""
    small = ("lenet", "bignet", "resnet56", "wrn28")
    wanted = [(data, name) for name in small for data in ("cifar10", "cifar100", "svhn")]
    wanted += [("imagenet", "alexnet"), ("imagenet", "resnet18")]
    for data, network in wanted:
        metric = "top1-error" if data == "imagenet" else "error"
        results = paper.find(network=network, data=data, metric=metric)
        for result in results:
            if result.fusion not in ("sum", "sort") or result.place == "Table 1":
                continue
            if result.framework == "torch":
                continue
            held = data in ("cifar10", "cifar100")
            run = with_curve(_run(result)) if held else _run(result)
            base = _title(paper.baseline(result)) if result.fusion == "sort" else None
            yield Cell(_title(result), DATA[data], run, result.value, baseline=base)


def _bilinear() -> Iterable[Cell]:
    (plain,) = paper.find(network="bignet", fusion="sum", data="cifar10", place="Table 2")
    base = _run(plain)
    yield Cell("BigNet*", "CIFAR-10", base, plain.value)
    titles = {"bilinear": "BigNet*, bilinear", "compact": "BigNet*, compact bilinear"}
    for timing in (timing for timing in paper.TIMINGS if timing.error is not None):
        options = {**base.options, **({"head": timing.head} if timing.head else {})}
        run = replace(base, fusion=timing.fusion, options=options)
        row = titles.get(timing.head or "", "BigNet*-SORT")
        yield Cell(row, "CIFAR-10", run, timing.error, baseline="BigNet*")


def _recipes() -> Iterable[Cell]:
    """Beyond the paper: a residual network with SORT by its recipe, and by one with gates.

    The recipes differ in nothing else, so that the network without SORT is trained once.
    """
    for row, recipe, fusion in (
        ("ResNet-20", RESNET, "sum"),
        ("ResNet-20-SORT", RESNET, "sort"),
        ("ResNet-20-SORT, gated", GATED, "sort"),
    ):
        found = paper.find(network="resnet20", fusion=fusion, data="cifar10", place="Table 2")
        printed = None if recipe is GATED else found[0].value
        base = "ResNet-20" if fusion == "sort" else None
        run = Run("resnet20", recipe, fusion, "cifar10")
        yield Cell(row, "CIFAR-10", run, printed, baseline=base)


def _attempt(
    fusion: str, warm_up: int = 0, gate: str | None = None, network: str = "resnet20"
) -> Run:
    """A run at a quarter of the schedule, of which the size mini takes a tenth."""
    recipe = replace(RESNET.scaled(0.25), warm_up=warm_up)
    options = {} if gate is None else {"gate": gate}
    name = "gate" if gate else f"warm{warm_up}" if warm_up else ""
    run = Run(network, recipe, fusion, "cifar10", options=options, name=name)
    return replace(run, validation=5000, evaluations=4)


def _attempts() -> Iterable[Cell]:
    """What was tried so that SORT starts well, judged by images held out for that."""
    tried = {
        "ResNet-20": _attempt("sum"),
        "ResNet-20-SORT": _attempt("sort"),
        "ResNet-20-SORT, warm-up of 200 steps": _attempt("sort", warm_up=200),
        "ResNet-20-SORT, gates from zero": _attempt("sort", gate="zero"),
    }
    for row, run in tried.items():
        base = "ResNet-20" if run.fusion == "sort" else None
        yield Cell(row, "CIFAR-10", run, metric="validation", baseline=base)


def _depth() -> Iterable[Cell]:
    """Whether SORT gains with depth, in residual networks on one and the same schedule."""
    for network in ("resnet20", "resnet32", "resnet56"):
        plain = display(network)
        yield Cell(plain, "CIFAR-10", _attempt("sum", network=network))
        for gate, row in ((None, f"{plain}-SORT"), ("zero", f"{plain}-SORT, gated")):
            run = _attempt("sort", gate=gate, network=network)
            yield Cell(row, "CIFAR-10", run, baseline=plain)


def _roots() -> Iterable[Cell]:
    """Which second-order term Table 1 has: the product, by section 3.1, or the root, by its text.

    The paper's LeNet* learns with that term alone.
    """
    for row, fusion in (("sum", "sum"), ("product", "prod"), ("root", "root")):
        known = paper.find(network="lenet", fusion=fusion, data="cifar10", place="Table 1")
        run = Run("lenet", DEFAULTS["lenet"], fusion, "cifar10", options={"branched": True})
        printed = known[0].value if known else None
        yield Cell(row, "LeNet*", run, printed, baseline=None if row == "sum" else "sum")


def _styles() -> Iterable[Cell]:
    """Whether SORT starts better in the implementation that the paper most likely follows."""
    network, plain = {"style": "xu"}, "ResNet-20, Xu's recipe and network"
    for row, fusion, recipe, options, base in (
        ("ResNet-20", "sum", RESNET, {}, None),
        ("ResNet-20-SORT", "sort", RESNET, {}, "ResNet-20"),
        ("ResNet-20-SORT, Xu's recipe", "sort", XU, {}, None),
        (plain, "sum", XU, network, None),
        ("ResNet-20-SORT, Xu's recipe and network", "sort", XU, network, plain),
    ):
        run = _attempt(fusion)
        run = replace(run, recipe=recipe.scaled(run.recipe.scale), options=options)
        yield Cell(row, "CIFAR-10", run, baseline=base)


def _evidence() -> Iterable[Cell]:
    """Whether SORT helps: networks that a CPU can train at the paper's schedule."""
    xu, gated = "ResNet-20, Xu's", "ResNet-20-SORT, gated"
    for data in ("cifar100", "cifar10"):
        yield _long("LeNet*", data, "lenet", LENET, branched=True)
        yield _long("LeNet*-SORT", data, "lenet", LENET, "LeNet*", branched=True)
        yield _long("LeNet", data, "lenet", LENET)
    yield _long(xu, "cifar10", "resnet20", XU, style="xu")
    yield _long("ResNet-20-SORT, Xu's", "cifar10", "resnet20", XU, xu, style="xu")
    yield _long("ResNet-20", "cifar10", "resnet20", RESNET)
    yield _long(gated, "cifar10", "resnet20", GATED, "ResNet-20")
    deep = "ResNet-56, Xu's"  # at a quarter of the schedule
    yield _long(deep, "cifar10", "resnet56", XU.scaled(0.25), style="xu")
    yield _long("ResNet-56-SORT, Xu's", "cifar10", "resnet56", XU.scaled(0.25), deep, style="xu")


def _long(
    row: str,
    data: str,
    network: str,
    recipe: Recipe,
    baseline: str | None = None,
    **options: Any,  # noqa: ANN401
) -> Cell:
    """A cell of `_evidence`; the network has SORT if there is a baseline to compare it with."""
    fusion = "sum" if baseline is None else "sort"
    run = with_curve(Run(network, recipe, fusion, data, options=options))
    known = paper.find(network=network, data=data, branched="branched" in options, place="Table 2")
    (value,) = [result.value for result in known if (result.fusion or "sum") == fusion]
    printed = value if recipe in (LENET, RESNET, XU) else None
    return Cell(row, DATA[data], run, printed, baseline=baseline)


def _rates() -> Iterable[Cell]:
    """Whether BigNet, without batch normalisation, learns at the paper's first rate of 0.1."""
    for branched, fusion in ((False, "sum"), (True, "sum"), (True, "sort")):
        options = {"branched": True} if branched else {}
        run = Run("bignet", BIGNET, fusion, "cifar10", options=options)
        run = replace(run, validation=1000, evaluations=12)
        row = display("bignet", fusion, branched=branched)
        yield Cell(row, "CIFAR-10", run, metric="validation")


EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        Experiment("table1", "Table 1: fusions on CIFAR-10, error (%)", tuple(_table1())),
        Experiment(
            "table2",
            "Table 2: CIFAR-10, CIFAR-100 and SVHN, error (%)",
            tuple(_rows(paper.TABLE2, {})),
        ),
        Experiment(
            "table3",
            "Table 3: ILSVRC2012, error (%)",
            tuple(_rows(paper.TABLE3, {"top1-error": "top-1", "top5-error": "top-5"})),
        ),
        Experiment(
            "table4",
            "Table 4: features carried over to Caltech256, accuracy (%)",
            tuple(_transferred()),
            transfer="caltech256",
        ),
        Experiment("figures", "Figures 3 and 4: learning curves, error (%)", tuple(_curves())),
        Experiment(
            "bilinear",
            "Section 3.4: bilinear pooling on BigNet*, CIFAR-10, error (%)",
            tuple(_bilinear()),
        ),
        Experiment(
            "recipes",
            "ResNet-20 on CIFAR-10 by the paper's recipe and by ours, error (%)",
            tuple(_recipes()),
        ),
        Experiment(
            "attempts",
            "How SORT starts well: ResNet-20 on CIFAR-10, error on held-out images (%)",
            tuple(_attempts()),
        ),
        Experiment(
            "depth",
            "Residual networks of three depths: CIFAR-10, error (%)",
            tuple(_depth()),
        ),
        Experiment(
            "roots",
            "Each term alone, between two branches: CIFAR-10, error (%)",
            tuple(_roots()),
        ),
        Experiment(
            "styles",
            "ResNet-20 by the usual recipe, and by Xu's: CIFAR-10, error (%)",
            tuple(_styles()),
        ),
        Experiment(
            "evidence",
            "With and without SORT at the paper's schedule, error (%)",
            tuple(_evidence()),
        ),
        Experiment(
            "rates",
            "BigNet at a first rate of 0.1: CIFAR-10, error on held-out images (%)",
            tuple(_rates()),
        ),
    )
}


def experiment(name: str) -> Experiment:
    """An experiment by its name.

    Raises:
        ValueError: There is none.
    """
    if name not in EXPERIMENTS:
        raise ValueError(
            f"unknown experiment {name!r}; there are {', '.join(EXPERIMENTS)} and cost"
        )
    return EXPERIMENTS[name]
