"""The settings of a configuration as short texts, and where configurations differ."""

from collections.abc import Mapping, Sequence
from typing import Any

from sortnet.lab.runs.curves import finite

LONGEST = 120
"""Longest text of a setting, in characters."""


def differing(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the names of the settings in which configurations differ.

    Example:
        >>> differing([{"data": "digits", "fusion": "sum"}, {"data": "digits", "fusion": "sort"}])
        ['fusion']
    """
    names = dict.fromkeys(name for setting in settings for name in setting)
    return [name for name in names if len({setting.get(name) for setting in settings}) > 1]


def flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Flatten nested settings into one level of short texts; the seed is left out.

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
    """Return a setting as a person would write it."""
    if value is None or value == "":
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        whole = ", ".join(map(text, value)) or "none"
    elif isinstance(value, dict):
        section = {"rate", "steps"} == set(value)
        whole = f"{text(value['rate'])} x {text(value['steps'])}" if section else str(value)
    elif isinstance(value, float) and finite(value) is not None:
        whole = f"{value:g}"
    else:
        whole = str(value)
    return whole if len(whole) <= LONGEST else whole[: LONGEST - 1] + "…"
