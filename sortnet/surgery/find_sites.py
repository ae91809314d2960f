"""Find all sites of a model: run a copy of it once, then trace the modules that add."""

import copy
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sortnet.fusion.private import tree_leaves, tree_map
from sortnet.surgery.observe import Addition, Call, Observer
from sortnet.surgery.site import Site
from sortnet.surgery.trace import TracedModule, one_line, trace_module

Example = Tensor | list[Any] | tuple[Any, ...] | Mapping[str, Any]
"""A model's input: one argument, a tuple of arguments, or a dict of keyword arguments."""

IMAGE_SIZE = 224
"""Side of the example image for a model that does not state its input size."""


@dataclass(frozen=True)
class TracedSite:
    """A site and what is needed to change it.

    Attributes:
        site: Its description.
        fusion_path: The path of our fusion module, if there is one already.
        module: The traced module, if an addition has to be replaced.
    """

    site: Site
    fusion_path: str | None
    module: TracedModule | None


@dataclass(frozen=True)
class Search:
    """What a model has: its sites, and whether it concatenates branches."""

    sites: list[TracedSite]
    concatenates: bool


def find_sites(model: nn.Module, example: Example | None = None) -> Search:
    """Find every addition of two branches, in the order of execution.

    The model is run on meta tensors. If that fails, because it reads values or because an
    operation has no meta implementation, it is run on real tensors.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"expected a model (torch.nn.Module), got {type(model).__name__} {model!r:.40}; "
            "create it first, as in torchvision.models.resnet18() or sortnet.create_model(...)"
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise ValueError("a scripted model cannot be observed; use the model it was made from")
    call = _as_call(default_input(model) if example is None else example)
    with _preserve_random_state(), torch.no_grad():
        try:
            return _search(_meta_copy(model), tree_map(_to_meta, call), torch.device("meta"))
        except Exception as error:  # a model may raise anything
            failure = error
        if not any(x.is_meta for x in (*model.parameters(), *model.buffers())):
            try:
                real = tree_map(partial(_to_real, model), call)
                return _search(_real_copy(model), real, nullcontext())
            except Exception as error:
                failure = error
    shapes = [str(tuple(x.shape)) for x in tree_leaves(call) if isinstance(x, Tensor)]
    raise ValueError(
        f"{type(model).__name__} could not be run on an input of shape {' and '.join(shapes)}, "
        f"pass another one as example: {one_line(failure)}"
    ) from failure


def _search(model: nn.Module, call: Call, device: AbstractContextManager[Any]) -> Search:
    observer = Observer(model)
    try:
        with device:
            observer.run(model, *call)
            return Search(_trace_sites(observer), observer.concatenates)
    finally:
        observer.release()


def _as_call(example: Example) -> Call:
    if isinstance(example, tuple):
        return Call(example, {})
    if isinstance(example, Mapping):
        return Call((), dict(example))
    return Call((example,), {})


def default_input(model: nn.Module) -> Tensor:
    """Return a meta image of the size that a model expects.

    timm's models and Hugging Face's state it in their configuration, torchvision's transformers
    and our networks in an attribute.
    """
    config = getattr(model, "default_cfg", None) or {}
    stated = [getattr(model, name, None) for name in ("image_size", "size")]
    stated.append(getattr(getattr(model, "config", None), "image_size", None))
    side = next((side for side in stated if isinstance(side, int) and side), IMAGE_SIZE)
    conv = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    shape = (conv.in_channels if conv is not None else 3, side, side)
    weight = next((p for p in model.parameters() if p.is_floating_point()), None)
    dtype = torch.float32 if weight is None else weight.dtype
    return torch.empty(1, *config.get("input_size", shape), dtype=dtype, device="meta")


@contextmanager
def _preserve_random_state() -> Iterator[None]:
    state = random.getstate()
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            yield
    finally:
        random.setstate(state)


def copy_model(model: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """Return a deep copy."""
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:
        raise ValueError(f"{type(model).__name__} cannot be copied: {one_line(error)}") from error


def _meta_copy(model: nn.Module) -> nn.Module:
    """Return a copy on the meta device, which runs in no time and takes no memory."""
    tensors = (*model.parameters(), *model.buffers())
    copied = _real_copy(model, {id(x): _to_meta(x) for x in tensors})
    for module in copied.modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor):  # neither parameter nor buffer
                setattr(module, name, _to_meta(value))
    return copied


def _real_copy(model: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """Return a copy in evaluation mode without hooks."""
    copied = copy_model(model, memo).eval()
    for module in copied.modules():
        for name, value in vars(module).items():
            if name.endswith(("_hooks", "_hooks_with_kwargs", "_hooks_always_called")):
                value.clear()
    return copied


def _to_meta(x: Any) -> Any:  # noqa: ANN401
    if not isinstance(x, Tensor):
        return x
    empty = torch.empty_like(x, device="meta")
    return nn.Parameter(empty, requires_grad=False) if isinstance(x, nn.Parameter) else empty


def _to_real(model: nn.Module, x: Any) -> Any:  # noqa: ANN401
    """Return a copy of a tensor; a meta tensor becomes a random one on the model's device."""
    if not isinstance(x, Tensor):
        return x
    if not x.is_meta:
        return x.clone()
    weight = next(model.parameters(), x.new_empty(0, device="cpu"))
    return torch.rand(x.shape).to(weight.device, x.dtype)


def _trace_sites(observer: Observer) -> list[TracedSite]:
    owners: dict[str, list[Addition]] = {}
    for addition in observer.additions:
        owners.setdefault(addition.owner, []).append(addition)
    modules = {
        path: trace_module(observer, path, additions)
        for path, additions in owners.items()
        if any(addition.fusion_path is None for addition in additions)
    }
    return [
        _traced_site(addition, owners[addition.owner], modules.get(addition.owner))
        for addition in observer.additions
    ]


def _traced_site(
    addition: Addition, siblings: Sequence[Addition], module: TracedModule | None
) -> TracedSite:
    module = module if addition.fusion_path is None else None
    site = Site(
        path=addition.owner,
        index=siblings.index(addition),
        count=len(siblings),
        shortcut=addition.operands[0],
        branch=addition.operands[1],
        shape=addition.shape,
        channel_dim=addition.channel_dim,
        block=addition.block,
        follows=addition.follows,
        fusion=addition.fusion,
        problem=module.problem if module is not None else None,
    )
    return TracedSite(site, addition.fusion_path, module)
