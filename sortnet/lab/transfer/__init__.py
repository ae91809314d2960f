"""Transfer (section 4.3): linear models on a network's features of other images.

The names here load a network, show it the images and evaluate; `extract` and `linear` have the
two halves of that.
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

    All images of the data set, whatever split they are in, are drawn from.

    Arguments:
        model: The directory of a run or of a network written by `sortnet.pretrained.save`; or a
            network and its `sortnet.pretrained.Config`.
        data: A data set's name, in the paper ``caltech256``, or the path of an image folder.
        root: The directory of all data.
        layers: Names of activations; without any the last pooling and what follows it, which in
            AlexNet is the paper's pool5, fc6 and fc7. Of a model that is not the paper's, names
            of modules; without any the input of its last linear layer.
        per_class: Training images of each category; all others are for testing.
        splits: How many times they are drawn.
        seed: Of the splits.
        cache: Where features are kept; ``features`` in the network's directory without it.
        device: Where the network runs, one of `sortnet.lab.training.DEVICES`.
        show: Is told of the progress.
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
    """Evaluate a network's features by a linear probe on the data set's own split.

    Arguments:
        model: The directory of a run or of a network written by `sortnet.pretrained.save`; or a
            network and its `sortnet.pretrained.Config`.
        data: A data set's name, or the path of an image folder.
        root: The directory of all data.
        layers: As in `transfer`.
        cache: Where features are kept; ``features`` in the network's directory without it.
        device: Where the network runs, one of `sortnet.lab.training.DEVICES`.
        show: Is told of the progress.
    """
    source = FeatureSource.of(model, data, root, layers, device)
    found = source.features(cache, show)
    every = labels(source.dataset)
    train, test = slice(len(source.dataset.train)), slice(-len(source.dataset.test), None)
    return {
        layer: fit_probe(found[layer][train], every[train], found[layer][test], every[test])
        for layer in source.layers
    }
