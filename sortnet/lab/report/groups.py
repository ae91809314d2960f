"""Runs of the same configuration, and what they are compared with."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sortnet.lab.experiments.baselines import baseline, paper_values, training_key
from sortnet.lab.report.thinning import number
from sortnet.lab.runs import Run
from sortnet.lab.statistics import Comparison, adjust, compare, summary

Entry = Mapping[str, Any]
Values = Mapping[int, float | None]
LONGEST = 120
"""Characters of a setting that are shown."""


def key(run: Run) -> str:
    """What runs of the same configuration have in common: all but the seed."""
    return json.dumps({**run.as_json(), "seed": None}, sort_keys=True)


def grouped(runs: Sequence[Run], entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """The configurations, in the order of their first runs, each after its baseline.

    Arguments:
        runs: All runs.
        entries: What is known of each.
    """
    members: dict[str, list[int]] = {}
    for i, run in enumerate(runs):
        members.setdefault(key(run), []).append(i)
    first = {name: runs[own[0]] for name, own in members.items()}
    families = {name: training_key(baseline(run) or run) for name, run in first.items()}
    kin = list(dict.fromkeys(families.values()))
    order = sorted(first, key=lambda n: (kin.index(families[n]), baseline(first[n]) is not None))
    members = {name: sorted(members[name], key=lambda i: runs[i].seed) for name in order}
    gains = compared(
        [first[name] for name in order], [_errors(own, runs, entries) for own in members.values()]
    )
    names = labels([first[name] for name in order])
    return [
        _group(label, own, gain, runs, entries)
        for label, own, gain in zip(names, members.values(), gains, strict=True)
    ]


def _errors(own: Iterable[int], runs: Sequence[Run], entries: Sequence[Entry]) -> Values:
    """Test errors by seed; None for runs that did not converge, or have not ended."""
    return {runs[i].seed: entries[i]["error"] if entries[i]["converged"] else None for i in own}


def compared(runs: Sequence[Run], errors: Sequence[Values]) -> list[Comparison | None]:
    """Each configuration less its baseline; None where that is not among them.

    Arguments:
        runs: One of each configuration.
        errors: Those of each by seed.
    """
    keys = [training_key(run) for run in runs]
    found = []
    for run, own in zip(runs, errors, strict=True):
        base = baseline(run)
        wanted = None if base is None else training_key(base)
        same = [i for i, other in enumerate(keys) if other == wanted]
        same.sort(key=lambda i: runs[i].name != run.name)  # of several, that of the same name
        found.append(compare(own, errors[same[0]]) if same else None)
    return adjust(found)


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
        "paper": [asdict(value) for value in paper_values(run)],
        "gain": None if gain is None else asdict(gain),
    }


def mean(values: Iterable[float | None]) -> dict[str, Any] | None:
    """Mean, standard deviation and number of the values that there are."""
    found = summary([value for value in values if value is not None])
    return None if found.mean is None else asdict(found)


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
