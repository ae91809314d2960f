"""Does it help this model on this data? Paired seeds, an interval, the cost, and a verdict.

Seed by seed, every variant starts from the same weights and sees the same batches. All variants
are trained by the one training loop, in run directories, so that a comparison that was stopped
resumes where it was. `sortnet.lab.compare.answer` has the rules of the verdict.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from sortnet import files
from sortnet.errors import UsageError
from sortnet.lab import runs
from sortnet.lab.compare.answer import Answer, Cost, decided
from sortnet.lab.compare.plan import ComparisonPlan, plan
from sortnet.lab.compare.variant_costs import measure_costs
from sortnet.lab.recipes import Recipe
from sortnet.lab.runs import Result, Run
from sortnet.lab.statistics import FEWEST
from sortnet.lab.training import Callback, Diverged, TrainerOptions, description

__all__ = ["FILE", "Answer", "Cost", "compare"]

FILE = "comparison.json"
"""The answer's file in the comparison's directory, where the page finds it."""
MAX_SEEDS = 10

Show = Callable[[str, int, int], None]
"""Called with a description, the number of steps done, and the total (0 if there are none)."""
TrainAll = Callable[[Sequence[Run], Path, Path], Mapping[str, Any]]
"""Called with runs, their directory and that of the datasets; returns results by run id."""


def compare(
    model: str | Callable[..., nn.Module],
    data: Any,  # noqa: ANN401
    fusions: Sequence[str] = ("sum", "sort"),
    seeds: int = 3,
    *,
    recipe: str | Recipe = "scratch",
    steps: int | None = None,
    epochs: float | None = None,
    gate: str | None = None,
    where: str | None = None,
    weights: str | Path | None = None,
    pretrained: bool = False,
    size: int | None = None,
    options: dict[str, Any] | None = None,
    validation: int = 0,
    until_decided: bool = False,
    max_seeds: int = MAX_SEEDS,
    out: str | Path | None = None,
    root: str | Path = "data",
    precision: str = "auto",
    device: str = "auto",
    cost: bool = True,
    show: Show | None = None,
    train_all: TrainAll | None = None,
) -> Answer:
    """Compare fusions in a model on a dataset, over paired seeds.

    Arguments:
        model: Name of a model (see `sortnet.modelspec`), directory of a run, or a function that
            returns a new model; it is called with ``num_classes=`` if it has such a parameter.
        data: Name of a dataset, path of an image folder, or a pair of PyTorch datasets (train,
            test) that yield (image, label).
        fusions: The variants; the first one is the baseline.
        seeds: Number of seeds. Fewer than three decide nothing.
        recipe: ``scratch``, ``finetune``, the name of another recipe, or a `Recipe`.
        steps: Steps of each run; by default those of the recipe.
        epochs: Epochs of each run, instead of steps.
        gate: ``zero`` or ``one``: multiply the second-order term by a learnable number per channel
            with this initial value.
        where: A pattern over the sites to fuse; by default all sites.
        weights: Weights to start from: a run, a safetensors file or a state dict.
        pretrained: Start from the weights that torchvision or timm offers for download.
        size: Side to which the images of a folder are resized.
        options: Further arguments of `sortnet.create_model`, for a network of the paper.
        validation: Number of training images to hold out for learning curves.
        until_decided: Add seeds until every interval decides, by the stopping rule of
            `sortnet.lab.sequential`; ``seeds`` is not used.
        max_seeds: Largest number of seeds with ``until_decided``.
        out: Directory of the comparison; by default ``runs/compare-DATA-MODEL``.
        root: Directory of all datasets.
        precision: ``auto``, ``float32``, ``bfloat16`` or ``float16``.
        device: One of `sortnet.lab.training.DEVICES`.
        cost: Whether to measure step time, inference time and bytes saved for backward.
        show: Called after each step.
        train_all: Trains runs in other processes, such as `sortnet.lab.sweep.grid.train_all` with
            its engine; by default runs are trained in this process, one after the other.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as out:
        ...     answer = compare("lenet", "digits", seeds=1, steps=2, cost=False, out=out,
        ...                      options={"branched": True})
        >>> answer.verdict
        'cannot tell: 1 seed decides nothing, at least 3 are needed'
    """
    planned = plan(
        model,
        data,
        fusions,
        recipe=recipe,
        steps=steps,
        epochs=epochs,
        gate=gate,
        where=where,
        weights=weights,
        pretrained=pretrained,
        size=size,
        options=options or {},
        validation=validation,
        out=out,
        root=root,
        precision=precision,
        device=device,
    )
    looks = max_seeds if until_decided else None
    _check_seeds(planned, seeds, looks)
    planned.check_starts()
    if train_all is None:
        errors = _train(planned, seeds, looks, show)
    else:
        errors = _train_elsewhere(planned, seeds, looks, train_all)
    if cost and show is not None:
        show("measuring step time and memory", 0, 0)
    costs = measure_costs(planned) if cost else None
    answer = Answer.of(planned, errors, costs, looks)
    planned.out.mkdir(parents=True, exist_ok=True)
    files.write_json(planned.out / FILE, answer.as_json() | {"machine": description()})
    return answer


def _check_seeds(planned: ComparisonPlan, seeds: int, looks: int | None) -> None:
    """Refuse invalid numbers of seeds, and a changed plan of a sequential comparison."""
    if looks is None:
        if seeds < 1:
            raise UsageError(f"--seeds is {seeds}, but must be 1 or more; {FEWEST} can decide")
        return
    if looks < FEWEST:
        raise UsageError(f"--max-seeds is {looks}, but fewer than {FEWEST} decide nothing")
    path = planned.out / FILE
    before = files.read_json(path).get("max_seeds") if path.is_file() else None
    if before not in (None, looks):
        raise UsageError(
            f"{planned.out} was planned for at most {before} seeds, and raising that after a look"
            f" would not keep the error rate: --max-seeds {before}, or another --out"
        )


def _train(
    planned: ComparisonPlan, seeds: int, looks: int | None, show: Show | None
) -> dict[str, dict[int, float | None]]:
    """Train every variant on every seed; return the test errors by variant and seed."""
    errors: dict[str, dict[int, float | None]] = {v.label: {} for v in planned.variants}
    progress = _Progress(planned, looks or seeds, show)
    for seed in range(looks or seeds):
        for variant in planned.variants:
            run = planned.run(variant, seed)
            errors[variant.label][seed] = _error(planned, run, progress)
            progress.finish()
        if looks is not None and decided(errors, looks):
            break
    return errors


def _train_elsewhere(
    planned: ComparisonPlan, seeds: int, looks: int | None, train_all: TrainAll
) -> dict[str, dict[int, float | None]]:
    """Train all variants and seeds in other processes; return the errors by variant and seed."""
    if planned.function is not None or not planned.is_named:
        raise UsageError(
            "another process finds a model and data only by name: give package.module:function,"
            " and the name of a dataset or a folder"
        )
    errors: dict[str, dict[int, float | None]] = {v.label: {} for v in planned.variants}
    groups = [range(seeds)]
    if looks is not None:  # the first decision needs three seeds, every other one more
        groups = [range(FEWEST), *(range(seed, seed + 1) for seed in range(FEWEST, looks))]
    for group in groups:
        todo = {(v.label, seed): planned.run(v, seed) for v in planned.variants for seed in group}
        found = train_all(list(todo.values()), planned.out, planned.root)
        for (label, seed), run in todo.items():
            result = found[run.id]
            if not isinstance(result, Result):
                raise OSError(f"{run.id} could not be trained: {result.reason}")
            errors[label][seed] = result.error if result.ended == "finished" else None
        if looks is not None and decided(errors, looks):
            break
    return errors


def _error(planned: ComparisonPlan, run: Run, progress: Callback) -> float | None:
    """Train a run and return its test error; None if it diverged."""
    try:
        result = runs.train(
            run,
            planned.out,
            planned.root,
            options=TrainerOptions(keep=1, device=planned.device),
            callbacks=[progress],
            make=planned.make(run),
            dataset=planned.dataset,
        )
    except Diverged:
        return None
    return result.error if result.ended == "finished" else None


class _Progress(Callback):
    """Counts the steps of all runs together."""

    def __init__(self, planned: ComparisonPlan, seeds: int, show: Show | None) -> None:
        self.show, self.steps, self.done, self.title = show, planned.recipe.steps, 0, ""
        self.runs = seeds * len(planned.variants)
        self.total = self.runs * self.steps

    def start(self, title: str, step: int, steps: int) -> None:
        self.title = f"run {self.done // self.steps + 1} of {self.runs}: {title}"

    def step(self, step: int, images: int) -> None:
        if self.show is not None:
            self.show(self.title, self.done + step, self.total)

    def finish(self) -> None:
        """Count a run that has ended, now or in an earlier process."""
        self.done += self.steps
        self.step(0, 0)
