"""The op: two branches, one response. Section 3 of the paper."""

from sortnet.fusion.functional import fuse, sort
from sortnet.fusion.joint import Branch, Normalised, Rectified, Remade, Solved
from sortnet.fusion.module import GATES, Fusion, join
from sortnet.fusion.terms import EPS, FIRST_ORDER, SECOND_ORDER, TERMS, parse

__all__ = [
    "EPS",
    "FIRST_ORDER",
    "GATES",
    "SECOND_ORDER",
    "TERMS",
    "Branch",
    "Fusion",
    "Normalised",
    "Rectified",
    "Remade",
    "Solved",
    "fuse",
    "join",
    "parse",
    "sort",
]
