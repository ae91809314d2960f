"""Comparisons: pairs, resuming, verdicts, the stopping rule, and all kinds of models and data."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import sortnet
from sortnet.cli import main
from sortnet.errors import UsageError
from sortnet.lab import compare as comparison
from sortnet.lab import runs, sequential
from sortnet.lab.compare import answer as judge
from sortnet.lab.compare.plan import plan
from sortnet.lab.data.torch_datasets import from_torch
from sortnet.lab.recipes import SCRATCH
from sortnet.lab.report import page
from sortnet.lab.training import Diverged

RECIPE = replace(SCRATCH, batch=8).with_steps(4)
CLASSES = 5


def pixels(count: int) -> tuple[Tensor, Tensor]:
    """Images of 32 x 32 whose brightness says their class."""
    labels = torch.arange(count) % CLASSES
    noise = torch.randint(40, (count, 3, 32, 32), generator=torch.Generator().manual_seed(count))
    return (noise + 40 * labels.view(-1, 1, 1, 1)).to(torch.uint8), labels


class Pairs(torch.utils.data.Dataset[Any]):
    """A user's dataset of (image, label)."""

    def __init__(self, count: int, kind: str = "tensor") -> None:
        self.images, self.labels = pixels(count)
        self.kind = kind

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        image: Any = self.images[i]
        if self.kind == "pil":
            image = Image.fromarray(image.permute(1, 2, 0).numpy())
        return image, int(self.labels[i])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of five classes."""
    root = tmp_path_factory.mktemp("data") / "shades"
    pairs = Pairs(30, "pil")
    for i in range(len(pairs)):
        image, label = pairs[i]
        (root / f"shade{label}").mkdir(parents=True, exist_ok=True)
        image.save(root / f"shade{label}" / f"{i}.png")
    return root


class Block(nn.Module):
    """An addition."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Add a branch."""
        return x + torch.relu(self.conv(x))


class Looping(nn.Module):
    """Python control flow around an addition."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.stem, self.block = nn.Conv2d(3, 4, 3, 2), Block()
        self.head = nn.Linear(4, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Use the block until the images are small."""
        x = self.stem(x)
        while x.shape[-1] > 4:
            x = self.block(x)[..., ::2, ::2]
        return self.head(x.mean((2, 3)))  # type: ignore[no-any-return]


def hugging_face(num_classes: int) -> nn.Module:
    """A small ResNet, whose output is an object with logits."""
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_labels=num_classes
    )
    return transformers.ResNetForImageClassification(config)  # type: ignore[no-any-return]


def small(model: Any, data: Any, out: Path, **options: Any) -> comparison.Answer:  # noqa: ANN401
    given: dict[str, Any] = {"recipe": RECIPE, "seeds": 1, "cost": False}
    given |= {"precision": "float32", **options}
    return sortnet.compare(model, data, out=out, **given)


MODELS = {
    "torchvision": "torchvision:resnet18",
    "timm, convolutions": "timm:test_resnet",
    "timm, transformer": "timm:test_vit",
    "hugging face": hugging_face,
    "control flow": Looping,
}


@pytest.mark.parametrize("kind", MODELS)
def test_any_model_on_a_folder(kind: str, folder: Path, tmp_path: Path) -> None:
    if kind.startswith("timm"):
        pytest.importorskip("timm")
    found = small(MODELS[kind], folder, tmp_path, size=32, steps=2, gate="zero")
    assert found.data == str(folder)
    for outcome in found.outcomes:
        assert runs.result(tmp_path / outcome.runs[0]) is not None
        assert outcome.errors[0] is not None


def test_sum_against_sum_is_bit_identical(tmp_path: Path) -> None:
    """Two trainings, from the same weights with the same batches, end in the same bits."""
    found = small(Looping, (Pairs(20), Pairs(10)), tmp_path, fusions=("sum", "sum"), seeds=3)
    one, other = (
        [(tmp_path / run / "model.safetensors").read_bytes() for run in outcome.runs.values()]
        for outcome in found.outcomes
    )
    assert one == other
    assert found.outcomes[0].runs != found.outcomes[1].runs
    assert found.verdict == "cannot tell: the difference is +0.00 points on every seed"


def test_a_killed_comparison_resumes_and_trains_nothing_twice(tmp_path: Path) -> None:
    data = (Pairs(20), Pairs(10))
    whole = small(Looping, data, tmp_path / "whole", seeds=2)

    def kill(title: str, done: int, total: int) -> None:
        if done == 10:  # in the middle of the third of four runs
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small(Looping, data, tmp_path / "parts", seeds=2, show=kill)
    ended = {path: path.stat().st_mtime_ns for path in (tmp_path / "parts").rglob("result.json")}
    assert len(ended) == 2
    parts = small(Looping, data, tmp_path / "parts", seeds=2)
    assert [o.errors for o in parts.outcomes] == [o.errors for o in whole.outcomes]
    assert all(path.stat().st_mtime_ns == before for path, before in ended.items())
    events = [runs.events(path.parent) for path in (tmp_path / "parts").rglob("run.json")]
    assert sum(event["event"] == "resume" for own in events for event in own) == 1


def test_a_diverging_variant_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = runs.train

    def diverging(run: runs.Run, *rest: Any, **options: Any) -> runs.Result:  # noqa: ANN401
        if run.fusion == "sort" and run.seed == 1:
            raise Diverged(3, "the loss")
        return train(run, *rest, **options)

    monkeypatch.setattr(runs, "train", diverging)
    fusions = ("sum", "sort", "sum+max")
    found = small(Looping, (Pairs(20), Pairs(10)), tmp_path, seeds=3, fusions=fusions)
    _, sort, most = found.outcomes
    assert sort.text.startswith("cannot tell: it diverged on 1 of 3 seeds; try a gate")
    assert None not in most.errors.values()
    assert "(1 diverged)" in str(found)


def judged(looks: int | None = None, **errors: Sequence[float | None]) -> dict[str, Any]:
    """Verdicts on made-up errors, the baseline first."""
    by_seed = {label: dict(enumerate(values)) for label, values in errors.items()}
    return judge._judged(by_seed, looks)


def test_verdicts() -> None:
    base = [10.0, 11.0, 10.5]
    cases: dict[str, tuple[list[float | None], str]] = {
        "helps": ([9.0, 9.9, 9.6], r"helps by 0\.75 to 1\.25 points"),
        "hurts": ([11.0, 12.1, 11.4], r"hurts by 0\.75 to 1\.25 points"),
        "unclear": ([9.0, 12.0, 10.4], r"between -2\.52 and \+2\.45 .* need about 34 seeds"),
        "precise": ([10.01, 10.99, 10.5], "half a point would probably have been found"),
        "two": ([9.0, 9.9], "2 seeds decide nothing, at least 3 are needed"),
        "lost": ([9.0, None, 9.5], "it diverged on 1 of 3 seeds"),
    }
    for name, (values, says) in cases.items():
        _, kind, text = judged(sum=list(base), sort=values)["sort"]
        assert kind == (name if name in ("helps", "hurts") else "cannot tell")
        assert re.search(says, text), text


def test_many_variants_need_stronger_evidence() -> None:
    """A difference that decides one comparison does not decide several, once p is corrected."""
    base, better = [10.0, 11.0, 10.5], [9.2, 10.5, 10.05]
    assert judged(sum=base, sort=better)["sort"][1] == "helps"
    both = judged(sum=base, sort=better, other=[9.0, 12.0, 10.4], third=[9.4, 11.9, 10.2])
    difference, kind, text = both["sort"]
    assert kind == "cannot tell"
    assert "3 comparisons were made" in text
    assert difference.adjusted_p == pytest.approx(3 * difference.p)


def decisions(shift: float, cases: int, looks: int = 10) -> np.ndarray[Any, Any]:
    """Whether the stopping rule decides, for many sequences of differences of deviation 1."""
    values = np.random.default_rng(20).standard_normal((cases, looks)) + shift
    found = np.zeros(cases, dtype=bool)
    for count, limit in sequential.boundaries(looks).items():
        seen = values[:, :count]
        error = seen.std(1, ddof=1) / np.sqrt(count)
        found |= np.abs(seen.mean(1)) > limit * error
    return found


def test_the_stopping_rule_keeps_its_error_rate_and_finds_one_deviation() -> None:
    """Wrong in at most 5 % of null cases; a difference of one deviation is found in 75 %.

    Four standard errors of a binomial share are allowed: 0.028 in 1,000 cases at 0.05, and 0.0028
    in 100,000.
    """
    assert decisions(0.0, 1_000).mean() <= 0.05 + 0.028
    assert abs(decisions(0.0, 100_000).mean() - 0.05) <= 0.0028
    assert decisions(1.0, 100_000).mean() >= 0.74
    assert decisions(2.0, 10_000).mean() >= 0.99


def test_the_rule_that_was_simulated_is_the_rule_that_is_used() -> None:
    values = np.random.default_rng(20).standard_normal((60, 10)) + 0.8
    base = dict.fromkeys(range(10), 0.0)
    used = [judge._sign(dict(enumerate(row)), base, 10, 1) != 0 for row in values.tolist()]
    assert used == decisions(0.8, 60).tolist()
    assert 0 < sum(used) < 60


@pytest.mark.parametrize(("deviation", "difference"), [(1.0, 1.0), (0.4, 0.5), (0.6, 0.3)])
def test_the_seeds_that_are_named_are_enough(deviation: float, difference: float) -> None:
    """By simulation: the planned number has the power, and a quarter less has not."""
    from scipy.stats import ttest_1samp

    needed = sequential.seeds_needed(deviation, difference)
    random = np.random.default_rng(1)
    for count, least, most in ((needed, 0.78, 1.0), (3 * needed // 4, 0.0, 0.8)):
        values = random.normal(difference, deviation, (20_000, count))
        share = (ttest_1samp(values, 0, axis=1).pvalue < 0.05).mean()
        assert least <= share <= most


def test_the_docs_have_the_table_of_seeds() -> None:
    text = (Path(__file__).parents[1] / "docs" / "compare.md").read_text()
    differences = (0.1, 0.2, 0.5, 1.0, 2.0)
    assert f"| deviation | {' | '.join(f'{d:g} points' for d in differences)} |\n" in text
    for deviation in (0.1, 0.2, 0.3, 0.5, 1.0, 2.0):
        needed = [sequential.seeds_needed(deviation, d) for d in differences]
        assert f"| {deviation:g} | {' | '.join(f'{count:,}' for count in needed)} |\n" in text


def test_seeds_are_added_until_the_interval_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops at the look that decides, not before the third seed and not after the last."""
    asked: list[int] = []

    def error(_planned: object, run: runs.Run, _progress: object) -> float:
        asked.append(run.seed)
        return 5.0 + 0.1 * (run.seed % 3) if run.fusion == "sort" else 10.0

    monkeypatch.setattr(comparison, "_error", error)
    data = (Pairs(20), Pairs(10))
    found = small(Looping, data, tmp_path, until_decided=True, max_seeds=6)
    assert found.outcomes[1].verdict == "helps"
    assert 3 <= found.seeds < 6
    assert max(asked) == found.seeds - 1
    with pytest.raises(UsageError, match="was planned for at most 6 seeds"):
        small(Looping, data, tmp_path, until_decided=True, max_seeds=9)
    same = small(
        Looping, data, tmp_path / "b", until_decided=True, max_seeds=4, fusions=["sum"] * 2
    )
    assert same.seeds == 4


def test_one_seed_and_what_only_this_process_knows_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "lenet", "--data", "digits", "--branched", "--seeds", "1"]) == 2
    assert capsys.readouterr().err.startswith("sortnet: --seeds is 1, which gives no interval; ")
    with pytest.raises(UsageError, match="finds a model and data only by name"):
        small(Looping, (Pairs(20), Pairs(10)), tmp_path, train_all=lambda *_: {})


def test_the_answer_in_every_form(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In 80 columns, as JSON and on the page; the cost is measured."""
    out, file = tmp_path / "out", tmp_path / "answer.json"
    flags = ["--data", str(folder), "--size", "32", "--steps", "2", "--seeds", "2", "--batch", "8"]
    flags += ["--out", str(out), "--json", str(file), "--branched"]
    assert main(["compare", "lenet", *flags]) == 0
    captured = capsys.readouterr()
    told, progress = captured.out, captured.err.splitlines()
    assert progress == [
        *(f"run {i + 1} of 4: {('LeNet*', 'LeNet*-SORT')[i % 2]}" for i in range(4)),
        "measuring step time and memory",
    ]
    assert max(map(len, told.split("\n\n")[0].splitlines())) <= 80
    for line in told.splitlines():
        assert len(line) <= 80 or str(out) in line
    answer = json.loads(file.read_text())
    assert answer["verdict"] == "cannot tell: 2 seeds decide nothing, at least 3 are needed"
    assert answer["verdict"] in told
    costs = [outcome["cost"] for outcome in answer["outcomes"]]
    assert costs[0]["parameters"] == costs[1]["parameters"]
    assert costs[1]["step_ratio"]["low"] <= costs[1]["step_ratio"]["median"]
    assert all(cost["saved"] > 0 for cost in costs)
    assert (out / "curves.png").stat().st_size > 0
    shown = page.build([out])
    assert "2 seeds decide nothing" in shown
    assert 'faults":[]' in shown


@pytest.mark.parametrize("kind", ["tensor", "pil"])
def test_a_pair_of_datasets_is_read_as_it_is(kind: str) -> None:
    found = from_torch(Pairs(20, kind), Pairs(10, kind))
    assert torch.equal(found.train.picture(3), pixels(20)[0][3])
    assert found.test.labels.tolist() == pixels(10)[1].tolist()
    assert found.classes == ("0", "1", "2", "3", "4")
    assert found.fingerprint != from_torch(Pairs(25, kind), Pairs(10, kind)).fingerprint


class Odd(Pairs):
    """A dataset that yields something else in its second item."""

    def __init__(self, item: object) -> None:
        super().__init__(4)
        self.item = item

    def __getitem__(self, i: int) -> Any:  # noqa: ANN401
        return self.item if i == 1 else super().__getitem__(i)


IMAGE = torch.zeros(3, 32, 32, dtype=torch.uint8)
ODD = {
    "one thing": (
        IMAGE,
        "item 1 of the training set is a Tensor of 3, not an .image, label. pair",
    ),
    "three": ((IMAGE, 1, 2), "is a tuple of 3, not"),
    "no image": (("cat.png", 1), "is a str, not a tensor or a PIL image"),
    "flat": ((IMAGE[0], 1), r"has the shape \(32, 32\), not"),
    "other size": (
        (IMAGE[:, :9, :9], 1),
        "item 1 of the training set is 9 px of uint8, item 0 32",
    ),
    "no class": ((IMAGE, 0.5), "the label of item 1 of the training set is 0.5, not a class"),
    "name": ((IMAGE, "cat"), "is 'cat', not a class"),
}


@pytest.mark.parametrize("kind", ODD)
def test_a_dataset_that_yields_something_else(kind: str) -> None:
    item, says = ODD[kind]
    with pytest.raises(UsageError, match=says) as error:
        from_torch(Odd(item), Pairs(10))
    assert "\n" not in str(error.value)


def chain(num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, num_classes))


def three() -> nn.Module:
    return Looping(3)


def restless() -> nn.Module:
    model = Looping(5)
    nn.init.constant_(model.head.bias, float(np.random.default_rng().random()))
    return model


def test_what_cannot_be_compared_is_one_line(tmp_path: Path) -> None:
    """And nothing is trained."""
    data = (Pairs(20), Pairs(10))
    cases: list[tuple[Any, Any, dict[str, Any], str]] = [
        (chain, data, {}, "Sequential has no addition"),
        (three, data, {}, r"returns \(2, 3\) for 2 images, but own-\w+ has 5 classes"),
        (restless, data, {}, "starts from other weights each time"),
        (Looping(5), data, {}, "the model is a Looping: give a name, or a function"),
        (Looping, Pairs(4), {}, "data is a Pairs: give a name, a folder, or a pair"),
        (Looping, data, {"fusions": ("sort",)}, "two fusions or more"),
        (Looping, data, {"fusions": ("sum", "sorted")}, "unknown term 'sorted'"),
        (Looping, data, {"where": "layer9"}, "'layer9' matches none"),
        (Looping, data, {"seeds": 0}, "--seeds is 0"),
        (Looping, data, {"until_decided": True, "max_seeds": 2}, "--max-seeds is 2"),
        (Looping, data, {"steps": 1, "epochs": 1}, "give one of them"),
        (Looping, data, {"recipe": "scrach"}, "unknown recipe 'scrach'"),
        ("resnet21", data, {}, "did you mean .*resnet20"),
        ("nowhere:make", data, {}, "there is no module 'nowhere'"),
    ]
    for model, given, options, says in cases:
        with pytest.raises(UsageError, match=says) as error:
            small(model, given, tmp_path / "out", **options)
        assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_adamw_resumes_bit_for_bit(tmp_path: Path) -> None:
    recipe = replace(SCRATCH, batch=8).with_adamw().with_steps(6)
    assert recipe.learning_rate(1) == pytest.approx(0.001, rel=0.3)
    data = (Pairs(20), Pairs(10))
    whole = small(Looping, data, tmp_path / "whole", recipe=recipe)

    def kill(title: str, done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small(Looping, data, tmp_path / "parts", recipe=recipe, show=kill)
    small(Looping, data, tmp_path / "parts", recipe=recipe)
    for run in (outcome.runs[0] for outcome in whole.outcomes):
        one, other = (
            (tmp_path / place / run / "model.safetensors").read_bytes()
            for place in ("whole", "parts")
        )
        assert one == other


def test_a_trained_network_is_compared_from_its_own_weights(tmp_path: Path) -> None:
    """With zero gates both variants start as the network that was given."""
    planned = plan(
        "resnet20-cifar10",
        "digits",
        ("sum", "sort"),
        recipe="finetune",
        steps=1,
        epochs=None,
        gate=None,
        where=None,
        weights=None,
        pretrained=False,
        size=None,
        options={},
        validation=0,
        out=tmp_path,
        root="data",
        precision="float32",
        device="cpu",
    )
    planned.check_starts()
    network, _ = sortnet.load("resnet20-cifar10")
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        for variant in planned.variants:
            assert torch.equal(planned.build(variant).eval()(images), network(images))
