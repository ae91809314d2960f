"""Claims about training: from the learning curves of experiments."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sortnet.lab.claims.accuracy import Values, compared
from sortnet.lab.claims.finding import Check, Compared, Context, Finding, judged, source
from sortnet.lab.experiments.results import Stored

Entry = Mapping[str, Any]
Feature = Callable[[Entry], float | None]
BRANCHED = ("LeNet*", "BigNet*")
RESIDUAL = ("ResNet-20", "ResNet-32", "ResNet-56", "WRN-28")
SOURCES = ("figures", "table2", "table1")


@dataclass(frozen=True)
class Pair:
    """A network's runs with the sum and with SORT on one data set, by seed."""

    name: str
    plain: Mapping[int, Entry]
    second: Mapping[int, Entry]

    def compared(self, feature: Feature, expected: int) -> Compared:
        """A figure of each run's curve, SORT less sum."""
        found: list[Values] = [
            {seed: feature(entry) for seed, entry in runs.items()}
            for runs in (self.second, self.plain)
        ]
        return compared(self.name, found[0], found[1], expected)


def pairs(context: Context, networks: Sequence[str], data: Sequence[str]) -> list[Pair]:
    """The runs of each network and data set, out of the first experiment that has both.

    Both are of one experiment, and so of one size and precision.
    """
    known = [stored for name in SOURCES if (stored := context.best(name)) is not None]
    return [_pair(known, network, column) for network in networks for column in data]


def _pair(known: Iterable[Stored], network: str, column: str) -> Pair:
    name = f"{network}, {column}"
    for stored in known:
        plain, second = (_runs(stored, network + end, column) for end in ("", "-SORT"))
        if plain and second:
            return Pair(name, plain, second)
    return Pair(name, {}, {})


def _runs(stored: Stored, row: str, column: str) -> dict[int, Entry]:
    for cell in stored["cells"]:
        if (cell["row"], cell["column"], cell["metric"]) == (row, column, "error"):
            named = {int(seed): stored["runs"].get(key) for seed, key in cell["runs"].items()}
            return {seed: entry for seed, entry in named.items() if entry}
    return {}


def _note(context: Context) -> str:
    known = [stored for name in SOURCES if (stored := context.best(name)) is not None]
    return "; ".join(map(source, known))


def _section(entry: Entry, index: int) -> tuple[int, int]:
    """First and last step of a section; negative ones count from the end."""
    lengths = [section["steps"] for section in entry["run"]["recipe"]["sections"]]
    index %= len(lengths)
    return sum(lengths[:index]), sum(lengths[: index + 1])


def _within(entry: Entry, split: str, key: str, steps: tuple[int, int]) -> list[float]:
    curve = entry["curve"].get(split)
    if curve is None:
        return []
    points = zip(curve["step"], curve[key], strict=True)
    return [value for step, value in points if steps[0] < step <= steps[1]]


def held_out(entry: Entry) -> float | None:
    """The mean error on held-out images, over the whole curve."""
    found = _within(entry, "validation", "error", (0, entry["steps"]))
    return sum(found) / len(found) if found else None


def roughness(entry: Entry) -> float | None:
    """How much the training loss jumps in the first section: the mean change of its change."""
    loss = _within(entry, "train", "loss", _section(entry, 0))
    bends = [abs(a - 2 * b + c) for a, b, c in zip(loss, loss[1:], loss[2:], strict=False)]
    return 100 * sum(bends) / len(bends) if bends else None


def last_section(entry: Entry) -> float | None:
    """The mean error in the last section, on held-out images; on training images without any."""
    steps = _section(entry, -1)
    found = _within(entry, "validation", "error", steps) or _within(entry, "train", "error", steps)
    return sum(found) / len(found) if found else None


def at_loss(entry: Entry, loss: float) -> float | None:
    """The error on held-out images where the training loss first falls to a value."""
    train, held = entry["curve"].get("train"), entry["curve"].get("validation")
    if train is None or held is None:
        return None
    reached = [s for s, v in zip(train["step"], train["loss"], strict=True) if v <= loss]
    points = zip(held["step"], held["error"], strict=True)
    later = [error for step, error in points if reached and step >= reached[0]]
    return later[0] if later else None


def equal_loss(context: Context) -> Finding:
    """The error where both have just reached the larger of their final losses."""
    every = []
    for pair in pairs(context, ("ResNet-56", "WRN-28"), ("CIFAR-100",)):
        mine: Values = {}
        other: Values = {}
        for seed in pair.plain.keys() & pair.second.keys():
            both = pair.plain[seed], pair.second[seed]
            if all(entry["ended"] == "finished" for entry in both):
                loss = max(min(entry["curve"]["train"]["loss"]) for entry in both)
                other[seed], mine[seed] = (at_loss(entry, loss) for entry in both)
        every.append(compared(pair.name, mine, other))
    return judged(every, _note(context), "figures")


def _all(networks: Sequence[str], feature: Feature, expected: int, what: str) -> Check:
    def check(context: Context) -> Finding:
        data = ("CIFAR-10", "CIFAR-100", "SVHN")
        found = [pair.compared(feature, expected) for pair in pairs(context, networks, data)]
        return judged(found, f"{what}, SORT less sum; {_note(context)}", "figures")

    return check


CHECKS: dict[str, Check] = {
    "branched-trains-better": _all(BRANCHED, held_out, -1, "mean held-out error of the curve"),
    "unstable-first-section": _all(
        RESIDUAL, roughness, 1, "jumps of the loss in the first section, in hundredths"
    ),
    "better-later": _all(RESIDUAL, last_section, -1, "mean error in the last section"),
    "better-at-equal-loss": equal_loss,
}
