"""The forward of a module as a torch.fx graph, with its children as single nodes.

Only modules that own a site are traced, each by itself; the rest of the model stays unchanged.
"""

import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from functools import partial
from types import CodeType
from typing import Any

from torch import fx, nn

from sortnet.surgery.fused_add import call_with_kwargs, check_constant, other_kwargs
from sortnet.surgery.observe import Addition, Call, Observer

KWARGS = "**kwargs"
"""Stands for the rest of a forward's keyword arguments while it is traced; no argument has it."""


@dataclass
class TracedModule:
    """The forward of a module in training and in evaluation mode, and its additions.

    Attributes:
        graphs: The graphs, by whether the module is training.
        additions: The additions of each graph, in order.
        problem: Why the module could not be traced, if so.
    """

    graphs: dict[bool, fx.Graph] = field(default_factory=dict)
    additions: dict[bool, list[Addition]] = field(default_factory=dict)
    problem: str | None = None


def trace_module(observer: Observer, path: str, observed: Sequence[Addition]) -> TracedModule:
    """Trace the module at a path and find its additions in the graphs.

    A forward that branches on numbers it was given is traced for these numbers only.

    Arguments:
        observer: The observer that has seen the model run.
        path: The module.
        observed: The additions seen in it; a graph with others cannot be used.
    """
    module = observer.modules[path]
    training, problem = module.training, ""
    try:
        for fixed_numbers in (False, True):
            try:
                return _trace(observer, path, observed, fixed_numbers)
            except Exception as error:  # a forward may raise anything when it is traced
                problem = problem or one_line(error)
    finally:
        module.training = training
    return TracedModule(problem=problem)


def _trace(
    observer: Observer, path: str, observed: Sequence[Addition], fixed_numbers: bool
) -> TracedModule:
    traced, module = TracedModule(), observer.modules[path]
    for training in (False, True):
        module.training = training
        tracer = _Tracer(observer.calls[path], fixed_numbers)
        if not observer.is_called_alike(path, tracer.constants):
            raise ValueError("it is called several times, with different arguments")
        graph = tracer.trace(module)
        if training and str(graph) == str(traced.graphs[False]):
            traced.graphs[True] = traced.graphs[False]
            traced.additions[True] = traced.additions[False]
        else:
            traced.graphs[training] = graph
            traced.additions[training] = _find_additions(observer, path, graph, observed)
    return traced


def one_line(error: BaseException) -> str:
    """Return the type of an error and the first sentence of its message."""
    lines = str(error).strip().splitlines()
    return ": ".join([type(error).__name__, *(line.split(". ")[0] for line in lines[:1])])


def _find_additions(
    observer: Observer, path: str, graph: fx.Graph, observed: Sequence[Addition]
) -> list[Addition]:
    """Run the graph on the arguments of the module and return its additions."""
    with observer.replay(path) as additions:
        call = observer.arguments(path)
        bound = inspect.signature(observer.modules[path].forward).bind(*call.args, **call.kwargs)
        bound.apply_defaults()
        _Replay(observer, path, graph).run(*bound.arguments.values())
    own = [addition for addition in additions if addition.owner == path]
    if len(own) != len(observed):
        raise ValueError(f"its graph has {len(own)} sites, it has {len(observed)}")
    for addition, first in zip(own, observed, strict=True):
        addition.follows = first.follows  # which may be in another module
    return own


class _Replay(fx.Interpreter):
    """Runs the graph of a module and tells the observer the current node."""

    def __init__(self, observer: Observer, path: str, graph: fx.Graph) -> None:
        super().__init__(observer.modules[path], graph=graph)
        self.observer, self.path = observer, path

    def run_node(self, n: fx.Node) -> Any:  # noqa: ANN401
        self.observer.node = n
        return super().run_node(n)

    def placeholder(self, target: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        """Return an argument; the base class does not know ``**kwargs``."""
        return next(self.args_iter)

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        """Reuse what a child returned when the model ran, which is much faster."""
        path = f"{self.path}.{target}" if self.path else target
        if self.observer.has_result(path):
            return self.observer.result(path)
        return super().call_module(target, args, kwargs)


class _Tracer(fx.Tracer):
    """Traces one module with the arguments of a call.

    Tensors, and numbers unless they are fixed, become inputs of the graph. None, flags, strings
    and arguments that were not given are constants, and the converted module refuses other values;
    so a forward may contain ``if mask is not None``. Other ``**kwargs`` are passed on to children.
    """

    proxy_buffer_attributes = True

    def __init__(self, call: Call, fixed_numbers: bool) -> None:
        super().__init__()
        self.call = call
        self.constants = (bool, str, int, float) if fixed_numbers else (bool, str)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: object = None
    ) -> tuple[Callable[..., Any], list[Any]]:
        assert isinstance(self.root, nn.Module)
        signature = inspect.signature(self.root.forward)
        given = signature.bind(*self.call.args, **self.call.kwargs).arguments
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for name, parameter in signature.parameters.items():
            if parameter.kind is parameter.VAR_POSITIONAL:
                proxy = self.create_proxy("placeholder", f"*{name}", (), {})
                args += self._value(name, proxy, given.get(name, ()))
            elif parameter.kind is parameter.VAR_KEYWORD:
                proxy = self.create_proxy("placeholder", f"**{name}", (), {})
                kwargs |= self._kwargs(proxy, given.get(name, {}))
            else:
                value = self._argument(parameter, given)
                if parameter.kind is parameter.KEYWORD_ONLY:
                    kwargs[name] = value
                else:
                    args.append(value)
        return partial(root_fn, self.root, *args, **kwargs), []

    def _argument(self, parameter: inspect.Parameter, given: Mapping[str, Any]) -> Any:  # noqa: ANN401
        name, default = parameter.name, parameter.default
        defaults = () if default is parameter.empty else (default,)
        proxy = self.create_proxy("placeholder", name, defaults, {})
        if name not in given:
            return self._constant(name, proxy, default)
        return self._value(name, proxy, given[name])

    def _value(self, name: str, proxy: Any, value: Any) -> Any:  # noqa: ANN401
        """Return what the forward sees in place of an argument."""
        if value is None or isinstance(value, self.constants):
            return self._constant(name, proxy, value)
        if type(value) in (list, tuple):  # has a length and can be unpacked
            self._constant(f"len({name})", self._call(len, proxy), len(value))
            items = [self._value(f"{name}[{i}]", proxy[i], x) for i, x in enumerate(value)]
            return type(value)(items)
        if type(value) in (dict, OrderedDict):
            self._constant(f"list({name})", self._call(list, proxy), list(value))
            return type(value)(
                (key, self._value(f"{name}[{key!r}]", proxy[key], x)) for key, x in value.items()
            )
        return proxy

    def _constant(self, name: str, proxy: Any, value: Any) -> Any:  # noqa: ANN401
        self._call(check_constant, proxy, value, name)
        return value

    def _call(self, function: Callable[..., Any], *args: Any) -> fx.Proxy:  # noqa: ANN401
        return self.create_proxy("call_function", function, args, {})

    def _kwargs(self, proxy: Any, given: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ANN401
        """Return the ``**kwargs`` the forward sees: those it reads, and one entry for the rest."""
        mentioned = _mentioned_names(self.root.forward)
        read = {name: value for name, value in given.items() if name in mentioned}
        values = {name: self._value(name, proxy.get(name), value) for name, value in read.items()}
        unknown = sorted(mentioned - read.keys())
        return values | {KWARGS: self._call(other_kwargs, proxy, list(read), unknown)}

    def call_module(
        self,
        m: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:  # noqa: ANN401
        if KWARGS not in kwargs:
            return super().call_module(m, forward, args, kwargs)
        child = self.create_proxy("get_attr", self.path_of_module(m), (), {})
        others = kwargs.pop(KWARGS)
        return self._call(call_with_kwargs, child, args, kwargs, others)

    def create_node(
        self,
        kind: str,
        target: Any,  # noqa: ANN401
        args: Any,  # noqa: ANN401
        kwargs: Any,  # noqa: ANN401
        *options: Any,  # noqa: ANN401
        **named: Any,  # noqa: ANN401
    ) -> fx.Node:
        if KWARGS in kwargs:
            raise ValueError(f"its forward passes its keyword arguments on to {target}")
        return super().create_node(kind, target, args, kwargs, *options, **named)

    def create_arg(self, a: Any) -> Any:  # noqa: ANN401
        if isinstance(a, dict) and is_dataclass(a):  # Hugging Face's outputs
            fields = {name: self.create_arg(value) for name, value in a.items()}
            return self.create_node("call_function", type(a), (), fields)
        if type(a) is OrderedDict:
            items = [(key, self.create_arg(value)) for key, value in a.items()]
            return self.create_node("call_function", OrderedDict, (items,), {})
        created = super().create_arg(a)
        if isinstance(created, fx.Node) and str(created.target).startswith("_tensor_constant"):
            raise ValueError("its forward creates tensors that do not depend on its input")
        return created


def _mentioned_names(forward: Any) -> set[str]:  # noqa: ANN401
    """Return the identifiers that appear as strings in a forward and its decorators.

    A forward that reads ``kwargs["mask"]`` mentions ``mask``; one that only passes ``**kwargs``
    on mentions nothing.
    """
    names: set[str] = set()
    while forward is not None:
        names |= {s for s in _strings(getattr(forward, "__code__", None)) if s.isidentifier()}
        forward = getattr(forward, "__wrapped__", None)
    return names


def _strings(code: CodeType | None) -> Iterator[str]:
    for constant in code.co_consts if code is not None else ():
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, CodeType):
            yield from _strings(constant)
