"""The runs of a page by configuration, each configuration compared with its baseline."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sortnet.lab.experiments.baselines import baseline, paper_values, training_key
from sortnet.lab.runs import Run, RunRecord
from sortnet.lab.runs.settings import differing, flat
from sortnet.lab.statistics import Comparison, adjust, compare, summary

Values = Mapping[int, float | None]
PREFERRED = ("recipe.name", "recipe.scale", "recipe.warm_up", "precision")
"""Settings that labels prefer, if several distinguish the same configurations."""
AVOIDED = ("name", "evaluations", "recipe.sections")
"""Settings that a label names only if no other does."""


def key(run: Run) -> str:
    """Return a key that is equal for runs that differ only in their seed."""
    return json.dumps({**run.as_json(), "seed": None}, sort_keys=True)


def data_name(run: Run) -> str:
    """Return the name of a run's dataset, or of its folder."""
    return run.id.partition("/")[0]


def grouped(records: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """Return the configurations by dataset, each after its baseline.

    Otherwise they are in the order of their first runs.
    """
    members: dict[str, list[int]] = {}
    for i, record in enumerate(records):
        members.setdefault(key(record.run), []).append(i)
    first = {name: records[own[0]].run for name, own in members.items()}
    families = {name: training_key(baseline(run) or run) for name, run in first.items()}
    kin, data = (
        list(dict.fromkeys(v)) for v in (families.values(), map(data_name, first.values()))
    )
    order = sorted(
        first,
        key=lambda n: (
            data.index(data_name(first[n])),
            kin.index(families[n]),
            baseline(first[n]) is not None,
        ),
    )
    configurations = [sorted(members[name], key=lambda i: records[i].run.seed) for name in order]
    runs = [first[name] for name in order]
    own = [[records[i] for i in indices] for indices in configurations]
    gains = compared(runs, [_errors(some) for some in own])
    return [
        {"runs": indices, **_group(label, some, gain)}
        for label, indices, some, gain in zip(
            labels(runs), configurations, own, gains, strict=True
        )
    ]


def _errors(records: Iterable[RunRecord]) -> Values:
    """Return test errors by seed; None for runs that did not converge, or have not ended."""
    return {r.run.seed: r.test["error"] if r.converged else None for r in records}


def compared(runs: Sequence[Run], errors: Sequence[Values]) -> list[Comparison | None]:
    """Compare each configuration with its baseline; None if its baseline is not among them.

    Arguments:
        runs: One run of each configuration.
        errors: Test errors of each configuration, by seed.
    """
    keys = [training_key(run) for run in runs]
    found = []
    for run, own in zip(runs, errors, strict=True):
        base = baseline(run)
        wanted = None if base is None else training_key(base)
        same = [i for i, other in enumerate(keys) if other == wanted]
        same.sort(key=lambda i: runs[i].name != run.name)  # prefer the baseline of the same name
        found.append(compare(own, errors[same[0]]) if same else None)
    return adjust(found)


def _group(label: str, records: Sequence[RunRecord], gain: Comparison | None) -> dict[str, Any]:
    """Return what is shown of a configuration."""
    run, ended = records[0].run, [r for r in records if "error" in r.test]
    return {
        "label": label,
        "data": data_name(run),
        "scale": run.recipe.scale,
        **{name: mean(r.test.get(name) for r in ended) for name in ("error", "error5")},
        "seconds": mean(r.seconds for r in ended),
        "paper": [asdict(value) for value in paper_values(run)],
        "gain": None if gain is None else asdict(gain),
    }


def mean(values: Iterable[float | None]) -> dict[str, Any] | None:
    """Return mean, standard deviation and number of the values that are known."""
    found = summary([value for value in values if value is not None])
    return None if found.mean is None else asdict(found)


def labels(runs: Sequence[Run]) -> list[str]:
    """Return short names that distinguish configurations; with the dataset only if needed."""
    settings = [flat(run.as_json()) for run in runs]
    names = []
    for run, own in zip(runs, settings, strict=True):
        like = (run.title, data_name(run))
        alike = [s for r, s in zip(runs, settings, strict=True) if (r.title, data_name(r)) == like]
        names.append(
            " · ".join([run.title, *(_setting(n, own.get(n)) for n in _telling(own, alike))])
        )
    times = Counter(names)
    return [
        f"{name} · {data_name(run)}" if times[name] > 1 else name
        for name, run in zip(names, runs, strict=True)
    ]


def _telling(own: Mapping[str, str], alike: Sequence[Mapping[str, str]]) -> list[str]:
    """Return a few settings that distinguish a configuration from those with the same title."""
    differ = sorted(differing(alike), key=lambda n: (n in AVOIDED) - (n in PREFERRED))
    left, found = [other for other in alike if other != own], []
    while left:
        name = max(differ, key=lambda n: sum(o.get(n) != own.get(n) for o in left))
        found.append(name)
        left = [other for other in left if other.get(name) == own.get(name)]
    return sorted(found, key=differ.index)


def _setting(name: str, value: str | None) -> str:
    if name in ("data", "name"):
        return value or "none"
    if name == "recipe.scale":
        return f"x{value}"
    if name == "recipe.name":
        return f"recipe {value}"
    return f"{name.rpartition('.')[2]} {value or 'none'}"


def differences(
    groups: Sequence[Mapping[str, Any]], settings: Sequence[Mapping[str, str]]
) -> dict[str, Any]:
    """Return the settings that differ between configurations, and those that all share.

    Arguments:
        groups: The configurations.
        settings: The settings of each run.
    """
    merged: list[dict[str, str]] = []
    for group in groups:
        own = [settings[i] for i in group["runs"]]
        names = dict.fromkeys(name for setting in own for name in setting)
        values = {n: dict.fromkeys(s.get(n, "none") for s in own) for n in names}
        merged.append({name: " | ".join(found) for name, found in values.items()})
    differ = differing(merged)
    same = {n: v for n, v in merged[0].items() if n not in differ} if merged else {}
    return {
        "names": differ,
        "values": [[setting.get(name, "none") for name in differ] for setting in merged],
        "same": list(same.items()),
    }
