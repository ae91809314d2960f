"""Runs of the same configuration, and what they are compared with."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from sortnet import paper
from sortnet.experiments.statistics import Comparison, adjust, compare, summary
from sortnet.networks import NETWORKS
from sortnet.report.curves import number
from sortnet.runs import Run

Entry = Mapping[str, Any]
LONGEST = 120
"""Characters of a setting that are shown."""


def key(run: Run) -> str:
    """What runs of the same configuration have in common: all but the seed."""
    return json.dumps({**run.as_json(), "seed": None}, sort_keys=True)


def reference(run: Run) -> str:
    """The configuration with which a fusion is compared: the same network with the sum."""
    options = {k: v for k, v in run.options.items() if k not in ("gate", "eps")}
    changed = {"seed": None, "fusion": "sum", "options": options}
    return json.dumps({**run.as_json(), **changed}, sort_keys=True)


def grouped(runs: Sequence[Run], entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """The configurations, in the order of their first runs, each after its sum.

    Arguments:
        runs: All runs.
        entries: What is known of each.
    """
    members: dict[str, list[int]] = {}
    for i, run in enumerate(runs):
        members.setdefault(key(run), []).append(i)
    kinds = {name: reference(runs[own[0]]) for name, own in members.items()}
    kin = list(dict.fromkeys(kinds.values()))  # a sum stands before what is compared with it
    order = sorted(members, key=lambda name: (kin.index(kinds[name]), name != kinds[name]))
    members = {name: sorted(members[name], key=lambda i: runs[i].seed) for name in order}
    names = labels([runs[own[0]] for own in members.values()])
    errors = [{runs[i].seed: entries[i]["error"] for i in own} for own in members.values()]
    bases = [
        order.index(kind) if (kind := kinds[n]) in order and kind != n else None for n in order
    ]
    gains = adjust(
        None if base is None else compare(own, errors[base])
        for own, base in zip(errors, bases, strict=True)
    )
    return [
        _group(label, own, gain, runs, entries)
        for label, own, gain in zip(names, members.values(), gains, strict=True)
    ]


def _group(
    label: str,
    own: list[int],
    gain: Comparison | None,
    runs: Sequence[Run],
    entries: Sequence[Entry],
) -> dict[str, Any]:
    """What is shown of a configuration, given the places of its runs."""
    run, ended = runs[own[0]], [entries[i] for i in own if entries[i]["error"] is not None]
    return {
        "label": label,
        "runs": own,
        "scale": run.recipe.scale,
        **{n: mean(entry[n] for entry in ended) for n in ("error", "error5", "seconds")},
        "paper": published(run),
        "gain": None if gain is None else asdict(gain),
    }


def mean(values: Iterable[float | None]) -> dict[str, Any] | None:
    """Mean, standard deviation and number of the values that there are."""
    found = summary([value for value in values if value is not None])
    return None if found.mean is None else asdict(found)


def published(run: Run) -> list[dict[str, Any]]:
    """What the paper prints for a run's network, fusion and data; nothing if it has none."""
    options = {k: v for k, v in run.options.items() if v not in (None, False)}
    branched = bool(options.pop("branched", False))
    options.pop("style", None)  # the paper does not say which one it has
    if options.get("width") == 10:
        options.pop("width")
    if options or run.init is not None or run.freeze:
        return []
    chain = "branched" in NETWORKS[run.network].variants
    names: tuple[str | None, ...] = (run.fusion,)
    second = "sum+prod" if chain else "sum+root"
    if run.fusion in ("sort", second):
        names = ("sort", second)
    if chain and not branched:
        names = (None,)
    found: list[paper.Result] = []
    for fusion in names:
        with suppress(ValueError):  # the paper has no such network, fusion or data at all
            found += paper.find(
                network=run.network, branched=branched, fusion=fusion, data=run.data
            )
    return [
        {"value": r.value, "place": ", ".join(filter(None, (r.place, r.framework)))}
        for r in sorted(found, key=lambda r: r.place, reverse=True)
        if r.metric in ("error", "top1-error")
    ]


def labels(runs: Sequence[Run]) -> list[str]:
    """Short names of configurations that tell them apart."""
    shown = [flat(run.as_json()) for run in runs]
    told = []
    for run, own in zip(runs, shown, strict=True):
        alike = [other for r, other in zip(runs, shown, strict=True) if r.title == run.title]
        names = differing(alike)
        if "recipe.scale" in names:
            names = [name for name in names if name != "recipe.sections"]
        if "data" not in names and len({r.data for r in runs}) > 1:
            names = ["data", *names]
        told.append(" · ".join([run.title, *(_said(name, own.get(name)) for name in names)]))
    return told


def _said(name: str, value: str | None) -> str:
    if name in ("data", "name"):
        return value or "none"
    if name == "recipe.scale":
        return f"x{value}"
    return f"{name.rpartition('.')[2]} {value or 'none'}"


def differences(groups: Sequence[Entry], entries: Sequence[Entry]) -> dict[str, Any]:
    """The settings that differ between configurations, and those that are the same in all."""
    settings: list[dict[str, str]] = []
    for group in groups:
        own = [entries[i]["settings"] for i in group["runs"]]
        names = dict.fromkeys(name for setting in own for name in setting)
        values = {n: dict.fromkeys(s.get(n, "none") for s in own) for n in names}
        settings.append({name: " | ".join(found) for name, found in values.items()})
    differ = differing(settings)
    same = {n: v for n, v in settings[0].items() if n not in differ} if settings else {}
    return {
        "names": differ,
        "values": [[setting.get(name, "none") for name in differ] for setting in settings],
        "same": list(same.items()),
    }


def differing(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """The names under which not all have the same."""
    names = dict.fromkeys(name for setting in settings for name in setting)
    return [name for name in names if len({setting.get(name) for setting in settings}) > 1]


def flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as one level of short texts; the seed is left out.

    Example:
        >>> flat({"fusion": "sort", "recipe": {"clip": None, "flip": True}})
        {'fusion': 'sort', 'recipe.clip': 'none', 'recipe.flip': 'yes'}
    """
    texts: dict[str, str] = {}
    for name, entry in value.items():
        if isinstance(entry, dict):
            texts |= flat(entry, f"{prefix}{name}.")
        elif f"{prefix}{name}" != "seed":
            texts[f"{prefix}{name}"] = text(entry)
    return texts


def text(value: object) -> str:
    """A setting as a person would write it."""
    if value is None or value == "":
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        whole = ", ".join(map(text, value)) or "none"
    elif isinstance(value, dict):
        section = {"rate", "steps"} == set(value)
        whole = f"{text(value['rate'])} x {text(value['steps'])}" if section else str(value)
    elif isinstance(value, float) and number(value) is not None:
        whole = f"{value:g}"
    else:
        whole = str(value)
    return whole if len(whole) <= LONGEST else whole[: LONGEST - 1] + "…"
