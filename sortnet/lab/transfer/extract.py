"""Features: a network's responses to all images of a data set, and their cache.

Responses are read behind their ReLU and averaged over space. An image's features are the same,
bit for bit, whatever other images it comes with: see `GROUP`.
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
from torch import Tensor

from sortnet import files
from sortnet.errors import UsageError
from sortnet.fusion import kernels
from sortnet.lab import data, runs
from sortnet.lab.data import Dataset, Split
from sortnet.lab.training import Machine, resolve_device
from sortnet.networks import Network
from sortnet.pretrained import Config, is_shipped

GROUP = 64
"""Images per forward pass, always: the last group is padded.

How a matrix product is rounded can depend on the number of its rows, so that another number would
change the features a little (by up to 2e-5 of the largest), and so would a last group of three.
"""

Show = Callable[[str, int, int], None]
"""Called with the task, the amount done, and the total."""

_log = logging.getLogger(__name__)


def features(
    network: Network,
    dataset: Dataset,
    layers: Sequence[str],
    *,
    device: str | torch.device = "auto",
    show: Show | None = None,
) -> dict[str, Tensor]:
    """Return the responses of a network's layers to all images of a data set.

    ReLU is applied, and maps are averaged over space (pool5 of AlexNet, 256 x 6 x 6, gives 256
    numbers). The rows are those of `labels`.

    Arguments:
        network: It is moved to the device.
        dataset: Its mean and deviation are what the images are normalised with.
        layers: Out of the network's ``features``.
        device: A device, or one of `sortnet.lab.training.DEVICES`.
        show: Called with the progress.
    """
    machine = Machine.here("off", device=device)
    network = machine.place(network).eval()
    total, done = len(labels(dataset)), 0
    found: dict[str, Tensor] = {}
    # Kernels are made for large tensors only, and round in their own way.
    with torch.inference_mode(), kernels.using("plain"):
        for images, count in _groups(dataset):
            responses = network.extract_features(machine.images(images), *layers)
            for layer, response in responses.items():
                rows = _pooled(response)[:count]
                if layer not in found:
                    found[layer] = torch.empty(total, rows.shape[1])
                found[layer][done : done + count] = rows
            done += count
            if show is not None:
                show("features", done, total)
    return found


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
    return response.flatten(2).mean(2) if response.dim() > 2 else response


@dataclass(frozen=True, eq=False)
class FeatureSource:
    """A network, a data set, and the layers that give the features.

    Attributes:
        directory: Where the network is.
        network: With its weights.
        config: What it is.
        dataset: Normalised as the network's own images were.
        layers: Names of activations.
        device: Where the network runs.
        cache: Where features are kept if no other place is named.
    """

    directory: Path
    network: Network
    config: Config
    dataset: Dataset
    layers: tuple[str, ...]
    device: torch.device
    cache: Path

    @classmethod
    def of(
        cls,
        directory: str | Path,
        name: str,
        root: str | Path,
        layers: Sequence[str],
        device: str = "auto",
    ) -> "FeatureSource":
        """Load a network, and the data set with the network's image size and normalization.

        Arguments:
            directory: Of a run, or of a saved network.
            name: A data set's name, or the path of an image folder.
            root: The directory of all data.
            layers: Names of activations; the last pooling and what follows it without any.
            device: Where the network runs, one of `sortnet.lab.training.DEVICES`.
        """
        chosen = resolve_device(device)
        network, config = runs.load(directory)
        if not isinstance(network, Network):
            raise UsageError(f"{config.title} has no named activations; the paper's networks do")
        layers = tuple(dict.fromkeys(layers)) or last_layers(network)
        for layer in layers:
            if layer not in network.features:
                there = ", ".join(network.features)
                raise UsageError(f"{config.title} has no layer {layer!r}; there are {there}")
        dataset = data.load(name, root, size=config.size)
        mean, std = ((x[0], x[1], x[2]) for x in (config.mean, config.std))
        dataset = replace(dataset, mean=mean, std=std)
        # What comes with the package has no directory of its own to write to.
        home = Path(root) / directory if is_shipped(directory) else Path(directory)
        cache = home / "features"
        return cls(Path(directory), network, config, dataset, layers, chosen, cache)

    def features(self, cache: str | Path | None, show: Show | None) -> dict[str, Tensor]:
        """Return the features of all layers, from the cache where possible.

        Arguments:
            cache: A directory; without it ``features`` in the network's own, or, of a network
                that comes with the package, below the directory of all data.
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
        if self.device.type != "cpu":  # which rounds in its own way
            about |= {"device": self.device.type}
        about |= {"data": self.dataset.fingerprint, "images": len(labels(self.dataset))}
        return {layer: {"layer": layer, **about} for layer in self.layers}


def last_layers(network: Network) -> tuple[str, ...]:
    """Return the last pooling layer and those after it: pool5, fc6 and fc7 of AlexNet."""
    names = list(network.features)
    last = max(i for i, name in enumerate(names) if name.startswith("pool"))
    return tuple(names[last:])


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
            raise UsageError(f"{path} does not have the SHA-256 that was written down")
        return safetensors.torch.load(content)["features"]
    except FileNotFoundError:
        return None
    except ValueError as error:
        _log.warning("%s; its features are made again", error)
        return None


def _write(cache: Path, key: Mapping[str, object], rows: Tensor) -> None:
    path = _path(cache, key)
    content = safetensors.torch.save({"features": rows})
    files.write(path, content)
    files.write_json(path.with_suffix(".json"), {**key, "sha256": files.digest(content)})
