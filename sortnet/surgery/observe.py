"""Observe a model while it runs: which tensors it adds, and in which module.

Nothing is traced here, so any model that runs can be observed. For each tensor we record which
layers (applications of weights) it has passed through, as bits of an integer. An addition of two
tensors that have not passed through the same layers is one where branches meet. Excluded are
parameters and position embeddings, two parts of the same tensor (rotary embeddings), and attention
logits, which have no channels.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from sortnet.fusion import Fusion, fuse
from sortnet.fusion.private import tree_leaves, tree_map
from sortnet.surgery.fused_add import ChannelDimFusion

ADDITIONS = (torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__iadd__, fuse)
CONCATENATIONS = (torch.cat, torch.concat, torch.concatenate)
RELUS = (F.relu, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_)
CHANNELS_SECOND = ("conv", "batch_norm", "group_norm", "instance_norm")
CHANNELS_LAST = ("linear", "layer_norm", "rms_norm", "embedding", "multi_head_attention")
"""Prefixes of the names of functions whose results have the channels in that dimension."""
RESHAPES = ("view", "reshape", "einsum", "matmul", "bmm")
PERMUTATIONS = ("permute", "transpose", "movedim", "moveaxis", "swapaxes", "swapdims")


class Origin(NamedTuple):
    """The history of a tensor.

    Attributes:
        layers: The layers it has passed through, as bits.
        channel_dim: The dimension of its channels, if known.
        rectified: Whether ReLU was applied last.
    """

    layers: int
    channel_dim: int | None
    rectified: bool = False


class Call(NamedTuple):
    """The arguments of a module's first call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Snapshot(NamedTuple):
    """A value and the origins of its tensors at a moment; in-place operations change them."""

    value: Any
    origins: list[Origin | None]


@dataclass(eq=False)
class Addition:
    """An observed addition of two branches.

    Attributes:
        owner: The path of the module whose forward adds.
        fusion_path: The path of our fusion module, if the model has one here already.
        operands: The sources of the shortcut and of the branch.
        reverse: Whether the shortcut is the second operand.
        shape: The shape of both.
        channel_dim: The dimension of the channels.
        block: ``residual`` or ``branches``.
        fusion: The terms.
        node: The node of the graph, if a graph was observed.
        follows: The operation that uses the result.
    """

    owner: str
    fusion_path: str | None
    operands: tuple[str, str]
    reverse: bool
    shape: tuple[int, ...]
    channel_dim: int
    block: str
    fusion: str
    node: fx.Node | None
    follows: str = "output"


class Observer(TorchFunctionMode):
    """Records every operation of a model.

    Arguments:
        model: A copy without hooks; the observer registers its own.

    Attributes:
        modules: The model's modules by path.
        calls: The arguments of each module's first call.
        additions: The additions of two branches, in order.
        concatenates: Whether branches are concatenated.
        node: The node that is being executed, if a graph is observed.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.modules = dict(model.named_modules())
        self.calls: dict[str, Call] = {}
        self.additions: list[Addition] = []
        self.concatenates = False
        self.node: fx.Node | None = None
        self._arguments: dict[str, list[Any]] = {}
        self._inputs: dict[str, Snapshot] = {}
        self._results: dict[str, list[Snapshot]] = {}
        self._stack: list[tuple[str, bool]] = []  # module, whether this is its first call
        self._origins: dict[int, Origin] = {}
        self._weights: set[int] = set()
        self._sources: dict[int, tuple[str, bool]] = {}  # name, whether it is a module's path
        self._unused: dict[int, Addition] = {}
        self._alive: list[Any] = []  # an id must not be used twice
        self._layers = 0
        self._replaying = False
        self._handles = [
            handle
            for path, module in self.modules.items()
            for handle in (
                module.register_forward_pre_hook(self._enter(path), with_kwargs=True),
                module.register_forward_hook(self._leave(path)),
            )
        ]

    def run(self, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Run the model on its inputs."""
        for tensor in _tensors((args, kwargs)):
            self._record(tensor, Origin(0, 1 if tensor.dim() == 4 else None))
        with self:
            model(*args, **kwargs)

    def release(self) -> None:
        """Drop all tensors; hooks would otherwise keep them until garbage collection."""
        for handle in self._handles:
            handle.remove()
        self.modules, self.calls, self._arguments = {}, {}, {}
        self._inputs, self._results, self._alive = {}, {}, []

    @contextmanager
    def replay(self, path: str) -> Iterator[list[Addition]]:
        """Observe a graph that is run in place of the module at `path`."""
        before, self.additions, self._stack = self.additions, [], [(path, True)]
        self._replaying = True
        try:
            with self:
                yield self.additions
        finally:
            self.additions, self._stack, self.node = before, [], None
            self._replaying = False

    def arguments(self, path: str) -> Call:
        """Return what the module at `path` was called with."""
        return Call(*self._restore(self._inputs[path]))

    def is_called_alike(self, path: str, constants: tuple[type, ...]) -> bool:
        """Return True if all calls of a module have the same arguments of the given types."""
        first, *others = (
            tree_map(lambda x: x if isinstance(x, constants) else type(x), arguments)
            for arguments in self._arguments[path]
        )
        return all(other == first for other in others)

    def has_result(self, path: str) -> bool:
        """Return True if the module at `path` was called exactly once."""
        return len(self._results.get(path, ())) == 1

    def result(self, path: str) -> Any:  # noqa: ANN401
        """Return what the module at `path` returned."""
        return self._restore(self._results[path][0])

    def _snapshot(self, value: Any) -> Snapshot:  # noqa: ANN401
        return Snapshot(value, [self._origins.get(id(tensor)) for tensor in _tensors(value)])

    def _restore(self, snapshot: Snapshot) -> Any:  # noqa: ANN401
        detach = lambda x: x.detach() if isinstance(x, Tensor) else x  # noqa: E731
        value = tree_map(detach, snapshot.value)
        for tensor, origin in zip(_tensors(value), snapshot.origins, strict=True):
            if origin is not None:
                self._record(tensor, origin)
        return value

    def _enter(self, path: str) -> Callable[..., None]:
        def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            first = path not in self.calls
            self._stack.append((path, first or self._replaying))
            if first:
                self.calls[path] = Call(args, kwargs)
                self._inputs[path] = self._snapshot((args, kwargs))
            if not self._replaying:
                self._arguments.setdefault(path, []).append((args, kwargs))
            self._alive.append((args, kwargs))

        return enter

    def _leave(self, path: str) -> Callable[..., None]:
        def leave(_: nn.Module, args: object, result: object) -> None:
            self._stack.pop()
            for tensor in _tensors(result):
                self._sources[id(tensor)] = (path, True)
            self._results.setdefault(path, []).append(self._snapshot(result))

        return leave

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Call the function and record the origins of its results."""
        kwargs = kwargs or {}
        tensors = _tensors((args, kwargs))
        addition = self._addition(func, args, kwargs) if func in ADDITIONS else None
        known = [x for x in tensors if id(x) in self._origins]
        origins = [self._origins[id(x)] for x in known]
        weighted = any(isinstance(x, nn.Parameter) or id(x) in self._weights for x in tensors)
        result = args[0] + args[1] if func is fuse else func(*args, **kwargs)
        results = _tensors(args[0] if func is Tensor.__setitem__ else result)
        name = func.__name__.strip("_")
        for tensor in tensors if results else ():
            if unused := self._unused.pop(id(tensor), None):
                unused.follows = name
        if origins:
            self.concatenates |= func in CONCATENATIONS and len(set(origins)) > 1
            layers = self._passed(origins, weighted)
            for tensor in results:
                dim = _channel_dim(func, args[1:], kwargs, known[0], origins[0], tensor)
                self._record(tensor, Origin(layers, dim, func in RELUS))
                self._sources[id(tensor)] = (name, False)
        elif weighted:
            self._weights |= {id(tensor) for tensor in results}
            self._alive += results
        if addition is not None:
            self.additions.append(addition)
            self._unused[id(results[0])] = addition
        return result

    def _record(self, tensor: Tensor, origin: Origin) -> None:
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

    def _addition(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Addition | None:
        """Describe an addition if two branches meet in it, in the first call of its module."""
        a, b = (*args, kwargs.get("other"))[:2]
        if not self._stack or not self._stack[-1][1]:
            return None
        if not _same_shape(a, b) or kwargs.get("alpha", 1) != 1:
            return None
        if id(a) not in self._origins or id(b) not in self._origins:
            return None
        p, q = self._origins[id(a)], self._origins[id(b)]
        own = [(p.layers & ~q.layers).bit_count(), (q.layers & ~p.layers).bit_count()]
        reverse = own[1] < own[0]
        x, f = (b, a) if reverse else (a, b)
        dims = (q.channel_dim, p.channel_dim) if reverse else (p.channel_dim, q.channel_dim)
        channel_dim = next((dim for dim in dims if dim is not None), None)
        if not any(own) or channel_dim is None:
            return None
        owner, fusion_path = self._owner()
        return Addition(
            owner,
            fusion_path,
            (self._source(x, owner), self._source(f, owner)),
            reverse,
            tuple(a.shape),
            channel_dim,
            "branches" if all(own) and p.rectified and q.rectified else "residual",
            "+".join(args[2]) if func is fuse else "sum",
            self.node,
        )

    def _owner(self) -> tuple[str, str | None]:
        """Return the module that adds and, if it uses one, the path of our fusion in it."""
        owner = path = self._stack[-1][0]
        while isinstance(self.modules[owner], Fusion | ChannelDimFusion) and owner:
            path, owner = owner, owner.rpartition(".")[0]
        return owner, path if path != owner else None

    def _source(self, tensor: Tensor, owner: str) -> str:
        """Name the source of a tensor as its module sees it: an argument, a child, a function."""
        args, kwargs = self.calls[owner]
        names = list(inspect.signature(self.modules[owner].forward).parameters)
        for name, value in [*zip(names, args, strict=False), *kwargs.items()]:
            if value is tensor:
                return name
        source, is_module = self._sources.get(id(tensor), ("input", False))
        prefix = f"{owner}." if owner else ""
        if not is_module:
            return source
        return source.removeprefix(prefix) if source.startswith(prefix) else "input"


def _tensors(values: object) -> list[Tensor]:
    return [x for x in tree_leaves(values) if isinstance(x, Tensor)]


def _same_shape(a: object, b: object) -> bool:
    """Return True for floating-point tensors of one shape with at least two dimensions."""
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return False
    return a.shape == b.shape and a.dim() > 1 and a.is_floating_point() and b.is_floating_point()


def _channel_dim(
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    source: Tensor,
    origin: Origin,
    result: Tensor,
) -> int | None:
    """Return the channel dimension of a function's result, or None if it is unknown."""
    name, rank, dim = func.__name__, result.dim(), origin.channel_dim
    if name.startswith(CHANNELS_SECOND) and rank > 1:
        return 1
    if name.startswith(CHANNELS_LAST) and rank > 1:
        return rank - 1
    if dim is None:
        return None
    if name in PERMUTATIONS:  # apply it to a tensor whose dimensions all differ in size
        marked = torch.empty([2 + i for i in range(source.dim())], device="meta")
        return list(func(marked, *args, **kwargs).shape).index(2 + dim)
    if rank == source.dim() and not name.startswith(RESHAPES):
        return dim
    size, last = source.shape[dim], dim == source.dim() - 1
    if last and rank and result.shape[-1] == size:
        return rank - 1
    return dim if dim < rank and result.shape[dim] == size else None
