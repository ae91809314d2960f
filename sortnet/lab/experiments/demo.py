"""What `sortnet demo` compares: LeNet* with the sum and with SORT, on 250 handwritten digits.

All but 250 of the 1,437 training images are held out for the learning curves: with all of them
both variants are near their smallest error, and there would be nothing to see.
"""

from dataclasses import replace
from typing import Any

from sortnet.lab.recipes import LENET, Section

RECIPE = replace(
    LENET,
    name="demo",
    sections=(Section(0.01, 150),),
    batch=50,
    warm_up=15,
    cosine=True,
    clip=1.0,
    pad=2,
)
COMPARISON: dict[str, Any] = {
    "model": "lenet",
    "data": "digits",
    "fusions": ("sum", "sort"),
    "seeds": 5,
    "recipe": RECIPE,
    "options": {"branched": True},
    "validation": 1187,
}
"""The arguments of `sortnet.compare`."""
