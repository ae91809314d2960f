"""`Site`, an addition where two branches meet, and how sites are selected by name."""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from sortnet.patterns import matches


@dataclass(frozen=True)
class Site:
    """An addition in a model where two branches of equal shape meet.

    Attributes:
        path: The module whose forward adds, as ``model.get_submodule`` takes it.
        index: The number of the site within the module, from 0.
        count: How many sites the module has.
        shortcut: The source of the operand that passed through fewer layers: x.
        branch: The source of the other operand: f.
        shape: The shape of both operands, batch first.
        channel_dim: The dimension of the channels: 1 in images, the last one in tokens.
        block: What ``sort`` means here: ``branches`` if both operands end in ReLU, as in
            section 3.1 of the paper, otherwise ``residual``.
        follows: The operation that uses the result, such as ``relu``.
        fusion: The current fusion: ``sum`` unless the model has been changed before.
        problem: Why the site cannot be changed; None if it can.
    """

    path: str
    index: int
    count: int
    shortcut: str
    branch: str
    shape: tuple[int, ...]
    channel_dim: int
    block: str
    follows: str
    fusion: str = "sum"
    problem: str | None = None

    @property
    def name(self) -> str:
        """The path, followed by a number if the module has several sites: ``blocks.0#2``."""
        return (self.path or ".") + (f"#{self.index + 1}" if self.count > 1 else "")

    @property
    def channels(self) -> int:
        """The number of channels of the branches."""
        return self.shape[self.channel_dim]

    def __str__(self) -> str:
        operands = f"{self.shortcut} + {self.branch}"
        if self.fusion != "sum":
            operands += f" [{self.fusion}]"
        shape = "x".join(map(str, self.shape[1:]))
        problem = f"  cannot be changed: {self.problem}" if self.problem else ""
        return f"{self.name:<24} {operands:<32} then {self.follows:<12} {shape}{problem}".rstrip()


class Named(Protocol):
    """Anything a pattern can select: a site or a convolution."""

    @property
    def path(self) -> str:
        """The path of its module."""

    @property
    def name(self) -> str:
        """The path, or a more specific name."""


T = TypeVar("T", bound=Named)


def select(items: Sequence[T], where: str | Callable[[T], bool] | None) -> list[T]:
    """Return the items that match; raise ValueError if there are none.

    Arguments:
        items: Sites or convolutions.
        where: A regular expression or a glob over paths and names, a predicate, or None for all.
    """
    if where is None:
        return list(items)
    if isinstance(where, str):
        selected = [item for item in items if _matches(where, item)]
        reason = f"the pattern {where!r} matches none of"
    else:
        selected = [item for item in items if where(item)]
        reason = "the predicate selects none of"
    if not selected:
        raise ValueError(f"{reason} {join_names(items)}")
    return selected


def _matches(pattern: str, item: Named) -> bool:
    return any(matches(pattern, name) for name in {item.path, item.name})


def join_names(items: Sequence[Named], limit: int = 8) -> str:
    """Return the names in one line, shortened in the middle if there are many."""
    names = [item.name for item in items]
    if len(names) > limit:
        names = [*names[: limit - 1], "...", names[-1]]
    return ", ".join(names)


def close(name: str, names: Sequence[str]) -> str:
    """Return a hint with the names closest to a misspelled one."""
    found = difflib.get_close_matches(name, names, n=5, cutoff=0.5)
    return f"did you mean {', '.join(found)}?" if found else f"there are {len(names)} others"
