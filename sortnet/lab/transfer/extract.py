"""Features: a network's responses to all images of a dataset, and their cache.

Responses are read after ReLU and averaged over space. The features of an image do not depend on
the other images of its batch, bit for bit: see `GROUP`.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from sortnet import files
from sortnet.errors import UsageError
from sortnet.fusion import kernels
from sortnet.lab import data, runs
from sortnet.lab.data import Dataset, Split
from sortnet.lab.training import Machine, resolve_device
from sortnet.networks import Network
from sortnet.pretrained import Config, is_shipped
from sortnet.surgery.site import close

GROUP = 64
"""Images per forward pass, always: the last group is padded.

The rounding of a matrix product can depend on its number of rows. Another group size would change
the features a little (by up to 2e-5 of the largest), and so would a smaller last group.
"""

LAST = "features"
"""The name of the classifier's input, in models that are not from the paper."""

Model = str | Path | tuple[nn.Module, Config]
"""A directory with a network, or a network and its description."""
Show = Callable[[str, int, int], None]
"""Called with the task, the amount done, and the total."""

_log = logging.getLogger(__name__)


def features(
    network: nn.Module,
    dataset: Dataset,
    layers: Sequence[str],
    *,
    device: str | torch.device = "auto",
    show: Show | None = None,
) -> dict[str, Tensor]:
    """Return the responses of a network's layers to all images of a dataset.

    ReLU is applied, and maps are averaged over space (pool5 of AlexNet, 256 x 6 x 6, gives 256
    numbers). The rows are those of `labels`.

    Arguments:
        network: The network; it is moved to the device.
        dataset: The dataset, whose mean and standard deviation normalize the images.
        layers: Names of layers, as `respond` takes them.
        device: A device, or one of `sortnet.lab.training.DEVICES`.
        show: Called with the progress.
    """
    machine = Machine.here("off", device=device)
    network = machine.place(network).eval()
    total, done = len(labels(dataset)), 0
    found: dict[str, Tensor] = {}
    # Kernels run only for large tensors, and round differently.
    with torch.inference_mode(), kernels.using("plain"):
        for images, count in _groups(dataset):
            responses = respond(network, machine.images(images), layers)
            for layer, response in responses.items():
                rows = _pooled(response)[:count]
                if layer not in found:
                    found[layer] = torch.empty(total, rows.shape[1])
                found[layer][done : done + count] = rows
            done += count
            if show is not None:
                show("features", done, total)
    return found


def respond(network: nn.Module, images: Tensor, layers: Sequence[str]) -> dict[str, Tensor]:
    """Return the responses of layers to a batch of images.

    Arguments:
        network: Any classifier.
        images: A batch.
        layers: For a network of the paper, names in its ``features``. For any other model, names
            of modules, or `LAST` for the input of its last linear layer.
    """
    if isinstance(network, Network):
        return network.extract_features(images, *layers)
    found: dict[str, Tensor] = {}

    def keep(layer: str, response: Tensor) -> None:
        found[layer] = response

    hooks = [
        classifier(network).register_forward_pre_hook(
            lambda _, inputs, layer=layer: keep(layer, inputs[0])
        )
        if layer == LAST
        else network.get_submodule(layer).register_forward_hook(
            lambda _, __, output, layer=layer: keep(layer, output)
        )
        for layer in layers
    ]
    try:
        network(images)
    finally:
        for hook in hooks:
            hook.remove()
    for layer in layers:
        if not isinstance(found.get(layer), Tensor):
            raise UsageError(f"layer {layer!r} returns no tensor, or is not called in eval mode")
    return found


def classifier(network: nn.Module) -> nn.Linear:
    """Return the last linear layer of a model."""
    linear = [module for module in network.modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise UsageError("this model has no linear layer; name a layer with --layer")
    return linear[-1]


def labels(dataset: Dataset) -> Tensor:
    """Return the labels of all images: training, then validation, then test."""
    return torch.cat([split.labels for split in _splits(dataset)])


def _splits(dataset: Dataset) -> list[Split]:
    every = (dataset.train, dataset.validation, dataset.test)
    return [split for split in every if split is not None]


def _groups(dataset: Dataset) -> Iterator[tuple[Tensor, int]]:
    """Yield the images in groups of `GROUP`, each with its number of images before padding."""
    for split in _splits(dataset):
        for images, _ in data.eval_batches(dataset, split, batch=GROUP):
            count = len(images)
            filling = images[-1:].expand(GROUP - count, -1, -1, -1)
            yield torch.cat([images, filling]), count


def _pooled(response: Tensor) -> Tensor:
    response = response.relu().float()
    if response.dim() == 3:  # the tokens of a transformer: (N, L, C)
        return response.mean(1)
    return response.flatten(2).mean(2) if response.dim() > 3 else response


@dataclass(frozen=True, eq=False)
class FeatureSource:
    """A network, a dataset, and the layers that give the features.

    Attributes:
        network: The network with its weights.
        config: Its configuration.
        dataset: The dataset, with the normalization of the network's training images.
        layers: Names of activations.
        device: Device of the network.
        cache: Default directory of cached features.
    """

    network: nn.Module
    config: Config
    dataset: Dataset
    layers: tuple[str, ...]
    device: torch.device
    cache: Path

    @classmethod
    def of(
        cls,
        model: Model,
        name: str,
        root: str | Path,
        layers: Sequence[str],
        device: str = "auto",
    ) -> "FeatureSource":
        """Load a network, and the dataset with the network's image size and normalization.

        Arguments:
            model: The directory of a run or of a saved network, or a network and its description.
            name: Name of a dataset, or path of an image folder.
            root: Directory of all datasets.
            layers: Names of layers, as `respond` takes them; see `last_layers` for the default.
            device: Device of the network, one of `sortnet.lab.training.DEVICES`.
        """
        chosen = resolve_device(device)
        network, config = model if isinstance(model, tuple) else runs.load(model)
        layers = tuple(dict.fromkeys(layers)) or last_layers(network)
        there = _layers(network)
        for layer in layers:
            if layer not in there:
                hint = close(layer, there) if len(there) > 20 else f"there are {', '.join(there)}"
                raise UsageError(f"{config.title} has no layer {layer!r}; {hint}")
        dataset = data.load(name, root, size=config.size)
        mean, std = ((x[0], x[1], x[2]) for x in (config.mean, config.std))
        dataset = replace(dataset, mean=mean, std=std)
        cache = Path(root) / "features"
        if not isinstance(model, tuple) and not is_shipped(model):  # it has a directory
            cache = Path(model) / "features"
        return cls(network, config, dataset, layers, chosen, cache)

    def features(self, cache: str | Path | None, show: Show | None) -> dict[str, Tensor]:
        """Return the features of all layers, from the cache where possible.

        Arguments:
            cache: A directory; by default ``features`` in the network's directory or, if it has
                none, in the directory of all datasets.
            show: Called with the progress.
        """
        cache = self.cache if cache is None else Path(cache)
        keys = self._keys()
        found = {layer: kept for layer in keys if (kept := _read(cache, keys[layer])) is not None}
        missing = [layer for layer in self.layers if layer not in found]
        if missing:
            cache.mkdir(parents=True, exist_ok=True)
            new = features(self.network, self.dataset, missing, device=self.device, show=show)
            for layer, rows in new.items():
                _write(cache, keys[layer], rows)
                found[layer] = rows
        return found

    def _keys(self) -> dict[str, dict[str, object]]:
        """Return the cache key of each layer; weights alone do not distinguish sum from sort."""
        about = asdict(self.config)
        about.pop("trained"), about.pop("classes")
        about |= {"weights": digest(self.network.state_dict())}
        if self.device.type != "cpu":  # other devices round differently
            about |= {"device": self.device.type}
        about |= {"data": self.dataset.fingerprint, "images": len(labels(self.dataset))}
        return {layer: {"layer": layer, **about} for layer in self.layers}


def last_layers(network: nn.Module) -> tuple[str, ...]:
    """Return the last pooling layer and those after it: pool5, fc6 and fc7 of AlexNet.

    For a model that is not from the paper, the input of its classifier.
    """
    if not isinstance(network, Network):
        return (LAST,)
    names = list(network.features)
    last = max(i for i, name in enumerate(names) if name.startswith("pool"))
    return tuple(names[last:])


def _layers(network: nn.Module) -> list[str]:
    if isinstance(network, Network):
        return list(network.features)
    return [LAST, *(name for name, _ in network.named_modules() if name)]


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of tensors and their names."""
    result = hashlib.sha256()
    for name, x in tensors.items():
        result.update(f"{name} {x.dtype} {tuple(x.shape)}".encode())
        result.update(x.detach().cpu().contiguous().numpy().tobytes())
    return result.hexdigest()


def _path(cache: Path, key: Mapping[str, object]) -> Path:
    name = files.digest(json.dumps(key, sort_keys=True).encode())[:16]
    return cache / f"{key['layer']}-{name}.safetensors"


def _read(cache: Path, key: Mapping[str, object]) -> Tensor | None:
    """Return cached features; None if there are none or they are damaged."""
    path = _path(cache, key)
    try:
        about = files.read_json(path.with_suffix(".json"))
        content = path.read_bytes()
        if about != {**json.loads(json.dumps(key)), "sha256": files.digest(content)}:
            raise UsageError(f"{path} does not have the SHA-256 that was stored with it")
        return safetensors.torch.load(content)["features"]
    except FileNotFoundError:
        return None
    except ValueError as error:
        _log.warning("%s; its features are computed again", error)
        return None


def _write(cache: Path, key: Mapping[str, object], rows: Tensor) -> None:
    path = _path(cache, key)
    content = safetensors.torch.save({"features": rows})
    files.write(path, content)
    files.write_json(path.with_suffix(".json"), {**key, "sha256": files.digest(content)})
