"""Replace additions of a module by fusions: same object, same keys, a new forward."""

import linecache
import operator
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import count
from types import ModuleType
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import fx, nn

from sortnet.surgery.fused_add import defer_batch_norm, ends_in_batch_norm, fused_add
from sortnet.surgery.observe import Addition
from sortnet.surgery.trace import TracedModule

RELUS = (F.relu, torch.relu, "relu", "relu_")
IN_PLACE = (operator.iadd, "add_")
Forward = Callable[..., Any]
_file_numbers = count(1)


def rewire(module: nn.Module, traced: TracedModule, attributes: dict[int, str]) -> None:
    """Give a module a forward that calls its fusions.

    Its class becomes a subclass of the class it had, so ``isinstance`` still holds.

    Arguments:
        module: The traced module, or a copy of it.
        traced: Its graphs.
        attributes: The names of the fusions among its children, by the index of the site.
    """
    sources: dict[fx.Graph, ForwardSource] = {}
    for training, graph in traced.graphs.items():
        if graph not in sources:  # most forwards are the same in training and evaluation
            _replace_additions(graph, module, traced.additions[training], attributes)
            graph.lint()
            sources[graph] = ForwardSource.from_graph(graph)
    base = type(module)
    base = base.sortnet_base if issubclass(base, Rewired) else base
    module.__class__ = _subclass(base, sources[traced.graphs[True]], sources[traced.graphs[False]])


class ModuleName(NamedTuple):
    """A Python module, by name: module objects cannot be copied or pickled."""

    name: str


class ForwardSource(NamedTuple):
    """The source code of a forward and the globals that it uses."""

    source: str
    names: dict[str, Any]

    @classmethod
    def from_graph(cls, graph: fx.Graph) -> "ForwardSource":
        """Generate the code of a graph."""
        code = graph.python_code("self")
        names = {
            name: ModuleName(value.__name__) if isinstance(value, ModuleType) else value
            for name, value in code.globals.items()
        }
        return cls(code.src, names)

    def compile(self, name: str) -> Forward:
        """Return the function; tracebacks and debuggers show its source."""
        file = f"<sortnet {next(_file_numbers)}: {name}>"
        lines = self.source.splitlines(keepends=True)
        linecache.cache[file] = (len(self.source), None, lines, file)
        scope: dict[str, Any] = {
            name: import_module(value.name) if isinstance(value, ModuleName) else value
            for name, value in self.names.items()
        }
        exec(compile(self.source, file, "exec"), scope)
        forward: Forward = scope["forward"]
        return forward


class Rewired(nn.Module):
    """Base of all classes with a generated forward: how they are copied and pickled."""

    sortnet_base: type[nn.Module]  # names that no model uses
    sortnet_sources: tuple[ForwardSource, ForwardSource]

    def __reduce_ex__(self, protocol: Any) -> Any:  # noqa: ANN401
        _, _, *rest = cast("tuple[Any, ...]", super().__reduce_ex__(protocol))
        return _new, (self.sortnet_base, *self.sortnet_sources), *rest


def _new(base: type[nn.Module], training: ForwardSource, evaluation: ForwardSource) -> nn.Module:
    cls = _subclass(base, training, evaluation)
    return cls.__new__(cls)


_classes: dict[tuple[type[nn.Module], str, str], type[nn.Module]] = {}


def _subclass(
    base: type[nn.Module], training: ForwardSource, evaluation: ForwardSource
) -> type[nn.Module]:
    """Return a subclass with another forward; equal blocks share one class."""
    key = base, training.source, evaluation.source
    if key not in _classes:
        in_training = training.compile(base.__name__)
        in_evaluation = evaluation.compile(base.__name__)

        def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            return (in_training if self.training else in_evaluation)(self, *args, **kwargs)

        body = {
            "forward": in_training if key[1] == key[2] else forward,
            "sortnet_base": base,
            "sortnet_sources": (training, evaluation),
            "__module__": base.__module__,
            "__qualname__": base.__qualname__,
            "__doc__": base.__doc__,
        }
        _classes[key] = type(base.__name__, (Rewired, base), body)
    return _classes[key]


def _replace_additions(
    graph: fx.Graph, module: nn.Module, additions: Sequence[Addition], attributes: dict[int, str]
) -> None:
    for index, attribute in attributes.items():
        addition = additions[index]
        node = addition.node
        assert node is not None
        left, right = _operands(node)
        relu, last = _following_relu(node, module)
        x, f = (_defer_batch_norm(graph, module, operand, node) for operand in (left, right))
        if addition.reverse:
            x, f = f, x
        used = {x, f}
        with graph.inserting_before(node):
            fused = graph.call_function(fused_add, (graph.get_attr(attribute), x, f, relu))
        if node.target in IN_PLACE:  # later uses of the operand mean the result
            _replace_later_uses(left, node, fused)
        last.replace_all_uses_with(fused)
        for old in dict.fromkeys((last, node)):
            graph.erase_node(old)
        for operand in {left, right} - used:
            graph.erase_node(operand)


def _operands(node: fx.Node) -> tuple[fx.Node, fx.Node]:
    left, right = (*node.args, node.kwargs.get("other"))[:2]
    assert isinstance(left, fx.Node)
    assert isinstance(right, fx.Node)
    return left, right


def _following_relu(node: fx.Node, module: nn.Module) -> tuple[fx.Node | bool, fx.Node]:
    """Return the ReLU that is the only user of the result, if any, and the last node replaced."""
    if len(node.users) == 1:
        (user,) = node.users
        if user.op != "call_module":
            return (True, user) if user.target in RELUS else (False, node)
        assert isinstance(user.target, str)
        if type(module.get_submodule(user.target)) is nn.ReLU:
            with node.graph.inserting_before(node):
                return node.graph.get_attr(user.target), user
    return False, node


def _defer_batch_norm(
    graph: fx.Graph, module: nn.Module, operand: fx.Node, node: fx.Node
) -> fx.Node:
    """Return the operand without a final batch normalization that has no other user."""
    if operand.op != "call_module" or len(operand.args) != 1 or operand.kwargs:
        return operand
    assert isinstance(operand.target, str)
    child = module.get_submodule(operand.target)
    if list(operand.users) != [node] or not ends_in_batch_norm(child):
        return operand
    with graph.inserting_before(operand):
        return graph.call_function(
            defer_batch_norm, (graph.get_attr(operand.target), *operand.args)
        )


def _replace_later_uses(old: fx.Node, at: fx.Node, new: fx.Node) -> None:
    order = {node: i for i, node in enumerate(old.graph.nodes)}
    for user in list(old.users):
        if order[user] > order[at]:
            user.replace_input_with(old, new)
