"""The answer of a comparison: differences with intervals, costs, and a verdict in words.

- The test errors of a variant and of the baseline are paired by seed. The interval is that of the
  paired t-test, and p is corrected by Holm's method for the number of variants.
- A variant *helps* or *hurts* if the corrected p is below 0.05; otherwise we *cannot tell*.
- Fewer than three seeds decide nothing, and neither does a variant that diverged on some seed:
  the mean over the others would be a mean over the lucky ones.
- If seeds are added until the comparison is decided, the interval is the repeated confidence
  interval of `sortnet.lab.sequential`, the error probability is divided by the number of variants,
  and a variant counts as decided from the first look at which its interval excludes zero.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sortnet.lab import sequential
from sortnet.lab.compare.plan import ComparisonPlan
from sortnet.lab.measure import Ratio
from sortnet.lab.statistics import ALPHA, FEWEST, Comparison, adjust, summary
from sortnet.lab.statistics import compare as paired

HALF_A_POINT = 0.5
"""The difference, in points of error, for which a verdict names the seeds needed."""

Errors = Mapping[int, float | None]


@dataclass(frozen=True)
class Cost:
    """What a variant costs; ratios are to the baseline.

    Attributes:
        parameters: Number of trainable parameters.
        step: Median time of a training step, in seconds.
        step_ratio: Ratio of the step times, measured in turns.
        inference: Median time of a forward pass, in seconds.
        inference_ratio: Ratio of the times of a forward pass, measured in turns.
        saved: Bytes saved for backward.
    """

    parameters: int
    step: float
    step_ratio: Ratio
    inference: float
    inference_ratio: Ratio
    saved: int


@dataclass(frozen=True)
class Outcome:
    """The outcome of a variant.

    Attributes:
        label: Name of the variant.
        fusion: How its branches are fused.
        errors: Test errors in percent by seed; None where it diverged.
        runs: Directories of its runs by seed, relative to the comparison's.
        difference: From the baseline, in points; None for the baseline itself.
        verdict: ``baseline``, ``helps``, ``hurts`` or ``cannot tell``.
        text: The verdict in words.
        cost: Its cost, if measured.
    """

    label: str
    fusion: str
    errors: Errors
    runs: Mapping[int, str]
    difference: Comparison | None
    verdict: str
    text: str
    cost: Cost | None


@dataclass(frozen=True)
class Answer:
    """The answer of a comparison; ``print(answer)`` fits into 80 columns.

    Attributes:
        model: Name of the model, without its fusion.
        data: Name of the dataset.
        recipe: Name of the recipe.
        steps: Steps of each run.
        batch: Images per step.
        seeds: Number of seeds used.
        max_seeds: Largest number of seeds allowed; None if the number was fixed.
        precision: Dtype of convolutions.
        outcomes: The variants, the baseline first.
        directory: Directory of the runs.
    """

    model: str
    data: str
    recipe: str
    steps: int
    batch: int
    seeds: int
    max_seeds: int | None
    precision: str
    outcomes: tuple[Outcome, ...]
    directory: str

    @classmethod
    def of(
        cls,
        planned: ComparisonPlan,
        errors: Mapping[str, Errors],
        costs: Sequence[Cost] | None,
        looks: int | None,
    ) -> "Answer":
        """Judge the errors of all variants."""
        run = planned.first
        judged = _judged(errors, looks)
        outcomes = tuple(
            Outcome(
                variant.label,
                variant.fusion,
                errors[variant.label],
                {seed: planned.run(variant, seed).id for seed in errors[variant.label]},
                *judged[variant.label],
                None if costs is None else costs[i],
            )
            for i, variant in enumerate(planned.variants)
        )
        return cls(
            replace(run, fusion="sum").title,
            planned.dataset.name,
            run.recipe.name,
            run.recipe.steps,
            run.recipe.batch,
            len(outcomes[0].errors),
            looks,
            run.precision,
            outcomes,
            str(planned.out),
        )

    @property
    def verdict(self) -> str:
        """The verdict in words, with the variants' names if there are several."""
        tested = self.outcomes[1:]
        if len(tested) == 1:
            return tested[0].text
        return "; ".join(f"{outcome.label}: {outcome.text}" for outcome in tested)

    def as_json(self) -> dict[str, Any]:
        """Return the answer as JSON."""
        found = {"verdict": self.verdict, **asdict(self)}
        for outcome in found["outcomes"]:
            summed = summary(list(outcome["errors"].values()))
            outcome |= {n: getattr(summed, n) for n in ("mean", "deviation", "diverged")}
            for name in ("errors", "runs"):
                outcome[name] = {str(seed): x for seed, x in outcome[name].items()}
        return found

    def __str__(self) -> str:
        from sortnet.lab.compare.terminal import text

        return text(self)


def decided(errors: Mapping[str, Errors], looks: int) -> bool:
    """Return True if no further seed is needed: every variant is decided, or diverged."""
    baseline, *others = errors.values()
    if len(baseline) < FEWEST:
        return False
    return all(
        None in own.values()
        or None in baseline.values()
        or _sign(own, baseline, looks, len(others))
        for own in others
    )


def _differences(own: Errors, baseline: Errors) -> list[float]:
    pairs = [(own[seed], baseline[seed]) for seed in sorted(own.keys() & baseline.keys())]
    return [a - b for a, b in pairs if a is not None and b is not None]


def _sign(own: Errors, baseline: Errors, looks: int, family: int) -> int:
    """Return the sign of the difference if a look so far has decided it, else 0."""
    limits = sequential.boundaries(looks, ALPHA / family)
    differences = _differences(own, baseline)
    for count in range(FEWEST, len(differences) + 1):
        mean, error = _mean_and_error(differences[:count])
        if error > 0 and abs(mean) > limits[count] * error:
            return 1 if mean > 0 else -1
    return 0


def _mean_and_error(differences: Sequence[float]) -> tuple[float, float]:
    deviation = statistics.stdev(differences)
    return statistics.fmean(differences), deviation / math.sqrt(len(differences))


def _judged(
    errors: Mapping[str, Errors], looks: int | None
) -> dict[str, tuple[Comparison | None, str, str]]:
    """Return, by variant, the difference from the baseline, the verdict, and its text."""
    (name, baseline), *others = errors.items()
    found: dict[str, tuple[Comparison | None, str, str]] = {name: (None, "baseline", "")}
    compared = adjust([paired(own, baseline) for _, own in others])
    for (label, own), difference in zip(others, compared, strict=True):
        if looks is not None and difference is not None and difference.low is not None:
            difference = _repeated(difference, own, baseline, looks, len(others))
        kind, text = _verdict(own, baseline, difference, looks, len(others))
        found[label] = (difference, kind, text)
    return found


def _repeated(
    difference: Comparison, own: Errors, baseline: Errors, looks: int, family: int
) -> Comparison:
    """Return the difference with the repeated confidence interval, which has no p-value."""
    differences = _differences(own, baseline)
    mean, error = _mean_and_error(differences)
    reach = sequential.boundaries(looks, ALPHA / family)[len(differences)] * error
    return replace(difference, low=mean - reach, high=mean + reach, p=None, adjusted_p=None)


def _verdict(
    own: Errors, baseline: Errors, difference: Comparison | None, looks: int | None, family: int
) -> tuple[str, str]:
    for who, values in (("it", own), ("the baseline", baseline)):
        if lost := sum(value is None for value in values.values()):
            return "cannot tell", (
                f"cannot tell: {who} diverged on {lost} of {len(values)} seeds; try a gate (--gate"
                " zero) or a lower --rate"
            )
    if difference is None or difference.pairs < FEWEST:
        count = 0 if difference is None else difference.pairs
        plural = "seeds decide" if count != 1 else "seed decides"
        return (
            "cannot tell",
            f"cannot tell: {count} {plural} nothing, at least {FEWEST} are needed",
        )
    if difference.low is None or difference.high is None:
        return "cannot tell", (
            f"cannot tell: the difference is {difference.mean:+.2f} points on every seed"
        )
    sign = _direction(own, baseline, difference, looks, family)
    if sign == 0:
        return "cannot tell", _undecided(_differences(own, baseline), difference, family)
    kind = "hurts" if sign > 0 else "helps"
    ends = sorted(abs(end) for end in (difference.low, difference.high))
    if difference.low < 0 < difference.high:  # decided at an earlier look
        return kind, f"{kind} by up to {ends[1]:.2f} points"
    return kind, f"{kind} by {ends[0]:.2f} to {ends[1]:.2f} points"


def _direction(
    own: Errors, baseline: Errors, difference: Comparison, looks: int | None, family: int
) -> int:
    if looks is not None:
        return _sign(own, baseline, looks, family)
    return 0 if not difference.significant else 1 if difference.mean > 0 else -1


def _undecided(differences: Sequence[float], difference: Comparison, family: int) -> str:
    assert difference.low is not None
    assert difference.high is not None
    deviation = statistics.stdev(differences)
    needed = sequential.seeds_needed(deviation, HALF_A_POINT, alpha=ALPHA / family)
    text = f"cannot tell: the difference lies between {difference.low:+.2f} and"
    text += f" {difference.high:+.2f} points"
    if difference.low > 0 or difference.high < 0:
        text += f", but {family} comparisons were made"
    if needed <= len(differences):
        return f"{text}; half a point would probably have been found"
    more = "more than " if needed >= sequential.MOST else "about "
    return f"{text}; to detect half a point you need {more}{needed:,} seeds"
