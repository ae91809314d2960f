"""The op: fuse the responses of two branches. Section 3 of the paper.

From the inside out: `formulas` (values and derivatives), `branches` (kinds of branches),
`kernels` (compiled formulas), `dispatch` (fused or plain), `fused` (the autograd function),
`functional` and `module` (what users and blocks call). `private` holds the private PyTorch
interfaces.
"""

from sortnet.fusion.branches import Branch, Normalized, Recomputed, Rectified, defer_norm
from sortnet.fusion.dispatch import why_not_fused
from sortnet.fusion.formulas import EPS, FIRST_ORDER, SECOND_ORDER, TERMS, parse
from sortnet.fusion.functional import fuse, sort
from sortnet.fusion.module import GATES, Fusion, fuse_branches

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
    "defer_norm",
    "fuse",
    "fuse_branches",
    "parse",
    "sort",
    "why_not_fused",
]
