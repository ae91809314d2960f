"""The comparison of `sortnet demo`: LeNet* with the sum and with SORT, on handwritten digits.

The recipe is the paper's for LeNet, shortened to 60 steps. Nothing was tuned for the outcome: the
demo shows how a comparison works, and is no evidence for or against SORT.
"""

from typing import Any

from sortnet.lab.recipes import LENET

COMPARISON: dict[str, Any] = {
    "model": "lenet",
    "data": "digits",
    "fusions": ("sum", "sort"),
    "seeds": 3,
    "recipe": LENET,
    "steps": 60,
    "options": {"branched": True},
}
"""The arguments of `sortnet.compare`."""
