"""The op: two branches, one response. Section 3 of the paper."""

from sortnet.fusion.functional import (
    EPS,
    FIRST_ORDER,
    SECOND_ORDER,
    TERMS,
    fuse,
    parse,
    sort,
)
from sortnet.fusion.module import GATES, Fusion

__all__ = [
    "EPS",
    "FIRST_ORDER",
    "GATES",
    "SECOND_ORDER",
    "TERMS",
    "Fusion",
    "fuse",
    "parse",
    "sort",
]
