"""Patterns that select modules, sites and weights by name: a glob or a regular expression."""

import re
from fnmatch import fnmatchcase


def matches(pattern: str, name: str) -> bool:
    """Return True if a glob or regular expression matches a whole name.

    Example:
        >>> patterns = ("layer[12].*", "layer[12][.]([0-9]+)[.]conv1", "layer1")
        >>> [matches(pattern, "layer1.0.conv1") for pattern in patterns]
        [True, True, False]
    """
    if fnmatchcase(name, pattern):
        return True
    try:
        return re.fullmatch(pattern, name) is not None
    except re.error:  # only a glob, such as *.attn
        return False
