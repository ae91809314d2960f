"""Trained networks: a directory with all that is needed to create and use a network.

::

    config.json         the network, its classes, the preprocessing of images, its training
    model.safetensors   its weights, whose SHA-256 is in config.json

Some trained networks come with the package and are loaded by name; `names` lists them.
"""

import io
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sortnet import files, limits, modelspec
from sortnet.errors import Damaged, UsageError

CONFIG, WEIGHTS = "config.json", "model.safetensors"
SEAL = "checksum"
"""The entry of config.json with the SHA-256 of that file; ``sha256`` is that of the weights."""
MALFORMED = (ValueError, LookupError, TypeError, RuntimeError, OverflowError, MemoryError)
"""What reading tensors raises if the header is malformed."""
HOME = Path(__file__).with_name("weights")
"""The directory of the networks that come with the package."""


@dataclass(frozen=True)
class Config:
    """All that is needed to create a network and to use it.

    Attributes:
        network: Its name, as passed to `sortnet.create_model`.
        classes: The names of its classes.
        fusion: How its branches are fused.
        options: Further arguments of `sortnet.create_model`.
        size: Side of its input images.
        mean: Subtracted from images in [0, 1], per channel.
        std: What the difference is divided by, per channel.
        trained: How it was trained: the run and its result.
        preprocess: Preprocessing before normalization, such as ``lcn``.
    """

    network: str
    classes: tuple[str, ...]
    fusion: str = "sum"
    options: Mapping[str, Any] = field(default_factory=dict)
    size: int = 32
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    trained: Mapping[str, Any] = field(default_factory=dict)
    preprocess: str | None = None

    def __post_init__(self) -> None:
        limits.check(size=self.size)
        if not isinstance(self.options, Mapping) or not isinstance(self.trained, Mapping):
            raise UsageError("options and trained must be JSON objects")
        limits.check_options(self.options)
        for name in ("network", "fusion"):
            if not isinstance(getattr(self, name), str):
                raise UsageError(f"{name} is {getattr(self, name)!r}, but must be a string")
        if self.preprocess is not None and not isinstance(self.preprocess, str):
            raise UsageError(f"preprocess is {self.preprocess!r}, but must be a string")
        if not self.classes or not all(isinstance(name, str) for name in self.classes):
            raise UsageError("classes must be a list of at least one name")
        for name in ("mean", "std"):
            values = getattr(self, name)
            if len(values) != 3 or not all(limits.finite(value) for value in values):
                raise UsageError(f"{name} is {list(values)}, but must be three finite numbers")
        if min(self.std) <= 0:
            raise UsageError(f"std is {list(self.std)}, but must be above 0")

    @property
    def title(self) -> str:
        """The name of the network as printed in the paper."""
        branched = bool(self.options.get("branched"))
        return modelspec.title(self.network, self.fusion, branched=branched)

    def create_model(self) -> nn.Module:
        """Create the network with new weights; a user's function is imported for it."""
        return modelspec.create(
            self.network, len(self.classes), fusion=self.fusion, **self.options
        )

    def prepare(self, image: Tensor) -> Tensor:
        """Turn an image of any size into an input of the network: center crop, resize, normalize.

        Arguments:
            image: A uint8 tensor of shape :math:`(3, H, W)`.
        """
        if self.preprocess not in (None, "none"):
            raise UsageError(f"this network needs images preprocessed by {self.preprocess}")
        height, width = image.shape[1:]
        side = min(height, width)
        top, left = (height - side) // 2, (width - side) // 2
        square = image[:, top : top + side, left : left + side].float()[None] / 255
        if side != self.size:
            square = F.interpolate(
                square, (self.size, self.size), mode="bicubic", antialias=True
            ).clamp(0, 1)
        mean, std = (torch.tensor(x).view(1, 3, 1, 1) for x in (self.mean, self.std))
        return (square - mean) / std


def save(network: torch.nn.Module, config: Config, directory: str | Path) -> Path:
    """Write the weights and the configuration of a network to a directory, for `load`.

    Arguments:
        network: The network.
        config: Its configuration.
        directory: Created if it does not exist.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    weights = {name: x.detach().cpu().contiguous() for name, x in network.state_dict().items()}
    try:
        content = safetensors.torch.save(weights)
    except ModuleNotFoundError as error:
        raise ImportError(f"saving needs {error.name}: pip install {error.name}") from None
    files.write(directory / WEIGHTS, content)
    described = {**asdict(config), "sha256": files.digest(content)}
    files.write_sealed(directory / CONFIG, described, SEAL)
    return directory


def names() -> list[str]:
    """Return the names of the networks that come with the package."""
    return sorted(path.parent.name for path in HOME.glob(f"*/{CONFIG}"))


def place(source: str | Path) -> Path:
    """Return the directory of a network, given as a path or by the name of a shipped network.

    An existing directory with that name takes precedence if it contains a network.
    """
    return HOME / source if is_shipped(source) else Path(source)


def is_shipped(source: str | Path) -> bool:
    """Return True if this is the name of a network that comes with the package."""
    holds = any((Path(source) / name).is_file() for name in (CONFIG, "run.json"))
    return str(source) in names() and not holds


def read_config(directory: Path) -> Config:
    """Read the configuration of a network."""
    return _read(directory / CONFIG)[0]


def _read(path: Path) -> tuple[Config, str]:
    """Read a config.json; return it and the expected SHA-256 of the weights."""
    config = files.read_sealed(path, SEAL)
    digest = config.pop("sha256", "")
    known = {f.name for f in fields(Config)}
    if unknown := sorted(set(config) - known):
        raise UsageError(f"{path} has the unknown entry {unknown[0]!r}")
    if missing := sorted({"network", "classes"} - set(config)):
        raise UsageError(f"{path} has no entry {missing[0]!r}")
    try:
        lists = {name: tuple(config[name]) for name in ("classes", "mean", "std") & config.keys()}
        return Config(**{**config, **lists}), digest
    except (UsageError, TypeError) as error:
        raise UsageError(f"{path} does not describe a network: {error}") from None


def load(directory: str | Path) -> tuple[nn.Module, Config]:
    """Load a trained network, in evaluation mode, and its configuration.

    Arguments:
        directory: Written by `save` or by a finished run, or a name from `names`.

    Example:
        >>> network, config = load("resnet20-sort-cifar10")
        >>> config.title, config.classes[:2]
        ('ResNet-20-SORT', ('airplane', 'automobile'))
    """
    directory = place(directory)
    if not (directory / CONFIG).is_file():
        known = f"; shipped networks are {', '.join(names())}" if names() else ""
        raise UsageError(f"{directory} holds no network: there is no {CONFIG}{known}")
    config, expected = _read(directory / CONFIG)
    content = (directory / WEIGHTS).read_bytes()
    if files.digest(content) != expected:
        raise Damaged(f"{directory / WEIGHTS} does not have the SHA-256 of its {CONFIG}")
    tensors = weights(content, directory / WEIGHTS)
    if not modelspec.is_foreign(config.network):
        with torch.device("meta"):  # check the shapes before allocating memory
            _differing(config.create_model(), tensors, loose=False)
    network = config.create_model()
    fit(network, tensors)
    return network.eval(), config


def weights(content: bytes, name: Path) -> dict[str, Tensor]:
    """Parse the content of a safetensors file."""
    try:
        return safetensors.torch.load(content)
    except (safetensors.SafetensorError, *MALFORMED) as error:
        raise UsageError(f"{name} is not a safetensors file: {error}") from None


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read a model's weights: a safetensors file, or a state dict that `torch.save` wrote.

    The latter is read with ``weights_only=True``, which unpickles tensors and nothing else.
    """
    content = path.read_bytes()
    if not content.startswith(b"PK"):  # torch.save writes a zip archive
        return weights(content, path)
    try:
        found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, EOFError, *MALFORMED) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError(f"{path} is not a state dict: {reason}") from None
    if isinstance(found, dict) and isinstance(found.get("state_dict"), dict):
        found = found["state_dict"]
    if not isinstance(found, dict) or not all(isinstance(x, Tensor) for x in found.values()):
        raise UsageError(f"{path} is not a state dict: it has entries that are not tensors")
    return dict(found)


def fit(
    network: torch.nn.Module, tensors: Mapping[str, Tensor], *, loose: bool = False
) -> list[str]:
    """Load weights into a network; return the names of the entries that were not loaded.

    Arguments:
        network: The network, which is changed.
        tensors: A state dict.
        loose: Whether entries may be missing or differ in shape, such as a classifier for other
            classes or the gates of a fusion.
    """
    differing = _differing(network, tensors, loose=loose)
    modelspec.load_fitting(network, tensors)
    return differing


def _differing(
    network: torch.nn.Module, tensors: Mapping[str, Tensor], *, loose: bool
) -> list[str]:
    """Return the entries of the state dict that are missing or differ in shape, if allowed."""
    own = network.state_dict()
    differing = [
        name for name in own if name not in tensors or tensors[name].shape != own[name].shape
    ]
    surplus = [name for name in tensors if name not in own]
    if not loose and (differing or surplus):
        raise UsageError(f"the weights do not fit: {(differing + surplus)[0]} differs")
    if len(differing) == len(own):
        raise UsageError("the weights belong to another network: no entry fits")
    return differing


def classify(network: nn.Module, config: Config, images: Sequence[Tensor]) -> Tensor:
    """Return the class probabilities of images of any size, :math:`(N, classes)`."""
    device = next(network.parameters()).device
    batch = torch.cat([config.prepare(image) for image in images])
    with torch.inference_mode():
        logits: Tensor = network.eval()(batch.to(device))
        return logits.float().softmax(1).cpu()
