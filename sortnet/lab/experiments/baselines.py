"""The baseline of a run, and what the paper prints for it.

Tables, claims and the page all pair runs by these functions.
"""

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from sortnet.lab import paper
from sortnet.lab.recipes import DEFAULTS
from sortnet.lab.runs import Run
from sortnet.networks import NETWORKS

FUSION_OPTIONS = ("gate", "eps", "where")
"""Options that the plain sum does not use."""
METRICS = {"error": ("error", "top1-error"), "error5": ("top5-error",)}
"""The paper's names of our metrics, where they differ."""


def is_gated(run: Run) -> bool:
    """Return True if the second-order terms of a run have gates, which are not in the paper."""
    return run.built(0).get("gate") is not None


def training_key(run: Run) -> str:
    """Return a key that is equal for runs whose outcome differs only by the seed.

    Labels do not count: the names of run and recipe, the recipe's scale (its sections do), how
    often held-out images are evaluated, and options that are off.
    """
    recipe = replace(run.recipe, name="", scale=1.0)
    alike = replace(run, seed=0, name="", evaluations=0, recipe=recipe, options=_used(run))
    return json.dumps(alike.as_json(), sort_keys=True)


def _used(run: Run) -> dict[str, Any]:
    """Return the options that are on."""
    return {k: v for k, v in run.options.items() if v is not None and v is not False}


def baseline(run: Run) -> Run | None:
    """Return the run a fusion is compared with: the same with fusion ``sum`` and without a gate.

    Network, data, recipe, options, precision and held-out images are the same. To find it among
    other runs, compare `training_key`.

    Returns:
        None for a run with the sum.

    Example:
        >>> from sortnet.lab.recipes import GATED, RESNET
        >>> plain = baseline(Run("resnet20", GATED, "sort", "cifar10"))
        >>> training_key(plain) == training_key(Run("resnet20", RESNET, "sum", "cifar10"))
        True
    """
    if run.fusion == "sum":
        return None
    options = {k: v for k, v in run.options.items() if k not in FUSION_OPTIONS}
    return replace(run, fusion="sum", options=options, recipe=replace(run.recipe, gate=None))


@dataclass(frozen=True)
class PaperValue:
    """What the paper prints for a run's network, fusion and data.

    Attributes:
        value: The number; None for a dash: the network did not converge.
        place: Where the paper prints it.
        same_schedule: Whether the run has the paper's schedule: its learning rates, steps and
            batch size. If not, the number is only for orientation.
    """

    value: float | None
    place: str
    same_schedule: bool


def paper_values(run: Run, metric: str = "error") -> list[PaperValue]:
    """Return what the paper prints for a run, the latest table first; empty if it has no such run.

    The paper has no gates, no other widths, no frozen weights and no given initial weights.
    Precision, seed, and details of training that the paper does not state are ignored.

    Arguments:
        run: The run.
        metric: ``error``, ``error5`` or the accuracy of a layer after transfer.

    Example:
        >>> from sortnet.lab.recipes import RESNET
        >>> for found in paper_values(Run("resnet20", RESNET.scaled(0.1), "sort", "cifar10")):
        ...     print(found)
        PaperValue(value=7.35, place='Table 2', same_schedule=False)
        PaperValue(value=7.14, place='Table 1', same_schedule=False)
    """
    usual = DEFAULTS.get(run.network)
    if usual is None:
        return []
    given = (run.recipe.sections, run.recipe.batch, run.recipe.warm_up)
    same = given == (usual.sections, usual.batch, usual.warm_up)
    found = [PaperValue(value, place, same) for value, place in _printed(run, metric)]
    return sorted(found, key=lambda each: each.place, reverse=True)


def _printed(run: Run, metric: str) -> list[tuple[float | None, str]]:
    """Return value and place of what the paper prints."""
    options = _used(run)
    branched = bool(options.pop("branched", False))
    head = options.pop("head", None)
    options.pop("style", None)  # the paper does not say which one it has
    if options.get("width") == 10:
        options.pop("width")
    if options or is_gated(run) or run.init is not None or run.freeze:
        return []
    if head is None:
        return _in_tables(run, metric, branched)
    wanted = (run.network, branched, run.fusion, head, run.data, metric)
    return [
        (t.error, t.place)
        for t in paper.TIMINGS
        if (t.network, t.branched, t.fusion, t.head, "cifar10", "error") == wanted
    ]


def _in_tables(run: Run, metric: str, branched: bool) -> list[tuple[float | None, str]]:
    carried = metric.endswith("-accuracy") and run.data == "imagenet"
    data = "caltech256" if carried else run.data
    crops = "caffe" if run.recipe.area is None else "torch"
    found: list[paper.PaperResult] = []
    for fusion in _names(run, branched):
        with suppress(ValueError):  # the paper has no such network, fusion or data
            found += paper.find_results(
                network=run.network, branched=branched, fusion=fusion, data=data
            )
    return [
        (result.value, result.place)
        for result in found
        if result.metric in METRICS.get(metric, (metric,)) and result.framework in (None, crops)
    ]


def _names(run: Run, branched: bool) -> tuple[str | None, ...]:
    """Return the names of the run's fusion in the paper's tables; None where nothing is fused."""
    chain = "branched" in NETWORKS[run.network].variants
    if chain and not branched:
        return (None,)
    second = "sum+prod" if chain else "sum+root"
    return ("sort", second) if run.fusion in ("sort", second) else (run.fusion,)
