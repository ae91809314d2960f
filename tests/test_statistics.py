"""Comparisons over paired seeds: what they say is what scipy says, and how often it is wrong."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sortnet.lab.claims.finding import Expectation, judge
from sortnet.lab.report import tables
from sortnet.lab.statistics import Comparison, adjust, compare, holm, summary

CLAIM = (1000, 18, 3)
"""Cases, comparisons of a claim such as that about Table 2, seeds."""


def by_seed(*values: float | None) -> dict[int, float | None]:
    return dict(enumerate(values))


def verdicts(differences: np.ndarray) -> list[str]:
    """The verdict on each case, of differences whose last axis is the seed."""
    tested = stats.ttest_1samp(differences, 0, axis=-1)
    interval = tested.confidence_interval()
    columns = np.stack([differences.mean(-1), interval.low, interval.high, tested.pvalue], -1)
    return [
        judge(
            [Expectation("x", Comparison(m, low, high, p, 3, p)) for m, low, high, p in case], ""
        ).verdict
        for case in columns.tolist()
    ]


@given(
    st.lists(st.tuples(st.floats(1, 90), st.floats(1, 90)), min_size=3, max_size=8).filter(
        lambda pairs: len({round(a - b, 3) for a, b in pairs}) > 1
    )
)
def test_a_comparison_is_scipy_s_paired_t_test(pairs: list[tuple[float, float]]) -> None:
    ours, base = ({i: pair[k] for i, pair in enumerate(pairs)} for k in (0, 1))
    found = compare({**ours, 99: 1.0}, {**base, 98: None})
    assert found is not None
    known = stats.ttest_rel(list(ours.values()), list(base.values()))
    interval = known.confidence_interval(0.95)
    assert found.p == found.adjusted_p == pytest.approx(known.pvalue)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.pairs == len(pairs)
    assert found.lower == (interval.high < 0)
    assert found.higher == (interval.low > 0)


@pytest.mark.parametrize(
    ("values", "base", "text"),
    [
        (by_seed(1.0, None), by_seed(2.0, 3.0), "-1.00 (one seed)"),
        (by_seed(1.0, 2.1), by_seed(2.0, 3.0), "-0.95 (2 seeds)"),
        (by_seed(1.0, 2.0, 3.0), by_seed(2.0, 3.0, 4.0), "-1.00 (the same on all 3 seeds)"),
        # Equal but for rounding: 2.1 - 3.0 is not 1.1 - 2.0.
        (by_seed(1.1, 2.1, 3.1), by_seed(2.0, 3.0, 4.0), "-0.90 (the same on all 3 seeds)"),
        (by_seed(2.0, 3.0, 4.0), by_seed(2.0, 3.0, 4.0), "+0.00 (the same on all 3 seeds)"),
    ],
)
def test_few_pairs_and_equal_differences_decide_nothing(
    values: dict[int, float | None], base: dict[int, float | None], text: str
) -> None:
    found = compare(values, base)
    assert found is not None
    assert (found.low, found.high, found.p, found.adjusted_p) == (None,) * 4
    assert not found.lower
    assert not found.higher
    assert str(found) == text
    assert judge([Expectation("x", found)], "").verdict == "not decided"


def test_nothing_in_common_is_nothing_to_compare() -> None:
    assert compare({0: 1.0, 1: None}, {1: 2.0, 2: 3.0}) is None


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


def test_only_comparisons_with_a_p_value_count_as_tests() -> None:
    two = compare(by_seed(1.0, 2.1), by_seed(2.0, 3.0))
    three = compare(by_seed(1.0, 2.1, 3.0), by_seed(2.0, 3.0, 4.1))
    assert three is not None
    assert three.p is not None
    found = adjust([three, None, two, three])
    assert [each and each.adjusted_p for each in found] == [2 * three.p, None, None, 2 * three.p]
    assert str(found[0]).endswith(f"p {three.p:.2g}, corrected {2 * three.p:.2g}")


def test_a_claim_of_many_comparisons_is_seldom_refuted_by_chance() -> None:
    differences = np.random.default_rng(0).normal(size=CLAIM)
    found = verdicts(differences)
    assert found.count("does not hold") <= 0.05 * len(found)
    assert found.count("holds") == 0


def test_a_large_difference_is_found_among_many() -> None:
    noise = np.random.default_rng(1).normal(size=CLAIM)
    shift = np.zeros(CLAIM)
    shift[:, 0] = 60  # one comparison of 18 is against the claim
    found = verdicts(noise + shift)
    assert found.count("does not hold") > 0.9 * len(found)
    found = verdicts(noise - 60)
    assert found.count("holds") > 0.8 * len(found)
    assert found.count("does not hold") == 0


def test_the_mean_over_seeds_tells_what_did_not_converge() -> None:
    assert summary([]).mean is None
    assert tables._number(summary([5.0, 7.0, None])) == "6.00 ± 1.41 (1 of 3 did not converge)"
