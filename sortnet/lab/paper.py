"""The SORT paper's tables, timings and claims as data.

Wang, Xie, Liu, Qiao, Zhang, Zhang, Tian and Yuille, "SORT: Second-Order Response Transform for
Visual Recognition", ICCV 2017. Numbers are as printed, even where the paper contradicts itself, in
percent unless stated otherwise, and with their place in the paper.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from sortnet.errors import UsageError


@dataclass(frozen=True, slots=True)
class PaperResult:
    """One cell of a table.

    Attributes:
        network: A network's base name (`lenet`, `resnet20`, ...) or, for results that the paper
            cites, author and year (`Lee 2015`).
        branched: Whether each convolution became a two-branch module, the paper's asterisk. False
            for residual networks, whose blocks have two branches from the start.
        fusion: Terms joined by `+`, or `sort`; None where nothing is fused.
        data: The dataset.
        metric: What was measured. Names ending in `error` are better when lower, those ending in
            `accuracy` when higher.
        value: The number; None for the paper's dash, which means non-convergence in Table 1 and
            not reported in Table 2.
        place: Where the paper prints it.
        deviation: Standard deviation over the runs, where it is given for this cell.
        framework: `caffe` or `torch`, where the table says so.
    """

    network: str
    branched: bool
    fusion: str | None
    data: str
    metric: str
    value: float | None
    place: str
    deviation: float | None = None
    framework: str | None = None


@dataclass(frozen=True, slots=True)
class Timing:
    """Training time of 20 iterations; `error` is the CIFAR10 error rate given beside it.

    `head` is None for the network's own classifier, `gpus` where the paper does not say.
    """

    network: str
    branched: bool
    fusion: str
    head: str | None
    seconds: float
    gpus: int | None
    place: str
    error: float | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """Something the paper asserts, in our words.

    Attributes:
        name: Short name, as `sortnet claims` shows it.
        place: Where the paper says so and what it shows for it, separated by commas.
        statement: What should be true.
        bound: If the claim is about a cost, the most that SORT may add, in percent of the sum's.
    """

    name: str
    place: str
    statement: str
    bound: float | None = None


def _table(
    place: str,
    columns: tuple[tuple[str, str], ...],
    rows: Mapping[tuple[str, bool, str | None], tuple[float | tuple[float, float] | None, ...]],
) -> tuple[PaperResult, ...]:
    """Expand a table that is written as in the paper.

    Arguments:
        place: Which table.
        columns: Data and metric.
        rows: Network (`resnet18/torch` to name a framework), branched and fusion; for each column
            the value or value and deviation.
    """
    results = []
    for (name, branched, fusion), cells in rows.items():
        network, _, framework = name.partition("/")
        for (data, metric), cell in zip(columns, cells, strict=True):
            value, deviation = cell if isinstance(cell, tuple) else (cell, None)
            row = (network, branched, fusion, data, metric, value, place)
            results.append(PaperResult(*row, deviation, framework or None))
    return tuple(results)


# Mean of 3 runs, standard deviations 0.04 to 0.08. The second-order operator is the product
# between two branches and the root in a residual block, as in section 3.1; the text around this
# table (section 3.3) has the root for all.
_FUSIONS = {
    # fusion: LeNet*, BigNet*, ResNet-20
    "sum": (11.10, 6.86, 7.60),
    "max": (11.07, 7.01, 7.55),
    "prod": (11.03, None, None),
    "sum+max": (11.02, 6.90, 7.63),
    "sum+prod": (10.34, 6.60, 7.14),
    "max+prod": (10.39, 6.57, 7.44),
    "sum+max+prod": (10.80, 6.65, 7.90),
}
TABLE1 = tuple(
    PaperResult(
        network, branched, fusion.replace("prod", term), "cifar10", "error", value, "Table 1"
    )
    for fusion, values in _FUSIONS.items()
    for (network, branched, term), value in zip(
        (("lenet", True, "prod"), ("bignet", True, "prod"), ("resnet20", False, "root")),
        values,
        strict=True,
    )
)

# Mean of 3 runs, standard deviation "often less than 0.08".
TABLE2 = _table(
    "Table 2",
    (("cifar10", "error"), ("cifar100", "error"), ("svhn", "error")),
    {
        ("Lee 2015", False, None): (7.97, 34.57, 1.92),
        ("Liang 2015", False, None): (7.09, 31.75, 1.77),
        ("Lee 2016", False, None): (6.05, 32.37, 1.69),
        ("Wang 2016", False, None): (5.87, 27.01, None),
        ("Zagoruyko 2016", False, None): (5.37, 24.53, 1.85),
        ("Xie 2016", False, None): (5.31, 25.01, 1.67),
        ("Huang 2016", False, None): (5.25, 24.98, 1.75),
        ("Huang 2017", False, None): (3.74, 19.25, 1.59),
        ("lenet", False, None): (14.37, 43.83, 4.00),
        ("lenet", True, "sum"): (11.16, 36.84, 2.65),
        ("lenet", True, "sort"): (10.41, 34.67, 2.47),
        ("bignet", False, None): (7.55, 30.47, 2.21),
        ("bignet", True, "sum"): (6.92, 29.43, 2.17),
        ("bignet", True, "sort"): (6.81, 28.10, 2.12),
        ("resnet20", False, "sum"): (7.72, 31.80, 2.30),
        ("resnet20", False, "sort"): (7.35, 31.65, 2.26),
        ("resnet32", False, "sum"): (6.83, 30.28, 2.54),
        ("resnet32", False, "sort"): (6.33, 29.61, 2.22),
        ("resnet56", False, "sum"): (6.30, 28.25, 2.49),
        ("resnet56", False, "sort"): (5.50, 26.76, 2.19),
        ("wrn28", False, "sum"): (4.81, 21.90, 1.93),
        ("wrn28", False, "sort"): (4.48, 21.52, 1.48),
    },
)

# One model, one crop. The paper calls its Torch networks ResNetT.
TABLE3 = _table(
    "Table 3",
    (("imagenet", "top1-error"), ("imagenet", "top5-error")),
    {
        ("alexnet", False, None): (43.19, 19.87),
        ("alexnet", True, "sum"): (36.71, 14.77),
        ("alexnet", True, "sort"): (35.99, 14.46),
        ("resnet18/caffe", False, "sum"): (34.50, 13.33),
        ("resnet18/caffe", False, "sort"): (32.37, 12.61),
        ("resnet18/torch", False, "sum"): (30.50, 11.07),
        ("resnet18/torch", False, "sort"): (29.95, 10.80),
        ("resnet34/torch", False, "sum"): (27.02, 8.77),
        ("resnet34/torch", False, "sort"): (26.57, 8.55),
        ("resnet50/torch", False, "sum"): (24.10, 7.11),
        ("resnet50/torch", False, "sort"): (23.82, 6.72),
    },
)

# Mean over 10 splits, with its deviation; one column per layer of the features.
TABLE4 = _table(
    "Table 4",
    tuple(("caltech256", f"{layer}-accuracy") for layer in ("pool5", "fc6", "fc7")),
    {
        ("alexnet", False, None): ((69.19, 0.18), (71.51, 0.25), (69.47, 0.11)),
        ("alexnet", True, "sum"): ((74.20, 0.17), (76.54, 0.30), (74.42, 0.18)),
        ("alexnet", True, "sort"): ((74.88, 0.19), (77.12, 0.24), (75.06, 0.15)),
    },
)

RESULTS = TABLE1 + TABLE2 + TABLE3 + TABLE4

TIMINGS = (
    Timing("alexnet", True, "sum", None, 10.5, 4, "section 4.2.2"),
    Timing("alexnet", True, "sort", None, 10.7, 4, "section 4.2.2"),
    Timing("resnet18", False, "sum", None, 19.3, 4, "section 4.2.2"),
    Timing("resnet18", False, "sort", None, 19.9, 4, "section 4.2.2"),
    Timing("bignet", True, "sum", "bilinear", 3.7, None, "section 3.4", error=7.17),
    Timing("bignet", True, "sum", "compact", 16.5, None, "section 3.4", error=8.01),
    Timing("bignet", True, "sort", None, 2.1, None, "section 3.4", error=6.81),
)


def find_results(**wanted: str | bool | None) -> tuple[PaperResult, ...]:
    """Return the results whose fields have the wanted values, in the paper's order.

    Example:
        >>> [result.value for result in find_results(network="resnet56", fusion="sort")]
        [5.5, 26.76, 2.19]

    Raises:
        ValueError: A field is unknown, or a value occurs nowhere in that field.
    """
    names = [field.name for field in fields(PaperResult)]
    for name, value in wanted.items():
        if name not in names:
            raise UsageError(f"unknown field {name!r}; there are: {', '.join(names)}")
        known = dict.fromkeys(getattr(result, name) for result in RESULTS)
        if value not in known:
            raise UsageError(f"unknown {name} {value!r}; there are: {', '.join(map(str, known))}")
    return tuple(
        result
        for result in RESULTS
        if all(getattr(result, name) == value for name, value in wanted.items())
    )


def claim(name: str) -> Claim:
    """Return a claim by its name.

    Raises:
        ValueError: There is no such claim.
    """
    for known in CLAIMS:
        if known.name == name:
            return known
    raise UsageError(f"unknown claim {name!r}; there are: {', '.join(c.name for c in CLAIMS)}")


# fmt: off
CLAIMS = (
    # The operation.
    Claim("no-new-parameters", "section 3.4",
          "The second-order term has nothing to train, unlike the gates of LSTM or highway nets.",
          bound=0.0),
    Claim("wide-range", "abstract, section 3.1",
          "Chain networks, once branched, and residual networks take SORT by changing only how two"
          " branches are fused."),
    Claim("receptive-field", "section 3.1",
          "For odd k two cascaded kernels of size (k + 1) / 2 see as far as one of size k, and"
          " SORT leaves the receptive field of a residual block as it was."),
    Claim("finite-gradient", "section 3.1",
          "The small constant under the root keeps the residual form's gradient stable near 0."),
    Claim("gradient", "section 3.2, equation 2",
          "With the product, the gradient into one branch is that of the sum times one plus the"
          " other branch's response."),
    Claim("consistent-responses", "section 3.2",
          "Of two non-negative responses with a given sum, the output is larger the closer they"
          " are, and is just their sum when one of them is 0."),
    Claim("logical-and", "section 3.3",
          "The second-order term acts like a logical and: both branches have to respond."),
    Claim("nonlinear-region", "section 3.3, Figure 2",
          "A sum of two ReLUs bends only along lines; the product curves it on the whole quadrant"
          " where both are positive."),
    Claim("square-stays-in-branch", "section 3.3",
          "A square is of second order too, but one branch's gradient does not depend on the other"
          " branch."),
    Claim("max-trains-half", "section 3.3",
          "The maximum gives a gradient to only one of the branches; the sum trains both."),
    Claim("max-ignores-consistency", "section 3.3",
          "The maximum does not reward branches that agree, as the second-order term does."),
    # Its cost.
    Claim("extra-time", "abstract, section 3.1, section 4.2.2",
          "Training and testing take less than 5 % more time than with the sum.", bound=5.0),
    Claim("extra-memory", "section 1, section 3.1, section 4.2.2",
          "SORT needs no more memory than the sum.", bound=0.0),
    Claim("bilinear-larger", "section 3.4",
          "Bilinear pooling lengthens the feature vector and thereby adds many parameters."),
    Claim("bilinear-slower", "section 3.4",
          "Bilinear pooling takes longer than SORT, and so does its compact form."),
    Claim("bilinear-worse", "section 3.4, Table 2",
          "Trained from scratch, bilinear and compact bilinear pooling end above the error of the"
          " network they were put on, SORT below it."),
    # Which terms.
    Claim("product-alone-diverges", "section 3.3, Table 1",
          "With the second-order term alone, deep networks often fail to converge."),
    Claim("sum-plus-product", "section 3.3, Table 1",
          "Adding the second-order term to the sum lowers the error of each network."),
    Claim("max-plus-product", "section 3.3, Table 1",
          "Adding the second-order term to the maximum lowers the error of each network."),
    Claim("both-orders-needed", "section 3.3, Table 1",
          "First-order and second-order terms together beat either kind alone."),
    # Accuracy.
    Claim("branched-beats-plain", "section 3.1, section 4.1.2, section 4.2.2, Table 2, Table 3",
          "A chain network gets much better when its convolutions become two-branch modules."),
    Claim("depth-explains-branching", "section 4.2.2, Table 3",
          "AlexNet gains from two-branch modules mainly because they make it deeper."),
    Claim("sort-beats-sum", "abstract, section 4.1.2, Table 2",
          "SORT lowers the error of each network on each of CIFAR10, CIFAR100 and SVHN."),
    Claim("gain-grows-with-depth", "section 3.2, section 4.1.2, section 5, Table 2",
          "The deeper the residual network, the larger the relative drop of its error."),
    Claim("less-structural-overfitting", "section 3.2, Table 2",
          "On SVHN more layers make the residual network worse with the sum, better with SORT."),
    Claim("shattered-gradients", "section 3.2, section 4.1.2",
          "Gradients shatter less in deep networks when they depend on the other branch."),
    Claim("svhn-record", "section 4.1.2, Table 2",
          "WRN-28 with SORT has the lowest error on SVHN so far: 1.48, against 1.59 before."),
    Claim("ilsvrc2012-gains", "abstract, section 4.2.2, Table 3",
          "SORT lowers the top-1 and the top-5 error of each network on ILSVRC2012."),
    Claim("features-transfer", "section 1, section 4.3, Table 4",
          "The gain on ILSVRC2012 carries over to Caltech256, for features of all three layers."),
    # Training.
    Claim("steadier-gradients", "section 3.2",
          "Seeing the other branch makes the computation of gradients numerically more stable."),
    Claim("branched-trains-better", "section 4.1.3, section 4.2.3, Figure 3, Figure 4",
          "With SORT the test curves of two-branch networks run lower."),
    Claim("unstable-first-section", "section 4.1.3, section 4.2.3, Figure 3, Figure 4",
          "At the largest learning rate, loss and accuracy of residual networks are less stable"
          " with SORT than with the sum."),
    Claim("better-later", "section 4.1.3, section 4.2.3, Figure 3, Figure 4",
          "In the later sections residual networks with SORT overtake those with the sum."),
    Claim("better-at-equal-loss", "section 4.1.3, Figure 3",
          "At a comparable loss SORT is more accurate, as ResNet-56 and WRN-28 show on CIFAR100."),
)
# fmt: on
