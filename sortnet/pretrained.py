"""Networks with weights: a directory that says all that is needed to build and use the network.

::

    config.json         the network, its classes, how images are prepared, how it was trained
    model.safetensors   its weights, whose SHA-256 is in config.json

Some such directories come with the package, and are called by their names: `names`.
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
"""The entry of config.json with its own SHA-256; ``sha256`` is that of the weights."""
MALFORMED = (ValueError, LookupError, TypeError, RuntimeError, OverflowError, MemoryError)
"""What a reader of tensors raises at a header that says what cannot be."""
HOME = Path(__file__).with_name("weights")
"""The networks that come with the package."""


@dataclass(frozen=True)
class Config:
    """All that is needed to build a network and to use it.

    Attributes:
        network: Its name, as `sortnet.modelspec.create` takes it.
        classes: The names of its classes.
        fusion: How its branches meet.
        options: What else `sortnet.modelspec.create` was given.
        size: The side of the images it takes.
        mean: What is subtracted from images of 0 to 1, per channel.
        std: What they are then divided by.
        trained: How it came to its weights: the run and its result.
        preprocess: What was done to the images before, such as ``lcn``.
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
            raise UsageError("options and trained must be objects")
        limits.check_options(self.options)
        for name in ("network", "fusion"):
            if not isinstance(getattr(self, name), str):
                raise UsageError(f"{name} is {getattr(self, name)!r}, but must be a name")
        if self.preprocess is not None and not isinstance(self.preprocess, str):
            raise UsageError(f"preprocess is {self.preprocess!r}, but must be a name")
        if not self.classes or not all(isinstance(name, str) for name in self.classes):
            raise UsageError("classes must be names, and at least one")
        for name in ("mean", "std"):
            values = getattr(self, name)
            if len(values) != 3 or not all(limits.finite(value) for value in values):
                raise UsageError(f"{name} is {list(values)}, but must be three finite numbers")
        if min(self.std) <= 0:
            raise UsageError(f"std is {list(self.std)}, but must be above 0")

    @property
    def title(self) -> str:
        """The network's name as the paper prints it."""
        branched = bool(self.options.get("branched"))
        return modelspec.title(self.network, self.fusion, branched=branched)

    def build(self) -> nn.Module:
        """Build the network, with fresh weights; a function of yours is imported for it."""
        return modelspec.create(
            self.network, len(self.classes), fusion=self.fusion, **self.options
        )

    def prepare(self, picture: Tensor) -> Tensor:
        """Bring a picture of any size to what the network takes.

        The middle of the picture is shrunk, or blown up, to the network's size.

        Arguments:
            picture: Bytes of shape :math:`(3, H, W)`.
        """
        if self.preprocess not in (None, "none"):
            raise UsageError(f"the network takes images after {self.preprocess}, not plain ones")
        height, width = picture.shape[1:]
        side = min(height, width)
        top, left = (height - side) // 2, (width - side) // 2
        square = picture[:, top : top + side, left : left + side].float()[None] / 255
        if side != self.size:
            square = F.interpolate(
                square, (self.size, self.size), mode="bicubic", antialias=True
            ).clamp(0, 1)
        mean, std = (torch.tensor(x).view(1, 3, 1, 1) for x in (self.mean, self.std))
        return (square - mean) / std


def save(network: torch.nn.Module, config: Config, directory: str | Path) -> Path:
    """Write a network's weights and what it is; the directory is then all that is needed.

    Arguments:
        network: With the weights to keep.
        config: What it is.
        directory: Made if it is not there.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    weights = {name: x.detach().cpu().contiguous() for name, x in network.state_dict().items()}
    content = safetensors.torch.save(weights)
    files.write(directory / WEIGHTS, content)
    described = {**asdict(config), "sha256": files.digest(content)}
    files.write_sealed(directory / CONFIG, described, SEAL)
    return directory


def names() -> list[str]:
    """The networks that come with the package."""
    return sorted(path.parent.name for path in HOME.glob(f"*/{CONFIG}"))


def place(source: str | Path) -> Path:
    """A directory, or that of a network which comes with the package, by its name.

    A directory of that name goes before it only if there is a network in it.
    """
    return HOME / source if is_shipped(source) else Path(source)


def is_shipped(source: str | Path) -> bool:
    """Return True if this names a network that comes with the package."""
    holds = any((Path(source) / name).is_file() for name in (CONFIG, "run.json"))
    return str(source) in names() and not holds


def read_config(directory: Path) -> Config:
    """Read what a directory's network is."""
    return _read(directory / CONFIG)[0]


def _read(path: Path) -> tuple[Config, str]:
    """A config.json, and the SHA-256 of the weights beside it."""
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
    """Build a directory's network and give it its weights, in evaluation mode.

    Arguments:
        directory: Written by `save`, or by a run that has finished, or a name out of `names`.
    """
    directory = place(directory)
    if not (directory / CONFIG).is_file():
        known = f"; by name there are {', '.join(names())}" if names() else ""
        raise UsageError(f"{directory} holds no network: there is no {CONFIG}{known}")
    config, expected = _read(directory / CONFIG)
    content = (directory / WEIGHTS).read_bytes()
    if files.digest(content) != expected:
        raise Damaged(f"{directory / WEIGHTS} does not have the SHA-256 of its {CONFIG}")
    tensors = weights(content, directory / WEIGHTS)
    if not modelspec.is_foreign(config.network):
        with torch.device("meta"):  # find what does not fit before taking memory for it
            _differing(config.build(), tensors, loose=False)
    network = config.build()
    fit(network, tensors)
    return network.eval(), config


def weights(content: bytes, name: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file's content."""
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
        raise UsageError(f"{path} is not a state dict: not all that it holds are tensors")
    return dict(found)


def fit(
    network: torch.nn.Module, tensors: Mapping[str, Tensor], *, loose: bool = False
) -> list[str]:
    """Give a network weights; which entries of its state dict were left as they are.

    Arguments:
        network: To be changed.
        tensors: By the names of its state dict.
        loose: Whether a classifier for other classes, or gates of a fusion, may be left out.
    """
    own, differing = network.state_dict(), _differing(network, tensors, loose=loose)
    kept = {name: x for name, x in tensors.items() if name in own and name not in differing}
    network.load_state_dict(kept, strict=False)
    return differing


def _differing(
    network: torch.nn.Module, tensors: Mapping[str, Tensor], *, loose: bool
) -> list[str]:
    """The entries of a network's state dict that the tensors do not fit, if that is allowed."""
    own = network.state_dict()
    differing = [
        name for name in own if name not in tensors or tensors[name].shape != own[name].shape
    ]
    surplus = [name for name in tensors if name not in own]
    if not loose and (differing or surplus):
        raise UsageError(f"the weights do not fit: {(differing + surplus)[0]} differs")
    if len(differing) == len(own):
        raise UsageError("the weights are of another network: no entry fits")
    return differing


def classify(network: nn.Module, config: Config, pictures: Sequence[Tensor]) -> Tensor:
    """The classes' probabilities for pictures of any size, of shape :math:`(N, classes)`."""
    device = next(network.parameters()).device
    images = torch.cat([config.prepare(picture) for picture in pictures])
    with torch.inference_mode():
        logits: Tensor = network.eval()(images.to(device))
        return logits.float().softmax(1).cpu()
