"""A module's forward as a graph, its children left whole, and the places in it.

Only modules that add are traced, each by itself: everything else of a model stays what it is.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import fx, nn

from sortnet.surgery.fused_add import expect
from sortnet.surgery.observe import Call, Meeting, Watch


@dataclass
class Traced:
    """A module's forward, in training and in evaluation, and where it adds.

    Attributes:
        graphs: The graphs, by whether the module is training.
        meetings: The additions in each, in order.
        problem: Why there are none, if so.
    """

    graphs: dict[bool, fx.Graph] = field(default_factory=dict)
    meetings: dict[bool, list[Meeting]] = field(default_factory=dict)
    problem: str | None = None


def traced(watch: Watch, path: str, seen: Sequence[Meeting]) -> Traced:
    """Trace the module at a path and find its additions in the graphs.

    Arguments:
        watch: What saw the model run.
        path: The module.
        seen: The places that were seen in it; a graph that has others is of no use.
    """
    found, module = Traced(), watch.modules[path]
    before = module.training
    try:
        for training in (False, True):
            module.training = training
            graph = _Tracer(watch.calls[path]).trace(module)
            if training and str(graph) == str(found.graphs[False]):
                found.graphs[True], found.meetings[True] = (
                    found.graphs[False],
                    found.meetings[False],
                )
                break
            meetings = _places(watch, path, graph)
            if len(meetings) != len(seen):
                raise ValueError(f"its graph has {len(meetings)} places, it has {len(seen)}")
            for meeting, first in zip(meetings, seen, strict=True):
                meeting.follows = first.follows  # which may be in another module
            found.graphs[training], found.meetings[training] = graph, meetings
    except Exception as error:  # whatever somebody's forward may say when it is traced
        return Traced(problem=first_line(error))
    finally:
        module.training = before
    return found


def first_line(error: BaseException) -> str:
    """An error in one line."""
    lines = str(error).strip().splitlines()
    return ": ".join([type(error).__name__, *lines[:1]])


def _places(watch: Watch, path: str, graph: fx.Graph) -> list[Meeting]:
    """The places of a graph, seen while it runs on what the module was called with."""
    module, (args, kwargs) = watch.modules[path], watch.calls[path]
    bound = inspect.signature(module.forward).bind(*args, **kwargs)
    bound.apply_defaults()
    with watch.again(path) as meetings:
        _Runner(watch, path, graph).run(*bound.arguments.values())
    return [meeting for meeting in meetings if meeting.owner == path]


class _Runner(fx.Interpreter):
    """Runs a module's graph and tells the watch which node it is at."""

    def __init__(self, watch: Watch, path: str, graph: fx.Graph) -> None:
        super().__init__(watch.modules[path], graph=graph)
        self.watch, self.path = watch, path

    def run_node(self, n: fx.Node) -> Any:  # noqa: ANN401
        self.watch.node = n
        return super().run_node(n)

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        """Run a child, or take what it gave when it ran, which is much faster."""
        path = f"{self.path}.{target}" if self.path else target
        if len(self.watch.results.get(path, ())) == 1:
            return self.watch.recall(path)
        return super().call_module(target, args, kwargs)


class _Tracer(fx.Tracer):
    """Traces one module as it was called.

    Tensors and numbers that it was given stay free; None, flags and defaults are settled, and the
    graph refuses others. So a forward may ask ``if mask is not None``.
    """

    proxy_buffer_attributes = True

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: object = None
    ) -> tuple[Callable[..., Any], list[Any]]:
        assert isinstance(self.root, nn.Module)
        signature = inspect.signature(self.root.forward)
        given = signature.bind(*self.call.args, **self.call.kwargs).arguments
        values = {}
        for name, parameter in signature.parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                if name in given:
                    raise ValueError(f"it is called with any number of arguments, {parameter}")
                continue
            bare = parameter.default is parameter.empty
            proxy = self.create_proxy(
                "placeholder", name, () if bare else (parameter.default,), {}
            )
            values[name] = self._value(
                name, proxy, given.get(name, parameter.default), name in given
            )
        return partial(root_fn, self.root, **values), []

    def _value(self, name: str, proxy: fx.Proxy, value: Any, given: bool) -> Any:  # noqa: ANN401
        if not given or value is None or isinstance(value, bool | str):
            self.create_proxy("call_function", expect, (proxy, value, name), {})
            return value
        if isinstance(value, list | tuple):  # so that it has a length and can be unpacked
            items: Any = proxy
            return [items[i] for i in range(len(value))]
        return proxy

    def create_arg(self, a: Any) -> Any:  # noqa: ANN401
        made = super().create_arg(a)
        if isinstance(made, fx.Node) and str(made.target).startswith("_tensor_constant"):
            raise ValueError("its forward makes tensors that do not come from its input")
        return made
