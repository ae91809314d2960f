"""Convert models of other libraries, compare each with its original and train it for one step.

The number of sites that a model should have is written down here from its architecture: the depths
of its stages times the additions in a block. So a missed site shows.
"""

import copy
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.progress import track
from torch import Tensor, nn

from sortnet import modelspec
from sortnet.fusion import kernels
from sortnet.fusion.private import tree_leaves
from sortnet.lab.measure import saved_bytes
from sortnet.surgery import sites, sortify


@dataclass(frozen=True)
class Case:
    """A model to convert.

    Attributes:
        name: The library and the model's name in it.
        sites: Expected number of sites.
        why: The reason for that number, or why there are none.
        side: Side of the images; small where the model allows it.
        options: Arguments that make the model smaller.
    """

    name: str
    sites: int
    why: str
    side: int = 64
    options: dict[str, Any] = field(default_factory=dict)


def _stages(
    name: str,
    depths: Iterable[int],
    each: int = 1,
    side: int = 64,
    options: dict[str, Any] | None = None,
) -> Case:
    """Return a model of blocks in stages, with the same number of sites in each block."""
    depths = tuple(depths)
    times = f", {each} in each" if each > 1 else ""
    why = f"{' + '.join(map(str, depths))} blocks{times}"
    return Case(name, each * sum(depths), why, side, options or {})


def _inverted(name: str, repeats: Iterable[int], side: int = 64) -> Case:
    """Return a model of inverted residuals: the first block of a stage has no shortcut."""
    repeats = tuple(repeats)
    why = f"stages of {', '.join(map(str, repeats))} blocks, all but each first"
    return Case(name, sum(n - 1 for n in repeats), why, side)


def _detector(name: str, count: int, why: str) -> Case:
    """Return a detector that resizes its images, here to a small size."""
    return Case(f"torchvision:{name}", count, why, 96, {"min_size": 96, "max_size": 96})


def _hugging_face(name: str, depths: tuple[int, ...], each: int = 1, **options: object) -> Case:
    options |= {"depths": list(depths), "image_size": 32, "patch_size": 4}
    return _stages(f"transformers:{name}", depths, each, 32, options)


def _transformer(name: str, depth: int) -> Case:
    options: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_attention_heads": 2,
    }
    options |= {"num_hidden_layers": depth, "image_size": 32, "patch_size": 8}
    return _stages(f"transformers:{name}", (depth,), 2, 32, options)


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
    _stages("torchvision:deeplabv3_resnet50", (3, 4, 6, 3)),
    Case("torchvision:lraspp_mobilenet_v3_large", 11, "10 blocks; the two outputs of its head"),
    _detector("fasterrcnn_resnet50_fpn", 19, "16 blocks, 3 levels of its pyramid"),
    _detector("fasterrcnn_mobilenet_v3_large_320_fpn", 11, "10 blocks, 1 level of its pyramid"),
    _detector("maskrcnn_resnet50_fpn", 19, "16 blocks, 3 levels of its pyramid"),
    _detector("retinanet_resnet50_fpn", 18, "16 blocks, 2 levels of its pyramid"),
    _detector("fcos_resnet50_fpn", 18, "16 blocks, 2 levels of its pyramid"),
    Case("torchvision:ssdlite320_mobilenet_v3_large", 10, "10 blocks"),
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
    _transformer("vit", 3),
    _transformer("dinov2_with_registers", 3),
    _transformer("beit", 3),
    _transformer("dinov2", 3),
    _transformer("clip_vision_model", 3),
    _hugging_face("swin", (2, 2), 2, embed_dim=16, num_heads=[2, 2], window_size=4),
    _hugging_face("swinv2", (2, 2), 2, embed_dim=16, num_heads=[2, 2], window_size=4),
    _hugging_face("resnet", (2, 3), embedding_size=16, hidden_sizes=[32, 64]),
    _hugging_face("regnet", (2, 3), embedding_size=16, hidden_sizes=[32, 64], groups_width=16),
    _hugging_face("convnext", (2, 3), num_stages=2, hidden_sizes=[16, 32]),
    _hugging_face("convnextv2", (2, 3), 2, num_stages=2, hidden_sizes=[16, 32]),
]


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case.

    Attributes:
        name: The model.
        sites: Number of sites found.
        expected: Expected number of sites.
        why: The reason for that number.
        problems: The sites that cannot be changed, and why.
        equal: Whether the copy with ``sum`` gives the outputs of the model bit for bit, in
            evaluation and training mode, has the same keys, and leaves the model untouched.
        trained: Whether the copy with ``sort`` takes a step with finite gradients.
        saved_ratio: Bytes saved for backward, SORT relative to the sum.
    """

    name: str
    sites: int
    expected: int
    why: str
    problems: dict[str, str]
    equal: bool = False
    trained: bool = False
    saved_ratio: float | None = None


def examine(case: Case) -> Outcome:
    """Convert a model, compare it with the original and train it for one step."""
    torch.manual_seed(0)
    model = create(case)
    images = torch.rand(2, 3, case.side, case.side)
    example = list(images) if is_detector(model) else images
    found = sites(model, example)
    problems = {site.name: site.problem for site in found if site.problem}
    if not found or len(problems) == len(found):
        return Outcome(case.name, len(found), case.sites, case.why, problems)

    def convert(fusion: str) -> nn.Module:
        return sortify(model, fusion=fusion, example=example, skip_unchangeable=True)

    before = {key: value.clone() for key, value in model.state_dict().items()}
    same, new = convert("sum"), convert("sort")
    equal = _same(copy.deepcopy(model).eval(), same.eval(), images)
    equal = equal and _same(copy.deepcopy(model).train(), same.train(), images)
    after = model.state_dict()
    equal = equal and list(before) == list(after) == list(same.state_dict())
    equal = equal and all(torch.equal(value, after[key]) for key, value in before.items())
    with kernels.using("eager"):  # saves the same as compiled kernels and need not compile them
        new, same = Runner(new).train(), Runner(same).train()
        saved = saved_bytes(new, images) / saved_bytes(same, images)
        trained = _trains(new, images)
    return Outcome(
        case.name, len(found), case.sites, case.why, problems, equal, trained, round(saved, 3)
    )


def create(case: Case) -> nn.Module:
    """Create a model with new weights."""
    library, _, name = case.name.partition(":")
    if library == "transformers":
        from transformers import AutoConfig, AutoModel, AutoModelForImageClassification

        auto: Any = AutoModel if name.startswith("clip") else AutoModelForImageClassification
        model: nn.Module = auto.from_config(AutoConfig.for_model(name, **case.options))
        return model
    if case.options:
        from torchvision.models import get_model

        detector: nn.Module = get_model(name, weights_backbone=None, **case.options)
        return detector
    return modelspec.create(case.name)


def is_detector(model: nn.Module) -> bool:
    """Return True for torchvision's detectors, which take lists of images."""
    return type(model).__module__.startswith("torchvision.models.detection")


class Runner(nn.Module):
    """Runs a model on a batch of images and returns its tensors; a detector also gets targets."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return all tensors of the output."""
        if is_detector(self.model):
            output = self.model(list(images), _targets(images) if self.training else None)
        else:
            output = self.model(images)
        return [x for x in tree_leaves(output) if isinstance(x, Tensor)]


def _targets(images: Tensor) -> list[dict[str, Tensor]]:
    side = images.shape[-1]
    box = torch.tensor([[0.2, 0.2, 0.8, 0.8]]) * side
    mask = torch.zeros(1, side, side, dtype=torch.uint8)
    return [{"boxes": box, "labels": torch.ones(1, dtype=torch.int64), "masks": mask}] * len(
        images
    )


def _same(model: nn.Module, other: nn.Module, images: Tensor) -> bool:
    outputs = []
    for module in (model, other):
        torch.manual_seed(1)
        with torch.no_grad():
            outputs.append(Runner(module).train(module.training)(images))
    expected, actual = outputs
    assert expected
    return len(expected) == len(actual) and all(map(torch.equal, expected, actual))


def _trains(model: nn.Module, images: Tensor) -> bool:
    """Take a step; return whether every gradient is finite and some weights have moved."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    before = [p.detach().clone() for p in model.parameters()]
    outputs = model(images)
    if outputs[0].dim():
        logits = outputs[0].flatten(1)
        loss = F.cross_entropy(logits, torch.arange(len(logits)))
    else:
        loss = torch.stack(outputs).sum()  # the losses of a detector
    torch.autograd.backward(loss)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    finite = all(bool(grad.isfinite().all()) for grad in gradients)
    optimizer.step()
    moved = any(not torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    return finite and moved


def collect(cases: Iterable[Case]) -> Iterator[Outcome]:
    """Examine the cases, each in a new process, so that memory stays bounded."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["tools.survey"])  # imports torch once
    with ProcessPoolExecutor(1, context, max_tasks_per_child=1) as executor:
        yield from executor.map(examine, cases)


def main(patterns: Sequence[str]) -> None:
    """Examine models and write ``results/models.json``.

    Arguments:
        patterns: Parts of the names of the models to examine again; without any, all are.
    """
    path = Path(__file__).resolve().parents[1] / "results" / "models.json"
    cases = [c for c in CASES if not patterns or any(part in c.name for part in patterns)]
    known = {m["name"]: m for m in json.loads(path.read_text())["models"]} if patterns else {}
    for outcome in track(collect(cases), "models", total=len(cases)):
        known[outcome.name] = asdict(outcome)
    libraries = ("torch", "torchvision", "timm", "transformers")
    result = {
        "versions": {name: version(name) for name in libraries},
        "models": [known[case.name] for case in CASES if case.name in known],
    }
    path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
