"""Claims about training: from the learning curves of experiments."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sortnet.lab.claims.finding import Check, Context, Expectation, Finding, judge
from sortnet.lab.experiments.results import ExperimentResults
from sortnet.lab.runs import RunRecord

Feature = Callable[[RunRecord], float | None]
BRANCHED = ("LeNet*", "BigNet*")
RESIDUAL = ("ResNet-20", "ResNet-32", "ResNet-56", "WRN-28")
SOURCES = ("figures", "table2", "table1")


@dataclass(frozen=True)
class CurvePair:
    """A network's runs with the sum and with SORT on one dataset, by seed."""

    name: str
    plain: Mapping[int, RunRecord]
    second: Mapping[int, RunRecord]

    def compare(self, feature: Feature, expected: int) -> Expectation:
        """Compare a feature of the curves, SORT minus sum."""
        second, plain = (
            {seed: feature(record) for seed, record in records.items()}
            for records in (self.second, self.plain)
        )
        return Expectation.of(self.name, second, plain, expected)


def pairs(context: Context, networks: Sequence[str], data: Sequence[str]) -> list[CurvePair]:
    """Return the runs of each network and dataset, from the first experiment that has both.

    Runs of one experiment have the same size and precision.
    """
    known = _known(context)
    return [_pair(known, network, column) for network in networks for column in data]


def _known(context: Context) -> list[ExperimentResults]:
    return [found for name in SOURCES if (found := context.best(name)) is not None]


def _pair(known: Iterable[ExperimentResults], network: str, column: str) -> CurvePair:
    name = f"{network}, {column}"
    for results in known:
        cells = [results.cell(network + end, column) for end in ("", "-SORT")]
        plain, second = (cell.records if cell else {} for cell in cells)
        if plain and second:
            return CurvePair(name, plain, second)
    return CurvePair(name, {}, {})


def _note(context: Context) -> str:
    return "; ".join(results.source for results in _known(context))


def _section(record: RunRecord, index: int) -> tuple[int, int]:
    """Return the first and the last step of a section; negative ones count from the end."""
    lengths = [section.steps for section in record.run.recipe.sections]
    index %= len(lengths)
    return sum(lengths[:index]), sum(lengths[: index + 1])


def _within(record: RunRecord, split: str, key: str, steps: tuple[int, int]) -> list[float]:
    curve = record.curves.get(split)
    if curve is None:
        return []
    points = zip(curve["step"], curve[key], strict=True)
    return [y for step, y in points if steps[0] < step <= steps[1] and y is not None]


def held_out(record: RunRecord) -> float | None:
    """Return the mean error on held-out images, over the whole curve."""
    found = _within(record, "validation", "error", (0, record.steps))
    return sum(found) / len(found) if found else None


def roughness(record: RunRecord) -> float | None:
    """Return how much the training loss jumps in the first section: the mean second difference."""
    loss = _within(record, "train", "loss", _section(record, 0))
    bends = [abs(a - 2 * b + c) for a, b, c in zip(loss, loss[1:], loss[2:], strict=False)]
    return 100 * sum(bends) / len(bends) if bends else None


def last_section(record: RunRecord) -> float | None:
    """Return the mean error in the last section, on held-out images or else training images."""
    steps = _section(record, -1)
    held = _within(record, "validation", "error", steps)
    found = held or _within(record, "train", "error", steps)
    return sum(found) / len(found) if found else None


def at_loss(record: RunRecord, loss: float) -> float | None:
    """Return the error on held-out images where the training loss first falls to a value."""
    train, held = record.curves.get("train"), record.curves.get("validation")
    if train is None or held is None:
        return None
    reached = [s for s, v in zip(train["step"], train["loss"], strict=True) if v <= loss]
    points = zip(held["step"], held["error"], strict=True)
    later = [error for step, error in points if reached and step >= reached[0]]
    return later[0] if later else None


def equal_loss(context: Context) -> Finding:
    """Compare the errors at the steps where both first reach the larger of their lowest losses."""
    every = []
    for pair in pairs(context, ("ResNet-56", "WRN-28"), ("CIFAR-100",)):
        plain: dict[int, float | None] = {}
        second: dict[int, float | None] = {}
        for seed in pair.plain.keys() & pair.second.keys():
            both = pair.plain[seed], pair.second[seed]
            if all(record.ended == "finished" for record in both):
                loss = max(min(record.curves["train"]["loss"]) for record in both)
                plain[seed], second[seed] = (at_loss(record, loss) for record in both)
        every.append(Expectation.of(pair.name, second, plain))
    return judge(every, _note(context), "figures")


def _all(networks: Sequence[str], feature: Feature, expected: int, what: str) -> Check:
    def check(context: Context) -> Finding:
        data = ("CIFAR-10", "CIFAR-100", "SVHN")
        found = [pair.compare(feature, expected) for pair in pairs(context, networks, data)]
        return judge(found, f"{what}, SORT less sum; {_note(context)}", "figures")

    return check


CHECKS: dict[str, Check] = {
    "branched-trains-better": _all(BRANCHED, held_out, -1, "mean held-out error of the curve"),
    "unstable-first-section": _all(
        RESIDUAL, roughness, 1, "jumps of the loss in the first section, in hundredths"
    ),
    "better-later": _all(RESIDUAL, last_section, -1, "mean error in the last section"),
    "better-at-equal-loss": equal_loss,
}
