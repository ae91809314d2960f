"""A comparison on the page, and its learning curves as a figure."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sortnet.errors import UsageError
from sortnet.lab import runs
from sortnet.lab.compare import FILE as FILE
from sortnet.lab.compare import Answer
from sortnet.lab.report.learning_curves import mean_curve
from sortnet.lab.report.style import OTHERS, canvas, save, styled
from sortnet.lab.runs.curves import columns, finite

VERDICTS = ("baseline", "helps", "hurts", "cannot tell")


def read(value: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what the page shows of a comparison.json."""
    steps, seeds = int(value["steps"]), int(value["seeds"])
    about = f"{seeds} seeds, {steps:,} steps of {int(value['batch'])} images"
    return [
        {
            "title": f"{value['model']} on {value['data']}",
            "about": f"{about} ({value['recipe']}), {value['precision']}",
            "outcomes": [_outcome(outcome) for outcome in value["outcomes"]],
        }
    ]


def _outcome(value: Mapping[str, Any]) -> dict[str, Any]:
    if value["verdict"] not in VERDICTS:
        raise UsageError(f"the verdict {value['verdict']!r} is none of {', '.join(VERDICTS)}")
    difference, cost = value["difference"], value["cost"]
    return {
        "label": str(value["label"]),
        "verdict": value["verdict"],
        "text": str(value["text"]),
        "error": {name: finite(value[name]) for name in ("mean", "deviation")},
        "diverged": int(value["diverged"]),
        "difference": None if difference is None else _numbers(difference, DIFFERENCE),
        "cost": None if cost is None else _cost(cost),
    }


DIFFERENCE = ("mean", "low", "high", "adjusted_p")


def _numbers(value: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, float | None]:
    return {name: finite(value[name]) for name in names}


def _cost(value: Mapping[str, Any]) -> dict[str, Any]:
    plain = _numbers(value, ("parameters", "step", "inference", "saved"))
    ratios = {
        name: _numbers(value[name], ("median", "low", "high"))
        for name in ("step_ratio", "inference_ratio")
    }
    return {**plain, **ratios}


@styled
def curves(answer: Answer, path: Path) -> list[Path]:
    """Draw every variant's error against its steps, mean and deviation over seeds.

    Errors on held-out images are solid and errors on training images dotted.

    Arguments:
        answer: The comparison.
        path: The figure, without suffix.
    """
    figure, axes = canvas(1, 1, 6.4, 3.8)
    axis = axes[0, 0]
    for color, outcome in zip(OTHERS, answer.outcomes, strict=False):
        found = [columns(runs.rows(Path(answer.directory) / run)) for run in outcome.runs.values()]
        for split, style in (("train", ":"), ("validation", "-")):
            drawn = mean_curve([own.get(split, {"step": []}) for own in found])
            if drawn is not None:
                x, mean, spread = drawn
                label = f"{outcome.label}, {split}"
                axis.plot(x, mean, style, color=color, label=label)
                axis.fill_between(x, mean - spread, mean + spread, color=color, alpha=0.15, lw=0)
    axis.set(xlabel="step", ylabel="error (%)", ylim=(0, None))
    axis.legend()
    return save(figure, path)
