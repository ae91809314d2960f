"""What `sortnet demo` compares: LeNet* with the sum and with SORT, on 250 handwritten digits.

All but 250 of the 1,437 training images are held out for the learning curves: with all of them
both variants are near their smallest error, and there would be nothing to see.

The rate was chosen after a first try, so the verdict is about this recipe only. That try had a
rate of 0.02 and no clipping: on seeds 0 and 1 the sum ended at 9.4 and 8.1 %, about where SORT
ends with this recipe, and SORT at 33.9 and 10.6 %.
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
