"""A module with other fusions in place of its additions: same object, same keys, new forward."""

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

from sortnet.surgery.fused_add import meet, normalises, unfinished
from sortnet.surgery.observe import Meeting
from sortnet.surgery.trace import Traced

RELUS = (F.relu, torch.relu, "relu", "relu_")
IN_PLACE = (operator.iadd, "add_")
Forward = Callable[..., Any]
_number = count(1)


def rewire(module: nn.Module, found: Traced, attributes: dict[int, str]) -> None:
    """Give a module a forward that calls its own fusions.

    Its class becomes one derived from the class it had, so that what knows the class still does.

    Arguments:
        module: The module that was traced, or a copy of it.
        found: Its graphs.
        attributes: By the number of the place, the name of the child that fuses there.
    """
    codes: dict[fx.Graph, Code] = {}
    for training, graph in found.graphs.items():
        if graph not in codes:  # most forwards are the same in training and in evaluation
            _exchange(graph, module, found.meetings[training], attributes)
            graph.lint()
            codes[graph] = Code.of(graph)
    base = type(module)
    base = base.sortnet_base if issubclass(base, Rewired) else base
    module.__class__ = derived(base, codes[found.graphs[True]], codes[found.graphs[False]])


class Imported(NamedTuple):
    """A module that code names; by its own name, for a module cannot be copied or pickled."""

    name: str


class Code(NamedTuple):
    """A forward as source, and what its names mean."""

    source: str
    names: dict[str, Any]

    @classmethod
    def of(cls, graph: fx.Graph) -> "Code":
        """The code of a graph."""
        made = graph.python_code("self")
        names = {
            name: Imported(value.__name__) if isinstance(value, ModuleType) else value
            for name, value in made.globals.items()
        }
        return cls(made.src, names)

    def compiled(self, name: str) -> Forward:
        """The function, whose source can be seen in tracebacks and debuggers."""
        file = f"<sortnet {next(_number)}: {name}>"
        lines = self.source.splitlines(keepends=True)
        linecache.cache[file] = (len(self.source), None, lines, file)
        scope: dict[str, Any] = {
            name: import_module(value.name) if isinstance(value, Imported) else value
            for name, value in self.names.items()
        }
        exec(compile(self.source, file, "exec"), scope)
        forward: Forward = scope["forward"]
        return forward


class Rewired(nn.Module):
    """What classes of changed modules have in common: how they are copied and pickled."""

    sortnet_base: type[nn.Module]  # names that no model has
    sortnet_codes: tuple[Code, Code]

    def __reduce_ex__(self, protocol: Any) -> Any:  # noqa: ANN401
        _, _, *rest = cast("tuple[Any, ...]", super().__reduce_ex__(protocol))
        return _new, (self.sortnet_base, *self.sortnet_codes), *rest


def _new(base: type[nn.Module], training: Code, evaluation: Code) -> nn.Module:
    cls = derived(base, training, evaluation)
    return cls.__new__(cls)


_classes: dict[tuple[type[nn.Module], str, str], type[nn.Module]] = {}


def derived(base: type[nn.Module], training: Code, evaluation: Code) -> type[nn.Module]:
    """The class with another forward; equal blocks have the same one."""
    key = base, training.source, evaluation.source
    if key not in _classes:
        learning = training.compiled(base.__name__)
        judging = evaluation.compiled(base.__name__)

        def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            return (learning if self.training else judging)(self, *args, **kwargs)

        body = {
            "forward": learning if key[1] == key[2] else forward,
            "sortnet_base": base,
            "sortnet_codes": (training, evaluation),
            "__module__": base.__module__,
            "__doc__": base.__doc__,
        }
        _classes[key] = type(base.__name__, (Rewired, base), body)
    return _classes[key]


def _exchange(
    graph: fx.Graph, module: nn.Module, meetings: Sequence[Meeting], attributes: dict[int, str]
) -> None:
    for index, attribute in attributes.items():
        meeting = meetings[index]
        node = meeting.node
        assert node is not None
        left, right = _operands(node)
        relu, last = _activation(node, module)
        x, f = (_unfinished(graph, module, operand, node) for operand in (left, right))
        if meeting.reverse:
            x, f = f, x
        made = {x, f}
        with graph.inserting_before(node):
            fused = graph.call_function(meet, (graph.get_attr(attribute), x, f, relu))
        if node.target in IN_PLACE:  # what reads the operand later means the result
            _rename(left, node, fused)
        last.replace_all_uses_with(fused)
        for old in dict.fromkeys((last, node)):
            graph.erase_node(old)
        for operand in {left, right} - made:  # done by what took its place
            graph.erase_node(operand)


def _operands(node: fx.Node) -> tuple[fx.Node, fx.Node]:
    left, right = (*node.args, node.kwargs.get("other"))[:2]
    assert isinstance(left, fx.Node)
    assert isinstance(right, fx.Node)
    return left, right


def _activation(node: fx.Node, module: nn.Module) -> tuple[fx.Node | bool, fx.Node]:
    """The ReLU that is all that takes the result, and the last node that it is done by."""
    if len(node.users) == 1:
        (user,) = node.users
        if user.op != "call_module":
            return (True, user) if user.target in RELUS else (False, node)
        assert isinstance(user.target, str)
        if type(module.get_submodule(user.target)) is nn.ReLU:
            with node.graph.inserting_before(node):
                return node.graph.get_attr(user.target), user
    return False, node


def _unfinished(graph: fx.Graph, module: nn.Module, operand: fx.Node, node: fx.Node) -> fx.Node:
    """The operand, but for a last batch normalisation that nobody else needs."""
    if operand.op != "call_module" or len(operand.args) != 1 or operand.kwargs:
        return operand
    assert isinstance(operand.target, str)
    if list(operand.users) != [node] or not normalises(module.get_submodule(operand.target)):
        return operand
    with graph.inserting_before(operand):
        child = graph.get_attr(operand.target)
        return graph.call_function(unfinished, (child, *operand.args))


def _rename(old: fx.Node, at: fx.Node, new: fx.Node) -> None:
    """Let what comes after a node read another one."""
    order = {node: i for i, node in enumerate(old.graph.nodes)}
    for user in list(old.users):
        if order[user] > order[at]:
            user.replace_input_with(old, new)
