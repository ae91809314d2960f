"""Linear models on features: the paper's protocol with LIBLINEAR, and a linear probe."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sortnet.errors import UsageError
from sortnet.lab.data.dataset import stratified_split
from sortnet.lab.data.seeds import generator
from sortnet.lab.transfer.extract import Show

STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)
"""Values of C that a probe selects from."""


@dataclass(frozen=True)
class Transfer:
    """Accuracy on each split of the protocol, as the mean over the categories.

    Attributes:
        accuracies: Accuracies in percent.

    Example:
        >>> print(Transfer((70.0, 71.0, 72.0)))
        71.00 ± 1.00 %
    """

    accuracies: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean over the splits."""
        return statistics.fmean(self.accuracies)

    @property
    def std(self) -> float | None:
        """The standard deviation; one split has none."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else None

    def __str__(self) -> str:
        deviation = "" if self.std is None else f" ± {self.std:.2f}"
        return f"{self.mean:.2f}{deviation} %"


@dataclass(frozen=True)
class Probe:
    """Accuracy of a logistic regression on features.

    Attributes:
        accuracy: Accuracy on the test images in percent.
        strength: The C that did best on a fifth of the training images.
    """

    accuracy: float
    strength: float

    def __str__(self) -> str:
        return f"{self.accuracy:.2f} % (C = {self.strength:g})"


def normalised(features: Tensor) -> Tensor:
    """Take the square root and scale to unit length; zero features stay zero.

    Example:
        >>> normalised(torch.tensor([[0.36, 0.64], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    return F.normalize(features.sqrt())


def evaluate(
    features: Tensor,
    labels: Tensor,
    per_class: int = 60,
    splits: int = 10,
    seed: int = 0,
    *,
    show: Show | None = None,
) -> Transfer:
    """Train and test LIBLINEAR on random splits (section 4.3).

    Arguments:
        features: Non-negative features, one row per image; `normalised` is applied here.
        labels: Categories of the images.
        per_class: Training images per category; all others are for testing.
        splits: Number of random splits.
        seed: Seed of the splits.
        show: Called with the progress.
    """
    from sklearn.svm import LinearSVC

    enough(labels, per_class, splits)
    if len(features) != len(labels):
        raise UsageError(f"there are {len(features)} rows of features for {len(labels)} images")
    if not (features.isfinite() & (features >= 0)).all():
        raise UsageError("features must be finite and not negative: their roots are taken")
    rows, answers = normalised(features).numpy(), labels.numpy()
    accuracies = []
    for split in range(splits):
        train, test = divided(labels, per_class, seed, split)
        # The paper's slacking variable; no intercept, in the primal: `liblinear -s 2 -c 10`.
        svm = LinearSVC(C=10.0, fit_intercept=False, dual=False)
        svm.fit(rows[train], answers[train])
        right = torch.from_numpy(svm.predict(rows[test]) == answers[test]).double()
        count = torch.bincount(labels[test])
        accuracies.append(100 * float((torch.bincount(labels[test], right) / count).nanmean()))
        if show is not None:
            show("splits", split + 1, splits)
    return Transfer(tuple(accuracies))


def divided(labels: Tensor, per_class: int, seed: int, split: int) -> tuple[Tensor, Tensor]:
    """Return the rows for training and for testing, in ascending order.

    They depend only on (seed, split), and are drawn for each category separately.
    """
    train = torch.zeros(len(labels), dtype=torch.bool)
    for label in sorted(set(labels.tolist())):
        rows = (labels == label).nonzero().squeeze(1)
        source = generator("transfer", seed, split, label)
        train[rows[torch.randperm(len(rows), generator=source)[:per_class]]] = True
    return train.nonzero().squeeze(1), (~train).nonzero().squeeze(1)


def enough(labels: Tensor, per_class: int, splits: int, classes: Sequence[str] = ()) -> None:
    """Raise an error if there are too few images for the protocol.

    Arguments:
        labels: Categories of the images.
        per_class: Training images per category.
        splits: Number of random splits.
        classes: Names of the categories, for the error message; all of them must have images.
    """
    if per_class < 1 or splits < 1:
        raise UsageError(
            f"splits is {splits} and per_class is {per_class}, but both must be 1 or more"
        )
    counts = torch.bincount(labels, minlength=len(classes))
    sizes = {i: n for i, n in enumerate(counts.tolist()) if n or i < len(classes)}
    if len(sizes) < 2:
        raise UsageError("there must be at least two categories")
    least = min(sizes, key=lambda label: sizes[label])
    if sizes[least] <= per_class:
        name = repr(classes[least]) if classes else least
        raise UsageError(
            f"category {name} has {sizes[least]} images, but {per_class} for training and at least"
            " one for testing are needed; choose fewer (--per-class) or leave the category out"
        )


def fit_probe(train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor) -> Probe:
    """Fit a logistic regression, with C selected on a fifth of the training images.

    Features are standardized to mean 0 and deviation 1 over the images that are fitted.

    Arguments:
        train: Features of the training images, one row per image.
        train_labels: Their classes.
        test: Features of the test images, which are used once.
        test_labels: Their classes.
    """
    rest, held = stratified_split(train_labels, max(1, len(train) // 5), "probe")
    if len(set(train_labels[rest].tolist())) < 2:
        raise UsageError("a probe needs training images of two classes or more")

    def chosen(strength: float) -> float:
        model = _logistic(strength).fit(train[rest].numpy(), train_labels[rest].numpy())
        return float(model.score(train[held].numpy(), train_labels[held].numpy()))

    strength = max(STRENGTHS, key=chosen)
    model = _logistic(strength).fit(train.numpy(), train_labels.numpy())
    return Probe(100 * float(model.score(test.numpy(), test_labels.numpy())), strength)


def _logistic(strength: float) -> Any:  # noqa: ANN401
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=5000))
