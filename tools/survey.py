"""SORT in models that are not ours: every case is converted, compared with itself and trained.

The number of places that a model should have is written down here from its architecture: the
depths of its stages, times the additions in a block. So a place that is missed shows.
"""

import copy
import gc
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sortnet import modelspec
from sortnet.fusion import kernels
from sortnet.lab.measure import saved_bytes
from sortnet.surgery import sites, sortify


@dataclass(frozen=True)
class Case:
    """A model to convert.

    Attributes:
        name: As `sortnet.modelspec.create` takes it.
        places: How many places it should have.
        why: What that number is made of, or why there are none.
        side: Of the images it is run on; small ones where the model allows it.
    """

    name: str
    places: int
    why: str
    side: int = 64


def _stages(name: str, depths: Iterable[int], each: int = 1, side: int = 64) -> Case:
    """A model of blocks in stages, each block with as many places."""
    depths = tuple(depths)
    times = f", {each} in each" if each > 1 else ""
    return Case(name, each * sum(depths), f"{' + '.join(map(str, depths))} blocks{times}", side)


def _inverted(name: str, repeats: Iterable[int], side: int = 64) -> Case:
    """A model of inverted residuals: the first block of a stage changes the shape."""
    repeats = tuple(repeats)
    why = f"stages of {', '.join(map(str, repeats))} blocks, all but each first"
    return Case(name, sum(n - 1 for n in repeats), why, side)


CASES = [
    _stages("torchvision:resnet18", (2, 2, 2, 2)),
    _stages("torchvision:resnet34", (3, 4, 6, 3)),
    _stages("torchvision:resnet50", (3, 4, 6, 3)),
    _stages("torchvision:resnet101", (3, 4, 23, 3)),
    _stages("torchvision:resnext50_32x4d", (3, 4, 6, 3)),
    _stages("torchvision:wide_resnet50_2", (3, 4, 6, 3)),
    _stages("torchvision:quantized_resnet18", (2, 2, 2, 2)),
    _stages("torchvision:regnet_x_400mf", (1, 2, 7, 12)),
    _stages("torchvision:regnet_y_400mf", (1, 3, 6, 6)),
    _stages("torchvision:regnet_y_800mf", (1, 3, 8, 2)),
    _inverted("torchvision:mobilenet_v2", (1, 2, 3, 4, 3, 3, 1)),
    Case("torchvision:mobilenet_v3_small", 6, "blocks of stride 1 that keep their channels"),
    Case("torchvision:mobilenet_v3_large", 10, "blocks of stride 1 that keep their channels"),
    Case("torchvision:quantized_mobilenet_v2", 10, "as mobilenet_v2"),
    _inverted("torchvision:mnasnet1_0", (3, 3, 3, 2, 4, 1)),
    _inverted("torchvision:efficientnet_b0", (1, 2, 2, 3, 3, 4, 1)),
    _inverted("torchvision:efficientnet_b1", (2, 3, 3, 4, 4, 5, 2)),
    Case(
        "torchvision:efficientnet_v2_s", 35, "2 blocks, then all but the first of 4, 4, 6, 9, 15"
    ),
    _stages("torchvision:convnext_tiny", (3, 3, 9, 3)),
    _stages("torchvision:vit_b_32", (12,), 2, 224),
    _stages("torchvision:vit_b_16", (12,), 2, 224),
    _stages("torchvision:swin_t", (2, 2, 6, 2), 2),
    _stages("torchvision:swin_v2_t", (2, 2, 6, 2), 2),
    _stages("torchvision:maxvit_t", (2, 2, 5, 2), 5, 224),
    _stages("torchvision:fcn_resnet50", (3, 4, 6, 3)),
    Case("torchvision:densenet121", 0, "concatenates; see examples/densenet.py"),
    Case("torchvision:googlenet", 0, "concatenates"),
    Case("torchvision:inception_v3", 0, "concatenates", 96),
    Case("torchvision:shufflenet_v2_x1_0", 0, "concatenates"),
    Case("torchvision:squeezenet1_1", 0, "concatenates"),
    Case("torchvision:vgg11", 0, "a chain; `branch` gives it branches"),
    Case("torchvision:alexnet", 0, "a chain; `branch` gives it branches"),
    _stages("timm:resnet26", (2, 2, 2, 2)),
    _stages("timm:resnet50d", (3, 4, 6, 3)),
    _stages("timm:seresnet50", (3, 4, 6, 3)),
    _stages("timm:ecaresnet26t", (2, 2, 2, 2)),
    _stages("timm:resnest14d", (1, 1, 1, 1)),
    _stages("timm:resnetv2_50", (3, 4, 6, 3)),
    Case("timm:res2net50_26w_4s", 40, "16 blocks, and 2 in all but each stage's first"),
    _stages("timm:regnetx_002", (1, 1, 4, 7)),
    _stages("timm:regnety_002", (1, 1, 4, 7)),
    Case("timm:repvgg_a0", 39, "22 blocks of 2 branches, 17 of them with a shortcut"),
    _stages("timm:inception_resnet_v2", (10, 20, 10), side=96),
    _stages("timm:dm_nfnet_f0", (1, 2, 6, 3)),
    _stages("timm:xception41", (1, 1, 1, 8, 1)),
    _stages("timm:convmixer_1024_20_ks9_p14", (20,)),
    _inverted("timm:mobilenetv2_100", (1, 2, 3, 4, 3, 3, 1)),
    Case("timm:mobilenetv3_small_100", 6, "blocks of stride 1 that keep their channels"),
    _inverted("timm:efficientnet_b0", (1, 2, 2, 3, 3, 4, 1)),
    _inverted("timm:mnasnet_100", (1, 3, 3, 3, 2, 4, 1)),
    _stages("timm:ghostnet_100", (1, 1, 1, 1, 1, 1, 5, 1, 4)),
    _stages("timm:convnext_atto", (2, 2, 6, 2)),
    _stages("timm:convnextv2_atto", (2, 2, 6, 2), 2),
    _stages("timm:vit_tiny_patch16_224", (12,), 2, 224),
    Case("timm:deit_tiny_distilled_patch16_224", 25, "12 blocks, 2 in each; its two heads", 224),
    _stages("timm:swin_tiny_patch4_window7_224", (2, 2, 6, 2), 2, 224),
    _stages("timm:pit_ti_224", (2, 6, 4), 2, 224),
    _stages("timm:poolformer_s12", (2, 2, 6, 2), 2),
    _stages("timm:mixer_s32_224", (8,), 2, 224),
    _stages("timm:resmlp_12_224", (12,), 2, 224),
    _stages("timm:gmlp_ti16_224", (30,), 1, 224),
    _stages("timm:mvitv2_tiny", (1, 2, 5, 2), 3, 224),
    Case("timm:densenet121", 0, "concatenates; see examples/densenet.py"),
]


@dataclass(frozen=True)
class Outcome:
    """What came of a case.

    Attributes:
        name: The model.
        places: How many were found.
        expected: How many there should be.
        why: Where that number is from.
        problems: The places that cannot be changed, and why.
        equal: Whether the copy with ``sum`` gave the model's outputs, bit for bit, in evaluation
            and in training, and left the model as it was.
        trained: Whether the copy with ``sort`` took a step with finite gradients.
        kept: Bytes kept for the backward pass, SORT relative to the sum.
    """

    name: str
    places: int
    expected: int
    why: str
    problems: dict[str, str]
    equal: bool = False
    trained: bool = False
    kept: float | None = None


def examine(case: Case) -> Outcome:
    """Convert a model and compare it with itself."""
    torch.manual_seed(0)
    model = modelspec.create(case.name)
    images = torch.randn(2, 3, case.side, case.side)
    found = sites(model, images)
    problems = {site.name: site.problem for site in found if site.problem}
    if not found or len(problems) == len(found):
        return Outcome(case.name, len(found), case.places, case.why, problems)

    def convert(fusion: str) -> nn.Module:
        return sortify(model, lambda site: not site.problem, fusion, example=images)

    same, new = convert("sum"), convert("sort")
    before = {key: value.clone() for key, value in model.state_dict().items()}
    equal = _same(model.eval(), same.eval(), images)
    equal = equal and _same(copy.deepcopy(model).train(), same.train(), images)
    left = model.state_dict()
    equal = equal and list(before) == list(left) == list(same.state_dict())
    equal = equal and all(torch.equal(value, left[key]) for key, value in before.items())
    with kernels.using("eager"):  # keeps what kernels keep, and need not make them
        kept = saved_bytes(new.train(), images) / saved_bytes(same, images)
        trained = _trains(new, images)
    return Outcome(
        case.name, len(found), case.places, case.why, problems, equal, trained, round(kept, 3)
    )


def _output(model: nn.Module, images: Tensor) -> Tensor:
    """The logits; some models give them with others."""
    output: Any = model(images)
    if isinstance(output, dict):
        output = output["out"]
    if isinstance(output, tuple):
        output = output[0]
    assert isinstance(output, Tensor)
    return output


def _same(model: nn.Module, other: nn.Module, images: Tensor) -> bool:
    with torch.no_grad():
        torch.manual_seed(1)
        expected = _output(model, images)
        torch.manual_seed(1)
        return torch.equal(_output(other, images), expected)


def _trains(model: nn.Module, images: Tensor) -> bool:
    """Take a step; whether every gradient is finite and some weights moved."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    before = [p.detach().clone() for p in model.parameters()]
    output = _output(model, images).flatten(1)
    torch.autograd.backward(F.cross_entropy(output, torch.arange(len(output))))
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    finite = all(bool(grad.isfinite().all()) for grad in gradients)
    optimizer.step()
    moved = any(not torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    return finite and moved


def collect(
    cases: Iterable[Case] = tuple(CASES), show: Callable[[str, int, int], None] | None = None
) -> Iterator[dict[str, Any]]:
    """Examine all cases; what is known so far after each one.

    Arguments:
        cases: Which.
        show: Is told the name, how many are done and how many there are.
    """
    cases = list(cases)
    outcomes: list[dict[str, Any]] = []
    for i, case in enumerate(cases):
        if show is not None:
            show(case.name, i, len(cases))
        outcomes.append(asdict(examine(case)))
        gc.collect()  # or the memory of several large models is held at once
        versions = {name: version(name) for name in ("torch", "torchvision", "timm")}
        yield {"versions": versions, "models": outcomes}


def main() -> None:
    """Examine every model and write ``results/models.json``."""
    path = Path(__file__).resolve().parents[1] / "results" / "models.json"
    for result in collect(show=lambda name, i, n: print(f"{i + 1}/{n} {name}", flush=True)):
        path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
