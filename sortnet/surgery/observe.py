"""A model watched while it runs on tensors without content: what is added to what, and where.

Nothing is traced for this, so it works for any model that runs. Of each response we know which
applications of weights it has passed through, as bits of a number. An addition of two responses
that have not passed through the same ones is a place where branches meet. An addition of a
parameter or of a position embedding is none, nor is one of two parts of the same response, as in
rotary embeddings, nor one of attention logits, which have no channels.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from sortnet.fusion import Fusion, fuse
from sortnet.fusion.private import tree_leaves, tree_map
from sortnet.surgery.fused_add import Moved

ADDITIONS = (torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__iadd__, fuse)
RELUS = (F.relu, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_)
SECOND = ("conv", "batch_norm", "group_norm", "instance_norm")
LAST = ("linear", "layer_norm", "rms_norm", "embedding", "multi_head_attention")
"""Functions, by how their names begin, whose results have the channels in that dimension."""
RESHAPES = ("view", "reshape", "einsum", "matmul", "bmm")
MOVES = ("permute", "transpose", "movedim", "moveaxis", "swapaxes", "swapdims")


class Origin(NamedTuple):
    """Where a response comes from: layers as bits, the channels' dimension, its last step."""

    layers: int
    channel: int | None
    rectified: bool = False


class Call(NamedTuple):
    """What a module was called with."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(eq=False)
class Meeting:
    """An addition that was seen.

    Attributes:
        owner: The path of the module whose forward adds.
        via: The path of the fusion that does it, where the model has one of ours already.
        operands: The shortcut and the branch, by the names of what made them.
        reverse: Whether the shortcut is the second operand.
        shape: Of both.
        channel: The channels' dimension.
        block: ``residual`` or ``branches``.
        fusion: The terms.
        node: The node of a graph that did it, where a graph was watched.
        follows: What took the result.
    """

    owner: str
    via: str | None
    operands: tuple[str, str]
    reverse: bool
    shape: tuple[int, ...]
    channel: int
    block: str
    fusion: str
    node: fx.Node | None
    follows: str = "output"


class Watch(TorchFunctionMode):
    """Sees every operation of a model.

    Arguments:
        model: One without hooks; it is given some that tell where in it we are.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.modules = dict(model.named_modules())
        self.calls: dict[str, Call] = {}
        self.results: dict[str, list[Any]] = {}
        self.meetings: list[Meeting] = []
        self.node: fx.Node | None = None
        self._stack: list[tuple[str, bool]] = []
        self._origins: dict[int, Origin] = {}
        self._weights: set[int] = set()
        self._sources: dict[int, tuple[str, bool]] = {}
        self._waiting: dict[int, Meeting] = {}
        self._alive: list[Any] = []  # or an id could come twice
        self._layers = 0
        self._repeats = False
        for path, module in self.modules.items():
            module.register_forward_pre_hook(self._entering(path), with_kwargs=True)
            module.register_forward_hook(self._leaving(path))

    def run(self, model: nn.Module, inputs: Sequence[Any]) -> None:
        """Run the model; its inputs are what all responses come from."""
        for tensor in _tensors(inputs):
            self._note(tensor, Origin(0, 1 if tensor.dim() == 4 else None))
        with self:
            model(*inputs)

    @contextmanager
    def again(self, path: str) -> Iterator[list[Meeting]]:
        """Watch a graph do what the module at `path` did."""
        before, self.meetings, self._stack = self.meetings, [], [(path, True)]
        self._repeats = True
        try:
            with self:
                yield self.meetings
        finally:
            self.meetings, self._stack, self.node = before, [], None
            self._repeats = False

    def recall(self, path: str) -> Any:  # noqa: ANN401
        """What the module at `path` gave, in new tensors: the old ones may be added to since."""
        ((result, origins),) = self.results[path]
        result = tree_map(lambda x: x.detach() if isinstance(x, Tensor) else x, result)
        for tensor, origin in zip(_tensors(result), origins, strict=True):
            if origin is not None:
                self._note(tensor, origin)
        return result

    def _entering(self, path: str) -> Callable[..., None]:
        def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._stack.append((path, self._repeats or path not in self.calls))
            self.calls.setdefault(path, Call(args, kwargs))
            self._alive.append((args, kwargs))

        return enter

    def _leaving(self, path: str) -> Callable[..., None]:
        def leave(_: nn.Module, args: object, result: object) -> None:
            self._stack.pop()
            for tensor in _tensors(result):
                self._sources[id(tensor)] = (path, True)
            origins = [self._origins.get(id(tensor)) for tensor in _tensors(result)]
            self.results.setdefault(path, []).append((result, origins))

        return leave

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Do what was asked for, and note what it made of what."""
        kwargs = kwargs or {}
        tensors = _tensors((args, kwargs))
        meeting = self._meeting(func, args, kwargs) if func in ADDITIONS else None
        known = [x for x in tensors if id(x) in self._origins]
        origins = [self._origins[id(x)] for x in known]
        weighted = any(isinstance(x, nn.Parameter) or id(x) in self._weights for x in tensors)
        result = args[0] + args[1] if func is fuse else func(*args, **kwargs)
        made = _tensors(args[0] if func is Tensor.__setitem__ else result)
        for tensor in tensors if made else ():
            if found := self._waiting.pop(id(tensor), None):
                found.follows = func.__name__.strip("_")
        if origins:
            layers = self._passed(origins, weighted)
            for tensor in made:
                channel = _channel(func, args[1:], kwargs, known[0], origins[0].channel, tensor)
                self._note(tensor, Origin(layers, channel, func in RELUS))
                self._sources[id(tensor)] = (func.__name__.strip("_"), False)
        elif weighted:
            self._weights |= {id(tensor) for tensor in made}
            self._alive += made
        if meeting is not None:
            self.meetings.append(meeting)
            self._waiting[id(made[0])] = meeting
        return result

    def _note(self, tensor: Tensor, origin: Origin) -> None:
        self._origins[id(tensor)] = origin
        self._alive.append(tensor)

    def _passed(self, origins: Sequence[Origin], weighted: bool) -> int:
        layers = 0
        for origin in origins:
            layers |= origin.layers
        if weighted:
            layers |= 1 << self._layers
            self._layers += 1
        return layers

    def _meeting(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Meeting | None:
        """What an addition is, if two branches meet in it, and for the first time."""
        a, b = (*args, kwargs.get("other"))[:2]
        if not _alike(a, b) or kwargs.get("alpha", 1) != 1 or not self._stack[-1][1]:
            return None
        if id(a) not in self._origins or id(b) not in self._origins:
            return None
        p, q = self._origins[id(a)], self._origins[id(b)]
        own = [(p.layers & ~q.layers).bit_count(), (q.layers & ~p.layers).bit_count()]
        reverse = own[1] < own[0]
        x, f = (b, a) if reverse else (a, b)
        channels = (q.channel, p.channel) if reverse else (p.channel, q.channel)
        channel = next((c for c in channels if c is not None), None)
        if not any(own) or channel is None:
            return None
        owner, via = self._owner()
        return Meeting(
            owner,
            via,
            (self._name(x, owner), self._name(f, owner)),
            reverse,
            tuple(a.shape),
            channel,
            "branches" if all(own) and p.rectified and q.rectified else "residual",
            "+".join(args[2]) if func is fuse else "sum",
            self.node,
        )

    def _owner(self) -> tuple[str, str | None]:
        """The module that adds; where a fusion of ours does it, the one that it stands in."""
        owner = path = self._stack[-1][0]
        while isinstance(self.modules[owner], Fusion | Moved) and owner:
            path, owner = owner, owner.rpartition(".")[0]
        return owner, path if path != owner else None

    def _name(self, tensor: Tensor, owner: str) -> str:
        """What made a tensor, as the module sees it: an argument, a child of it, a function."""
        args, kwargs = self.calls[owner]
        names = list(inspect.signature(self.modules[owner].forward).parameters)
        for name, value in [*zip(names, args, strict=False), *kwargs.items()]:
            if value is tensor:
                return name
        source, module = self._sources.get(id(tensor), ("input", False))
        prefix = f"{owner}." if owner else ""
        if not module:
            return source
        return source.removeprefix(prefix) if source.startswith(prefix) else "input"


def _tensors(values: object) -> list[Tensor]:
    return [x for x in tree_leaves(values) if isinstance(x, Tensor)]


def _alike(a: object, b: object) -> bool:
    """Whether they are responses of equal shape, of at least one number for each image."""
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return False
    return a.shape == b.shape and a.dim() > 1 and a.is_floating_point() and b.is_floating_point()


def _channel(
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    source: Tensor,
    channel: int | None,
    result: Tensor,
) -> int | None:
    """The channels' dimension of a function's result, if it can be told."""
    name, rank = func.__name__, result.dim()
    if name.startswith(SECOND) and rank > 1:
        return 1
    if name.startswith(LAST) and rank > 1:
        return rank - 1
    if channel is None:
        return None
    if name in MOVES:  # tell by a tensor whose dimensions are all of different sizes
        marked = torch.empty([2 + i for i in range(source.dim())], device="meta")
        return list(func(marked, *args, **kwargs).shape).index(2 + channel)
    if rank == source.dim() and not name.startswith(RESHAPES):
        return channel
    size, last = source.shape[channel], channel == source.dim() - 1
    if last and rank and result.shape[-1] == size:
        return rank - 1
    return channel if channel < rank and result.shape[channel] == size else None
