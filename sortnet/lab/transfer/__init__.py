"""Transfer (section 4.3): linear models on a network's features of other images.

`transfer` and `probe` load a network, extract its features (`extract`) and evaluate them
(`linear`).
"""

from collections.abc import Sequence
from pathlib import Path

from sortnet.lab.transfer.extract import FeatureSource, Model, Show, features, labels
from sortnet.lab.transfer.linear import Probe, Transfer, enough, evaluate, fit_probe, normalised

__all__ = [
    "Model",
    "Probe",
    "Show",
    "Transfer",
    "evaluate",
    "features",
    "fit_probe",
    "labels",
    "normalised",
    "probe",
    "transfer",
]


def transfer(
    model: Model,
    data: str,
    root: str | Path = "data",
    layers: Sequence[str] = (),
    *,
    per_class: int = 60,
    splits: int = 10,
    seed: int = 0,
    cache: str | Path | None = None,
    device: str = "auto",
    show: Show | None = None,
) -> dict[str, Transfer]:
    """Evaluate a network's features by the paper's protocol, layer by layer.

    Splits are drawn from all images of the dataset; its own splits are ignored.

    Arguments:
        model: The directory of a run or of a network written by `sortnet.pretrained.save`; or a
            network and its `sortnet.pretrained.Config`.
        data: Name of a dataset, in the paper ``caltech256``, or path of an image folder.
        root: Directory of all datasets.
        layers: Names of activations; by default the last pooling layer and those after it: pool5,
            fc6 and fc7 of AlexNet, as in the paper. For models that are not from the paper: names
            of modules; by default the input of the last linear layer.
        per_class: Training images per category; all others are for testing.
        splits: Number of random splits.
        seed: Seed of the splits.
        cache: Directory of cached features; by default ``features`` in the network's directory.
        device: Device of the network, one of `sortnet.lab.training.DEVICES`.
        show: Called with the progress.
    """
    source = FeatureSource.of(model, data, root, layers, device)
    every = labels(source.dataset)
    enough(every, per_class, splits, source.dataset.classes)
    found = source.features(cache, show)
    return {
        layer: evaluate(found[layer], every, per_class, splits, seed, show=show)
        for layer in source.layers
    }


def probe(
    model: Model,
    data: str,
    root: str | Path = "data",
    layers: Sequence[str] = (),
    *,
    cache: str | Path | None = None,
    device: str = "auto",
    show: Show | None = None,
) -> dict[str, Probe]:
    """Evaluate a network's features by a linear probe on the dataset's own split.

    Arguments:
        model: The directory of a run or of a network written by `sortnet.pretrained.save`; or a
            network and its `sortnet.pretrained.Config`.
        data: Name of a dataset, or path of an image folder.
        root: Directory of all datasets.
        layers: As in `transfer`.
        cache: Directory of cached features; by default ``features`` in the network's directory.
        device: Device of the network, one of `sortnet.lab.training.DEVICES`.
        show: Called with the progress.
    """
    source = FeatureSource.of(model, data, root, layers, device)
    found = source.features(cache, show)
    every = labels(source.dataset)
    train, test = slice(len(source.dataset.train)), slice(-len(source.dataset.test), None)
    return {
        layer: fit_probe(found[layer][train], every[train], found[layer][test], every[test])
        for layer in source.layers
    }
