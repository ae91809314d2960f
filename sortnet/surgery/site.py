"""A place where two branches meet, and how places are chosen."""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from sortnet.patterns import matches


@dataclass(frozen=True)
class Site:
    """A place in a model where two branches of equal shape meet by addition.

    Attributes:
        path: The module whose forward adds, as ``model.get_submodule`` takes it.
        index: Which of the module's places it is, from 0.
        count: How many the module has.
        shortcut: Where the operand comes from that went through fewer layers: x.
        branch: Where the other one comes from: f.
        shape: Of both, with the batch first.
        channel: The dimension of the channels: 1 in images, the last one in tokens.
        block: What ``sort`` means here: ``branches`` where two branches meet that both end in
            ReLU, as in section 3.1 of the paper, ``residual`` everywhere else.
        follows: The operation that takes the result, such as ``relu``.
        fusion: How they meet by now: ``sum``, unless it was changed before.
        problem: Why the place cannot be changed, if so.
    """

    path: str
    index: int
    count: int
    shortcut: str
    branch: str
    shape: tuple[int, ...]
    channel: int
    block: str
    follows: str
    fusion: str = "sum"
    problem: str | None = None

    @property
    def name(self) -> str:
        """The path, with the number of the place where a module has several: ``blocks.0#2``."""
        return (self.path or ".") + (f"#{self.index + 1}" if self.count > 1 else "")

    @property
    def channels(self) -> int:
        """How many channels the branches have."""
        return self.shape[self.channel]

    def __str__(self) -> str:
        met = f"{self.shortcut} + {self.branch}"
        if self.fusion != "sum":
            met += f" [{self.fusion}]"
        shape = "x".join(map(str, self.shape[1:]))
        problem = f"  cannot be changed: {self.problem}" if self.problem else ""
        return f"{self.name:<24} {met:<32} then {self.follows:<12} {shape}{problem}".rstrip()


class Named(Protocol):
    """What a pattern can choose: it has a path, and a name that may say more."""

    @property
    def path(self) -> str:
        """Where it is in the model."""

    @property
    def name(self) -> str:
        """What it is called."""


T = TypeVar("T", bound=Named)


def chosen(places: Sequence[T], where: str | Callable[[T], bool] | None) -> list[T]:
    """The places that a pattern or a predicate chooses; at least one, or it was a mistake.

    Arguments:
        places: All there are.
        where: A regular expression or a glob over paths and names, a predicate, or all of them.
    """
    if where is None:
        return list(places)
    if not isinstance(where, str):
        found = [place for place in places if where(place)]
        asked = "the predicate chooses"
    else:
        found = [place for place in places if _matches(where, place)]
        asked = f"the pattern {where!r} matches"
    if not found:
        raise ValueError(f"{asked} none of the places there are: {listed(places)}")
    return found


def _matches(pattern: str, place: Named) -> bool:
    return any(matches(pattern, name) for name in {place.path, place.name})


def listed(places: Sequence[Named], most: int = 8) -> str:
    """Their names, in one line that can be read."""
    names = [place.name for place in places]
    if len(names) > most:
        names = [*names[: most - 1], "...", names[-1]]
    return ", ".join(names)


def close(name: str, names: Sequence[str]) -> str:
    """A hint at the names that look like a misspelt one."""
    found = difflib.get_close_matches(name, names, n=5, cutoff=0.5)
    return f"did you mean {', '.join(found)}?" if found else f"there are {len(names)} others"
