"""The op: two branches, one response. Section 3 of the paper."""

from sortnet.fusion.branches import Branch, Normalized, Recomputed, Rectified
from sortnet.fusion.functional import fuse, sort
from sortnet.fusion.module import GATES, Fusion, fuse_branches, why_not_fused
from sortnet.fusion.terms import EPS, FIRST_ORDER, SECOND_ORDER, TERMS, parse

__all__ = [
    "EPS",
    "FIRST_ORDER",
    "GATES",
    "SECOND_ORDER",
    "TERMS",
    "Branch",
    "Fusion",
    "Normalized",
    "Recomputed",
    "Rectified",
    "fuse",
    "fuse_branches",
    "parse",
    "sort",
    "why_not_fused",
]
