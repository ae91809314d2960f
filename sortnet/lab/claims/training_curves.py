"""Claims about training: from the learning curves of experiments."""

from collections.abc import Callable, Sequence

from sortnet.lab.claims.evidence import Evidence
from sortnet.lab.claims.finding import Check, Context, Expectation, Finding, Values, judge
from sortnet.lab.experiments.results import CellResults
from sortnet.lab.runs import RunRecord

Feature = Callable[[RunRecord], float | None]
BRANCHED = ("LeNet*", "BigNet*")
RESIDUAL = ("ResNet-20", "ResNet-32", "ResNet-56", "WRN-28")
SOURCES = ("evidence", "figures", "table2", "table1")


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
    evidence, every = Evidence.of(context, *SOURCES), []
    for network in ("ResNet-56", "WRN-28"):
        pair = evidence.pair(f"{network}-SORT", network, "CIFAR-100")
        if pair is None:
            every.append(Expectation(network, None))
            continue
        plain: dict[int, float | None] = {}
        second: dict[int, float | None] = {}
        for seed in pair.base.records.keys() & pair.row.records.keys():
            both = pair.base.records[seed], pair.row.records[seed]
            if all(record.ended == "finished" for record in both):
                loss = max(min(record.curves["train"]["loss"]) for record in both)
                plain[seed], second[seed] = (at_loss(record, loss) for record in both)
        every.append(Expectation.of(pair.name, second, plain))
    return judge(every, evidence.note, "figures")


def _all(networks: Sequence[str], feature: Feature, expected: int, what: str) -> Check:
    def values(cell: CellResults) -> Values:
        return {seed: feature(record) for seed, record in cell.records.items()}

    def check(context: Context) -> Finding:
        evidence = Evidence.of(context, *SOURCES)
        found = [
            evidence.compare(f"{name}-SORT", name, column, expected, values)
            for name in networks
            for column in ("CIFAR-10", "CIFAR-100", "SVHN")
        ]
        return judge(found, f"{what}; {evidence.note}", "figures")

    return check


CHECKS: dict[str, Check] = {
    "branched-trains-better": _all(BRANCHED, held_out, -1, "mean held-out error of the curve"),
    "unstable-first-section": _all(
        RESIDUAL, roughness, 1, "jumps of the loss in the first section, in hundredths"
    ),
    "better-later": _all(RESIDUAL, last_section, -1, "mean error in the last section"),
    "better-at-equal-loss": equal_loss,
}
