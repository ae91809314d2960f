"""The paper's numbers agree with each other, and with what its text says about them."""

import re
from collections import Counter
from itertools import groupby

import pytest

from sortnet.lab import paper
from sortnet.lab.paper import PaperResult


def score(result: PaperResult) -> float:
    """Return how good a result is, the higher the better; a dash is the worst."""
    if result.value is None:
        return -100.0
    return -result.value if result.metric.endswith("error") else result.value


def winners(results: tuple[PaperResult, ...]) -> dict[str, set[str | None]]:
    """Map each network to the fusions that are best for it in some column."""
    best: dict[str, set[str | None]] = {}

    def column(result: PaperResult) -> tuple[str, ...]:
        return (result.network, str(result.framework), result.data, result.metric)

    for (network, *_), cells in groupby(sorted(results, key=column), column):
        best.setdefault(network, set()).add(max(cells, key=score).fusion)
    return best


def value(**wanted: str | bool) -> float:
    """Return the one number that Table 2 has for this."""
    (result,) = paper.find_results(place="Table 2", **wanted)
    assert result.value is not None
    return result.value


def test_no_cell_is_missing_or_given_twice() -> None:
    cells = Counter(result.place for result in paper.RESULTS)
    assert cells == {"Table 1": 7 * 3, "Table 2": (8 + 14) * 3, "Table 3": 11 * 2, "Table 4": 9}
    keys = [
        (r.place, r.network, r.branched, r.fusion, r.data, r.metric, r.framework)
        for r in paper.RESULTS
    ]
    assert len(set(keys)) == len(keys)


def test_only_the_product_alone_does_not_converge() -> None:
    dashes = {(r.network, r.fusion) for r in paper.TABLE1 if r.value is None}
    assert dashes == {("bignet", "prod"), ("resnet20", "root")}


def sum_beside(result: PaperResult) -> PaperResult:
    """Return the result of the same network with the sum, in the same column."""
    names = ("network", "branched", "data", "metric", "place", "framework")
    same = {name: getattr(result, name) for name in names}
    (found,) = paper.find_results(fusion="sum", **same)
    return found


QUOTED: list[tuple[dict[str, str], list[float]]] = [
    ({"network": "resnet20"}, [4.79, 0.47, 1.74]),
    ({"network": "resnet56"}, [12.70, 5.27, 12.05]),
    ({"network": "wrn28", "data": "svhn"}, [23.32]),
    ({"network": "alexnet", "data": "imagenet"}, [1.96, 2.10]),
    ({"network": "resnet18", "framework": "caffe"}, [6.17, 5.71]),
]
"""The relative drops of an error, from sum to SORT, that the text quotes."""


def test_quoted_drops_follow_from_the_tables_but_for_one() -> None:
    wrong = {}
    for wanted, quoted in QUOTED:
        for result, drop in zip(paper.find_results(fusion="sort", **wanted), quoted, strict=True):
            before, after = sum_beside(result).value, result.value
            assert before is not None
            assert after is not None
            actual = f"{100 * (before - after) / before:.2f}"
            if actual != f"{drop:.2f}":
                wrong[result.network, result.metric] = actual
    assert wrong == {("resnet18", "top5-error"): "5.40"}


def test_best_of_each_column_is_the_paper_s_bold_one() -> None:
    assert winners(paper.TABLE1) == {
        "lenet": {"sum+prod"},
        "bignet": {"max+prod"},
        "resnet20": {"sum+root"},
    }
    for table in (paper.TABLE2, paper.TABLE3, paper.TABLE4):
        ours = tuple(result for result in table if result.network.islower())
        assert all(best == {"sort"} for best in winners(ours).values())
    cited = [result for result in paper.TABLE2 if not result.network.islower()]
    for data in ("cifar10", "cifar100", "svhn"):
        assert max((r for r in cited if r.data == data), key=score).network == "Huang 2017"


def test_sort_beats_its_baseline_everywhere() -> None:
    results = paper.find_results(fusion="sort")
    assert len(results) == 6 * 3 + 5 * 2 + 3
    assert all(score(result) > score(sum_beside(result)) for result in results)


@pytest.mark.parametrize("network", ["lenet", "bignet", "alexnet"])
def test_branched_beats_plain(network: str) -> None:
    for plain in paper.find_results(network=network, branched=False):
        (branched,) = paper.find_results(
            place=plain.place, network=network, fusion="sum", data=plain.data, metric=plain.metric
        )
        assert score(branched) > score(plain)


@pytest.mark.parametrize("first", ["sum", "max"])
def test_second_order_term_helps_either_first_order_term(first: str) -> None:
    table = {(result.network, result.fusion): score(result) for result in paper.TABLE1}
    for network, term in (("lenet", "prod"), ("bignet", "prod"), ("resnet20", "root")):
        both = table[network, f"{first}+{term}"]
        assert both > max(table[network, first], table[network, term])


def test_depth_hurts_the_sum_but_not_sort_on_svhn() -> None:
    errors = {
        (network, fusion): value(network=network, fusion=fusion, data="svhn")
        for network in ("resnet20", "resnet56")
        for fusion in ("sum", "sort")
    }
    assert errors["resnet56", "sum"] > errors["resnet20", "sum"]
    assert errors["resnet56", "sort"] < errors["resnet20", "sort"]


def test_svhn_record_is_below_all_others() -> None:
    record, *others = sorted(
        r.value for r in paper.find_results(data="svhn") if r.value is not None
    )
    assert record == value(network="wrn28", fusion="sort", data="svhn")
    assert others[0] == value(network="Huang 2017", data="svhn")


def test_timings_keep_to_the_bound_and_bilinear_pooling_is_slower_and_worse() -> None:
    limit = paper.claim("extra-time").bound
    assert limit is not None
    seconds = {(t.network, t.fusion): t.seconds for t in paper.TIMINGS if t.gpus == 4}
    for network in ("alexnet", "resnet18"):
        before, after = seconds[network, "sum"], seconds[network, "sort"]
        assert 0 < 100 * (after - before) / before < limit
    bilinear, compact, sort = (t for t in paper.TIMINGS if t.network == "bignet")
    assert sort.seconds < bilinear.seconds < compact.seconds
    plain = value(network="bignet", fusion="sum", data="cifar10")
    assert sort.error == value(network="bignet", fusion="sort", data="cifar10")
    for other in (bilinear, compact):
        assert other.error is not None
        assert sort.error < plain < other.error


def test_claims_are_named_once_and_say_where() -> None:
    names = [claim.name for claim in paper.CLAIMS]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) for name in names)
    one = r"(abstract|section [1-5](\.[1-4](\.[1-3])?)?|equation [12]|Table [1-4]|Figure [1-4])"
    for place in {c.place for c in paper.CLAIMS} | {t.place for t in paper.TIMINGS}:
        assert re.fullmatch(rf"{one}(, {one})*", place)
    assert all(claim.statement.endswith(".") for claim in paper.CLAIMS)
    assert all("  " not in claim.statement for claim in paper.CLAIMS)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"net": "lenet"}, "unknown field 'net'; there are: network, branched"),
        ({"network": "vgg"}, "unknown network 'vgg'; there are: lenet, bignet"),
        ({"fusion": "mean"}, "unknown fusion 'mean'; there are: sum, max, prod, root"),
    ],
)
def test_unknown_things_are_refused_with_a_list(wanted: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        paper.find_results(**wanted)


def test_an_unknown_claim_is_refused_too() -> None:
    with pytest.raises(ValueError, match="unknown claim 'faster'; there are: no-new-parameters"):
        paper.claim("faster")
