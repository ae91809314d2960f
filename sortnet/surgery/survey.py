"""All the places of a model: run it once, watch it, trace the modules that add."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sortnet.surgery.observe import Meeting, Watch
from sortnet.surgery.site import Site
from sortnet.surgery.trace import Traced, first_line, traced

SIDE = 224
"""Of the images that a model is tried with which does not say what it expects."""


@dataclass(frozen=True)
class Place:
    """A site and what is needed to change it.

    Attributes:
        site: What is known of it.
        via: The path of the fusion that stands there by now, if it is one of ours.
        traced: Its module as graphs, where an addition is to be exchanged.
    """

    site: Site
    via: str | None
    traced: Traced | None


def survey(model: nn.Module, example: Tensor | Sequence[Any] | None = None) -> list[Place]:
    """Find every place where branches meet, in the order in which they do."""
    if isinstance(model, torch.jit.ScriptModule):
        raise ValueError("a scripted model cannot be looked into; give the model it was made from")
    given = image(model) if example is None else example
    inputs = [_hollow(x) for x in ((given,) if isinstance(given, Tensor) else given)]
    bare = skeleton(model)
    watch = Watch(bare)
    with torch.no_grad(), torch.device("meta"):
        try:
            watch.run(bare, inputs)
        except Exception as error:  # whatever somebody's model may say
            shapes = " and ".join(f"{tuple(x.shape)}" for x in inputs if isinstance(x, Tensor))
            raise ValueError(
                f"{type(model).__name__} could not be run on an input of {shapes}, "
                f"give it another as example: {first_line(error)}"
            ) from error
        return _places(watch)


def image(model: nn.Module) -> Tensor:
    """An image without content, of the size that a model says it expects.

    timm's models say so in their configuration, torchvision's transformers and our networks by an
    attribute.
    """
    config = getattr(model, "default_cfg", None) or {}
    stated = (getattr(model, name, None) for name in ("image_size", "size"))
    side = next((side for side in stated if isinstance(side, int) and side), SIDE)
    conv = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    shape = (conv.in_channels if conv is not None else 3, side, side)
    weights = (p for p in model.parameters() if p.is_floating_point())
    dtype = next((weight.dtype for weight in weights), torch.float32)
    return torch.empty(1, *config.get("input_size", shape), dtype=dtype, device="meta")


def skeleton(model: nn.Module) -> nn.Module:
    """A copy without content, to be run in no time and without touching the model.

    It is in evaluation and nobody listens to it.
    """
    tensors = (*model.parameters(), *model.buffers())
    bare = copied(model, {id(x): _hollow(x) for x in tensors}).eval()
    for module in bare.modules():
        for name, value in vars(module).items():
            if name.endswith(("_hooks", "_hooks_with_kwargs", "_hooks_always_called")):
                value.clear()
            elif isinstance(value, Tensor):  # one that is neither parameter nor buffer
                setattr(module, name, _hollow(value))
    return bare


def _hollow(x: Any) -> Any:  # noqa: ANN401
    """A tensor of the same form without content; anything else as it is."""
    if not isinstance(x, Tensor):
        return x
    empty = torch.empty_like(x, device="meta")
    return nn.Parameter(empty, requires_grad=False) if isinstance(x, nn.Parameter) else empty


def copied(model: nn.Module, shared: dict[int, Any] | None = None) -> nn.Module:
    """A deep copy."""
    try:
        return copy.deepcopy(model, shared)
    except Exception as error:
        raise ValueError(
            f"{type(model).__name__} cannot be copied: {first_line(error)}"
        ) from error


def _places(watch: Watch) -> list[Place]:
    owners: dict[str, list[Meeting]] = {}
    for meeting in watch.meetings:
        owners.setdefault(meeting.owner, []).append(meeting)
    graphs = {
        path: traced(watch, path, found)
        for path, found in owners.items()
        if any(meeting.via is None for meeting in found)
    }
    return [
        _place(meeting, owners[meeting.owner], graphs.get(meeting.owner))
        for meeting in watch.meetings
    ]


def _place(meeting: Meeting, beside: Sequence[Meeting], graphs: Traced | None) -> Place:
    site = Site(
        path=meeting.owner,
        index=beside.index(meeting),
        count=len(beside),
        shortcut=meeting.operands[0],
        branch=meeting.operands[1],
        shape=meeting.shape,
        channel=meeting.channel,
        block=meeting.block,
        follows=meeting.follows,
        fusion=meeting.fusion,
        problem=graphs.problem if graphs is not None and meeting.via is None else None,
    )
    return Place(site, meeting.via, graphs if meeting.via is None else None)
