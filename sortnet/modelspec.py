"""Models by name: the paper's networks, torchvision's, timm's, and your own functions.

============================ ==============================================================
``resnet20``                 a network of the paper, as `sortnet.create_model` takes it
``torchvision:resnet18``     a model of torchvision
``timm:resnet10t``           a model of timm
``package.module:function``  your function that returns a model
============================ ==============================================================
"""

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sortnet import networks
from sortnet.errors import UsageError, user_input
from sortnet.networks import NETWORKS, create_model
from sortnet.surgery import sortify
from sortnet.surgery.site import close

EXAMPLES = "resnet20, torchvision:resnet18, timm:resnet10t or package.module:function"
PATTERN = re.compile(r"[\w.]+:[\w.]+")


def create(
    spec: str,
    num_classes: int | None = None,
    in_chans: int = 3,
    *,
    fusion: str = "sum",
    gate: str | None = None,
    where: str | None = None,
    size: int | None = None,
    pretrained: bool = False,
    **options: Any,  # noqa: ANN401
) -> nn.Module:
    """Create a model by name, with new weights from the global random state.

    With ``fusion="sum"`` it is the model as its library or function creates it. For any other
    fusion, a model that is not from the paper is converted by `sortnet.sortify`, which keeps the
    weights.

    Arguments:
        spec: Name of the model; see the table above.
        num_classes: Number of classes; by default the model's own. Your function is called with
            ``num_classes=`` and ``in_chans=`` if it has such parameters.
        in_chans: Channels of the images.
        fusion: Terms joined by ``+``, or ``sort``.
        gate: ``zero`` or ``one``: multiply the second-order term by a learnable number per channel
            with this initial value.
        where: A pattern over the sites to fuse, as `sortnet.sortify` takes it.
        size: Side of the images.
        pretrained: Download the weights that torchvision or timm offers; your function is called
            with ``pretrained=True``.
        options: Further arguments of `sortnet.create_model`, for a network of the paper.

    Example:
        >>> net = create("torchvision:resnet18", num_classes=5, fusion="sort", where="layer4.*")
        >>> net.get_submodule("layer4.1.fusion")
        Fusion(sum+root)
    """
    check(spec)
    if not is_foreign(spec) and pretrained:
        raise UsageError(f"{spec} has no weights to download; `sortnet list` has trained networks")
    if not is_foreign(spec) and where is None:
        with user_input():
            return create_model(
                spec, num_classes, fusion, gate=gate, in_chans=in_chans, size=size, **options
            )
    model = _plain(spec, num_classes, in_chans, size, pretrained, options)
    side = size or image_size(spec)
    return fused(model, fusion, gate, where, torch.zeros(1, in_chans, side, side))


def fused(
    model: nn.Module, fusion: str, gate: str | None, where: str | None, example: Tensor
) -> nn.Module:
    """Return the model converted to a fusion; with ``sum``, the model itself."""
    if fusion == "sum":
        return model
    with user_input():
        return sortify(model, where, fusion, gate=gate, example=example)


def check(spec: str) -> None:
    """Raise if this cannot be the name of a model, without importing anything."""
    if ":" not in spec and spec not in NETWORKS:
        raise UsageError(
            f"unknown network {spec!r}; {close(spec, list(NETWORKS))} Use a name like {EXAMPLES}"
        )
    if ":" in spec and not PATTERN.fullmatch(spec):
        raise UsageError(f"{spec!r} is not the name of a model; use a name like {EXAMPLES}")


def is_foreign(spec: str) -> bool:
    """Return True if a model is not one of the paper's."""
    return ":" in spec


def is_function(spec: str) -> bool:
    """Return True if a model is created by the user's function."""
    return is_foreign(spec) and spec.partition(":")[0] not in ("torchvision", "timm")


def title(spec: str, fusion: str = "sum", *, branched: bool = False) -> str:
    """Return the name of a model for display.

    Example:
        >>> title("lenet", "sort", branched=True), title("timm:resnet10t", "sort")
        ('LeNet*-SORT', 'timm:resnet10t-SORT')
    """
    if not is_foreign(spec):
        return networks.display(spec, fusion, branched=branched)
    return spec + {"sum": "", "sort": "-SORT"}.get(fusion, f"-{fusion}")


def image_size(spec: str) -> int:
    """Return the side of the images that a model expects; 224 if unknown."""
    if not is_foreign(spec):
        return NETWORKS[spec].size
    source, _, name = spec.partition(":")
    if source == "timm":
        timm = _timm(name)
        return int(timm.get_pretrained_cfg(name).input_size[-1])
    return 224


def normalization(spec: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the published mean and deviation of the images a model was trained on."""
    source, _, name = spec.partition(":")
    if source == "timm":
        config = _timm(name).get_pretrained_cfg(name)
        return tuple(config.mean), tuple(config.std)
    if source == "torchvision":
        return (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    return (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)


def _plain(
    spec: str,
    num_classes: int | None,
    in_chans: int,
    size: int | None,
    pretrained: bool,
    options: Mapping[str, Any],
) -> nn.Module:
    """Create a model with the sum."""
    if not is_foreign(spec):
        with user_input():
            return create_model(spec, num_classes, in_chans=in_chans, size=size, **options)
    if options:
        raise UsageError(f"{spec} has no option {next(iter(options))!r}")
    source, _, name = spec.partition(":")
    if source == "torchvision":
        return _from_torchvision(name, num_classes, in_chans, size, pretrained)
    if source == "timm":
        return _from_timm(name, num_classes, in_chans, size, pretrained)
    asked = {"num_classes": num_classes, "in_chans": in_chans, "pretrained": pretrained}
    return call(function(spec), spec, asked)


def _only_logits(_model: nn.Module, _inputs: object, output: object) -> Tensor | None:
    """Replace the output by its logits, as Hugging Face's models and Inception return them."""
    if isinstance(output, Tensor):
        return None
    logits = output.get("logits") if isinstance(output, Mapping) else None
    found = getattr(output, "logits", logits)
    return found if isinstance(found, Tensor) else None


# torchvision and timm


def _known(source: str, name: str, names: Sequence[str]) -> None:
    if name not in names:
        raise UsageError(f"{source} has no model {name!r}; {close(name, names)}")


def _from_torchvision(
    name: str, num_classes: int | None, in_chans: int, size: int | None, pretrained: bool
) -> nn.Module:
    try:
        from torchvision import models
    except ImportError:
        raise UsageError("torchvision is not installed; pip install 'sortnet[lab]'") from None
    _known("torchvision", name, models.list_models())
    if in_chans != 3:
        raise UsageError(f"torchvision:{name} takes images of 3 channels, not {in_chans}")
    options: dict[str, object] = {"weights": None}
    if num_classes is not None:
        options["num_classes"] = num_classes
    if name in ("googlenet", "inception_v3"):  # they warn without this option
        options["init_weights"] = True
    if name in models.list_models(models.detection) + models.list_models(models.segmentation):
        options["weights_backbone"] = None
    if name.startswith("vit_") and size is not None:
        options["image_size"] = size
    made: nn.Module = models.get_model(name, **options)
    if pretrained:
        offered = models.get_model_weights(name).DEFAULT
        load_fitting(made, offered.get_state_dict(check_hash=True, weights_only=True))
    made.register_forward_hook(_only_logits)
    return made


def load_fitting(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load the tensors whose names and shapes fit; a head for other classes does not."""
    own = model.state_dict()
    fitting = {n: x for n, x in tensors.items() if n in own and x.shape == own[n].shape}
    model.load_state_dict(fitting, strict=False)


def _timm(name: str) -> Any:  # noqa: ANN401
    """Import timm, and raise if it has no model with that name."""
    try:
        from timm import models
    except ImportError:
        raise UsageError("timm is not installed; pip install 'sortnet[timm]'") from None
    _known("timm", name, models.list_models())
    return models


def _from_timm(
    name: str, num_classes: int | None, in_chans: int, size: int | None, pretrained: bool
) -> nn.Module:
    models = _timm(name)
    options: dict[str, object] = {"in_chans": in_chans}
    if num_classes is not None:
        options["num_classes"] = num_classes
    if size is not None and models.get_pretrained_cfg(name).fixed_input_size:
        options["img_size"] = size  # transformers have a position embedding of this size
    with user_input():
        try:
            made: nn.Module = models.create_model(name, pretrained=pretrained, **options)
        except (AssertionError, TypeError) as error:
            raise UsageError(f"timm:{name} cannot be built: {_first_line(error)}") from error
    return made


# User functions


def function(spec: str) -> Callable[..., nn.Module]:
    """Import the function that a ``package.module:function`` names."""
    name, _, attribute = spec.partition(":")
    found: Any = _imported(name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            there = [n for n, x in vars(found).items() if callable(x) and not n.startswith("_")]
            raise UsageError(f"{name} has no function {attribute!r}; {close(attribute, there)}")
        found = getattr(found, part)
    if isinstance(found, nn.Module) or not callable(found):
        kind = "a model" if isinstance(found, nn.Module) else type(found).__name__
        raise UsageError(f"{spec} is {kind}, but must be a function that returns a new model")
    return found  # type: ignore[no-any-return]


def _imported(name: str) -> Any:  # noqa: ANN401
    """Import a module; one in the current directory is found as well."""
    if name.partition(".")[0] in sys.stdlib_module_names:  # a config file could name os:abort
        raise UsageError(f"{name} is part of Python; use a name like {EXAMPLES}")
    if not {"", str(Path.cwd())} & set(sys.path):
        sys.path.append(str(Path.cwd()))
    try:
        with (
            torch.random.fork_rng()
        ):  # a module that creates a model must not change the random state
            return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise UsageError(f"{name} does not import: {_first_line(error)}") from error
        raise UsageError(
            f"there is no module {error.name!r}; use a name like {EXAMPLES}"
        ) from None
    except (Exception, SystemExit) as error:  # a module may raise anything
        raise UsageError(f"{name} does not import: {_first_line(error)}") from error


def call(make: Callable[..., nn.Module], name: str, asked: Mapping[str, Any]) -> nn.Module:
    """Call a function that makes a model with those arguments that it has parameters for.

    The model's output is replaced by its logits if it is an object that has them.

    Arguments:
        make: The function, or a class.
        name: Its name in messages.
        asked: Arguments by name. ``pretrained`` may only be True if there is such a parameter.
    """
    parameters = _parameters(make)
    if asked.get("pretrained") and "pretrained" not in parameters:
        raise UsageError(f"{name} has no parameter 'pretrained'; load the weights inside it")
    given = {k: v for k, v in asked.items() if k in parameters and v is not None}
    for parameter in parameters.values():
        variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if parameter.default is parameter.empty and parameter.name not in given and not variadic:
            raise UsageError(
                f"{name} needs the argument {parameter.name!r}; write a function that needs at"
                " most num_classes"
            )
    try:
        made = make(**given)
    except Exception as error:  # a function may raise anything
        raise UsageError(f"{name} failed: {_first_line(error)}") from error
    if not isinstance(made, nn.Module):
        raise UsageError(f"{name} returned a {type(made).__name__}, not a torch.nn.Module")
    made.register_forward_hook(_only_logits)
    return made


def _parameters(make: Callable[..., object]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(make).parameters
    except (TypeError, ValueError):  # a function in C
        return {}


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
