"""The oracle: the path users get against the plain composition in float64, in every mode.

A case is a block, a network or a converted model, with a fusion, a layout, a precision and a mode
of PyTorch. Its output, its running statistics and each of its gradients are compared with those of
the same module run by PyTorch's own operations and derivatives, eagerly, in float64. In float32
and half precision a case passes if each of them is as accurate as the plain composition in the
same precision.

``make oracle`` runs all cases and writes results/correctness.json; `tests/test_oracle.py` runs a
sample.
"""

import argparse
import itertools
import json
import logging
import math
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sortnet import Fusion, create_model, sort, sortify
from sortnet.blocks import Basic, Bottleneck, PreActivation, Subsample, TwoBranch
from sortnet.fusion import kernels

LAYOUTS = ("contiguous", "channels_last", "strided")
PRECISIONS = ("float64", "float32", "bfloat16", "float16", "half")
"""``bfloat16`` and ``float16`` are autocast; ``half`` is a bfloat16 module without autocast."""
MODES = ("export", "checkpoint", "ddp", "frozen", "cumulative", "double")
"""All fused, without kernels. Further modes: ``kernels``, ``formulas`` (without), ``inductor``."""
TOLERANCE = {"float64": 1e-9, "float32": 2e-5, "bfloat16": 2e-2, "float16": 3e-3, "half": 2e-2}
"""Relative error that always passes: a few roundings."""
SLACK = 2.0
"""Largest ratio of an error to that of the plain composition in the same precision."""
FRESH = 150
"""Cases after which new processes are started."""
DRAWS = {"block": 24, "network": 10}
"""Draws of weights and input; below float64, the error of a tensor is the median over them. A
rounding near a kink changes a gradient a lot in some draws, in the plain composition as often as
in ours; a defect shows in all draws."""


@dataclass(frozen=True)
class Case:
    """A subject to compare, and how it is run."""

    subject: str
    fusion: str = "sort"
    layout: str = "channels_last"
    precision: str = "float32"
    mode: str = "kernels"
    steps: int = 0

    def __str__(self) -> str:
        steps = f"-{self.steps}steps" if self.steps else ""
        parts = self.subject, self.fusion, self.layout, self.precision, self.mode
        return "-".join(parts) + steps


class Op(nn.Module):
    """The functional form, applied to the outputs of two convolutions."""

    def __init__(self, term: str) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(6, 6, 1), nn.Conv2d(6, 6, 3, padding=1)
        self.term = term

    def forward(self, x: Tensor) -> Tensor:
        """Fuse two responses."""
        return sort(self.first(x), self.second(x), self.term)


def _fusion(name: str, block: str, channels: int) -> Fusion:
    if name != "gated":
        return Fusion(name, block=block)
    fusion = Fusion("sort", block=block, gate="one", channels=channels)
    assert fusion.gate is not None
    nn.init.uniform_(fusion.gate, -1, 2)
    return fusion


def _basic(fusion: str, **options: Any) -> nn.Module:  # noqa: ANN401
    return nn.Sequential(Basic(6, 6, 1, _fusion(fusion, "residual", 6), **options), nn.Tanh())


def _strided(fusion: str, shortcut: str) -> nn.Module:
    shortcuts: dict[str, Callable[[], nn.Module]] = {
        "subsample": lambda: Subsample(12, 2),
        "projection": lambda: nn.Sequential(nn.Conv2d(6, 12, 1, 2), nn.BatchNorm2d(12)),
        "convolution": lambda: nn.Conv2d(6, 12, 1, 2),
    }
    return Basic(6, 12, 2, _fusion(fusion, "residual", 12), shortcuts[shortcut]())


def _bottleneck(fusion: str, same: bool) -> nn.Module:
    made = None if same else nn.Sequential(nn.Conv2d(6, 24, 1, 2), nn.BatchNorm2d(24))
    inputs, stride = (24, 1) if same else (6, 2)
    first = nn.Conv2d(6, inputs, 1)
    return nn.Sequential(
        first, Bottleneck(inputs, 6, stride, _fusion(fusion, "residual", 24), made)
    )


def _pre(fusion: str, width: int, stride: int, follower: nn.Module) -> nn.Module:
    """Return a block with large inputs, as after many blocks; F(x) is small beside them."""
    first = nn.Conv2d(6, 6, 1)
    nn.init.normal_(first.weight, std=20)
    made = _fusion(fusion, "residual", width)
    return nn.Sequential(first, PreActivation(6, width, stride, made), follower)


def _two(fusion: str, *after: nn.Module, **options: Any) -> nn.Module:  # noqa: ANN401
    block = TwoBranch(6, 6, 5, _fusion(fusion, "branches", 6), padding=2, **options)
    return nn.Sequential(block, *after)


BLOCKS: dict[str, Callable[[str], nn.Module]] = {
    "op-prod": lambda fusion: Op("prod"),
    "op-root": lambda fusion: Op("root"),
    "two-branch": lambda fusion: _two(fusion, nn.MaxPool2d(2)),
    "two-branch-norm": lambda fusion: _two(fusion, norm_layer=nn.BatchNorm2d),
    "two-branch-in-place": lambda fusion: _two(fusion, nn.ReLU(inplace=True)),
    "basic": _basic,
    "basic-linear": lambda fusion: _basic(fusion, final_act=False, bias=True),
    "basic-subsample": lambda fusion: _strided(fusion, "subsample"),
    "basic-projection": lambda fusion: _strided(fusion, "projection"),
    "basic-convolution": lambda fusion: _strided(fusion, "convolution"),
    "bottleneck": lambda fusion: _bottleneck(fusion, same=True),
    "bottleneck-projection": lambda fusion: _bottleneck(fusion, same=False),
    "pre-activation": lambda fusion: _pre(fusion, 6, 1, nn.BatchNorm2d(6)),
    "pre-activation-projection": lambda fusion: _pre(fusion, 12, 2, nn.BatchNorm2d(12)),
    "pre-activation-in-place": lambda fusion: _pre(fusion, 6, 1, nn.ReLU(inplace=True)),
}


def _network(name: str, fusion: str, **options: Any) -> nn.Module:  # noqa: ANN401
    if fusion == "gated":
        return create_model(name, 10, "sort", gate="one", **options)
    return create_model(name, 10, fusion, **options)


NETWORKS: dict[str, Callable[[str], nn.Module]] = {
    "lenet": partial(_network, "lenet", branched=True),
    "bignet": partial(_network, "bignet", branched=True),
    "alexnet": partial(_network, "alexnet", branched=True, size=99),
    "resnet20": partial(_network, "resnet20"),
    "resnet20-xu": partial(_network, "resnet20", style="xu"),
    "wrn28": partial(_network, "wrn28", width=1),
    "resnet18": partial(_network, "resnet18", size=64),
    "resnet50": partial(_network, "resnet50", size=64),
}


def _converted(fusion: str, make: Callable[[], nn.Module]) -> nn.Module:
    if fusion == "gated":
        return sortify(make(), fusion="sort", gate="one")
    return sortify(make(), fusion=fusion)


def _torchvision(name: str) -> nn.Module:
    import torchvision

    model: nn.Module = torchvision.models.get_model(name, weights=None, num_classes=10)
    return model


def _timm(name: str) -> nn.Module:
    import timm

    model: nn.Module = timm.create_model(name, num_classes=10)
    return model


CONVERTED: dict[str, Callable[[str], nn.Module]] = {
    "torchvision:resnet18": lambda fusion: _converted(fusion, lambda: _torchvision("resnet18")),
    "torchvision:mobilenet_v2": lambda f: _converted(f, lambda: _torchvision("mobilenet_v2")),
    "timm:resnet10t": lambda fusion: _converted(fusion, lambda: _timm("resnet10t")),
    "timm:convnext_atto": lambda fusion: _converted(fusion, lambda: _timm("convnext_atto")),
    "timm:vit_tiny_patch16_224": lambda f: _converted(f, lambda: _timm("vit_tiny_patch16_224")),
}
SUBJECTS = BLOCKS | NETWORKS | CONVERTED
SIDES = {"alexnet": 99, "resnet18": 64, "resnet50": 64, "timm:vit_tiny_patch16_224": 224}
SIDES["torchvision:mobilenet_v2"] = 128  # its last layers would have four pixels only


def images(case: Case, seed: int = 0) -> Tensor:
    """Return the input of a case, in float64."""
    source = torch.Generator().manual_seed(seed)
    block = case.subject in BLOCKS
    side = 8 if block else SIDES.get(case.subject, 64 if ":" in case.subject else 32)
    shape = (4, 6 if block else 3, side, side)
    x = torch.randn(*shape[:3], 2 * side, generator=source, dtype=torch.float64)
    if case.layout == "strided":
        return x[..., ::2]
    x = x[..., :side].contiguous()
    layout = torch.channels_last if case.layout == "channels_last" else torch.contiguous_format
    return x.contiguous(memory_format=layout)


def subject(case: Case, seed: int = 0) -> nn.Module:
    """Return the module of a case, with initial weights or after some steps, in float64."""
    torch.manual_seed(1 + seed)
    model = SUBJECTS[case.subject](case.fusion).double()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, nn.BatchNorm2d):
            _prepare(module, case)
    take_steps(model, case)
    if case.mode == "frozen":
        for module in model.modules():
            module.train(not isinstance(module, nn.BatchNorm2d))
    if case.layout == "channels_last":
        model.to(memory_format=torch.channels_last)
    return model


def _prepare(norm: nn.BatchNorm2d, case: Case) -> None:
    if case.subject in BLOCKS:
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.uniform_(norm.bias, -0.5, 0.5)
    if case.mode == "cumulative":
        norm.momentum = None


def take_steps(model: nn.Module, case: Case) -> None:
    """Train a little, by the plain composition."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    with kernels.using("plain"):
        for step in range(case.steps):
            optimizer.zero_grad()
            torch.autograd.backward(loss_of(model(images(case, step))))
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()


def loss_of(y: Tensor, turned: bool = False) -> Tensor:
    """Return a loss with a different weight for each element of the output."""
    y = y.double()
    y = y.transpose(-1, -2) if turned and y.dim() == 4 else y
    weight = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape)
    return (y * weight).sum() + y.square().mean()


def called(model: nn.Module, mode: str, x: Tensor, stack: ExitStack) -> Callable[[Tensor], Tensor]:
    """Return what is called instead of the model in a mode."""
    if mode == "inductor":
        torch._dynamo.reset()
        return torch.compile(model)
    if mode == "export":
        return torch.export.export(model, (x.detach(),)).module()
    if mode == "checkpoint":
        return partial(checkpoint, model, use_reentrant=False)
    if mode == "ddp":
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=0, world_size=1
        )
        stack.callback(torch.distributed.destroy_process_group)
        return nn.parallel.DistributedDataParallel(model)
    return model


def outcome(case: Case, path: str, precision: str, seed: int = 0) -> dict[str, Tensor]:
    """Return everything a training step computes: output, statistics, gradients.

    Arguments:
        case: The case.
        path: ``product`` for the path users get, ``plain`` for PyTorch's own operations, eagerly.
        precision: The case's, or ``float64`` for the reference.
        seed: Seed of the initial weights and the input.
    """
    model, x = subject(case, seed), images(case, 100 + seed)
    dtype = {"float64": torch.float64, "half": torch.bfloat16}.get(precision, torch.float32)
    model, x = model.to(dtype), x.to(dtype)
    if case.layout == "strided":  # the conversion above made it dense
        x = torch.stack([x, x], dim=-1).flatten(-2)[..., ::2]
    x = x.requires_grad_()
    half = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(precision)
    kernel = "auto" if case.mode in ("kernels", "inductor") else "eager"
    kernel = kernel if path == "product" else "plain"
    same = path == "product" or case.mode == "checkpoint"  # checkpointing updates statistics twice
    with ExitStack() as stack:
        stack.enter_context(kernels.using(kernel))
        call = called(model, case.mode if same else "", x, stack)
        with torch.autocast("cpu", half) if half else nullcontext():
            y = call(x)
        loss = loss_of(y, turned=case.layout == "strided")
        owner = call if isinstance(call, nn.Module) and case.mode == "export" else model
        gradients = gradients_of(loss, [x, *owner.parameters()], case.mode)
    names = ["input", *(name for name, _ in model.named_parameters())]
    result = {"response": y} | {n: b for n, b in owner.named_buffers() if b.is_floating_point()}
    result |= {f"grad {n}": g for n, g in zip(names, gradients, strict=True) if g is not None}
    return {name: tensor.detach().double() for name, tensor in result.items()}


def gradients_of(loss: Tensor, wanted: list[Tensor], mode: str) -> list[Tensor | None]:
    """Return the gradients; in mode ``double``, the gradients of their squares."""
    if mode == "ddp":  # its hooks are on the accumulation of gradients
        torch.autograd.backward(loss)
        return [tensor.grad for tensor in wanted]
    if mode == "double":
        first = torch.autograd.grad(loss, wanted, create_graph=True, allow_unused=True)
        loss = torch.stack([g.square().sum() for g in first if g is not None]).sum()
    return list(torch.autograd.grad(loss, wanted, allow_unused=True))


@dataclass(frozen=True)
class Verdict:
    """The error of a case relative to the plain composition in float64.

    Attributes:
        case: The case.
        error: The largest relative error of an output, a statistic or a gradient.
        where: The tensor with that error.
        plain: The same tensor's error by the plain composition in the case's precision.
        passed: Whether the error is within its bound.
        reason: Why the case could not be run, if so.
    """

    case: Case
    error: float
    where: str
    plain: float
    passed: bool
    reason: str = ""


def errors(found: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, float]:
    """Return the relative error of each tensor; small gradients are scaled by the largest."""
    largest = max((float(t.norm()) for n, t in exact.items() if n.startswith("grad")), default=1.0)
    result = {}
    for name, tensor in exact.items():
        floor = 1e-3 * largest if name.startswith("grad") else 1e-6
        error = float((found[name] - tensor).norm()) / max(float(tensor.norm()), floor, 1e-30)
        result[name] = error if math.isfinite(error) else float("inf")
    return result


def judge(case: Case) -> Verdict:
    """Compare a case with the reference."""
    torch.set_num_threads(1)
    kernels.MIN_ELEMENTS.update(batch=0, image=0)
    product: list[dict[str, float]] = []
    plain: list[dict[str, float]] = []
    try:
        for seed in range(_draws(case)):
            exact = outcome(case, "plain", "float64", seed)
            for path, found in (("product", product), ("plain", plain)):
                found.append(errors(outcome(case, path, case.precision, seed), exact))
    except Exception as error:
        reason = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"
        return Verdict(case, float("inf"), "", 0.0, False, reason)
    ours, theirs = _typical(product), _typical(plain)
    bound = {name: max(TOLERANCE[case.precision], SLACK * theirs[name]) for name in ours}
    where = max(ours, key=lambda name: ours[name] / bound[name])
    return Verdict(case, ours[where], where, theirs[where], ours[where] <= bound[where])


def _draws(case: Case) -> int:
    if case.precision == "float64":
        return 1
    return DRAWS["block" if case.subject in BLOCKS else "network"]


def _typical(found: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(one[name] for one in found) for name in found[0]}


FUSIONS = ("sum", "sort", "gated", "sum+max+prod", "max+root", "sum+square")


TYPICAL = ("two-branch", "basic", "basic-projection", "pre-activation")


def block_cases() -> Iterator[Case]:
    """Yield every kind of block: layouts and precisions, fusions, modes."""
    for name, layout in itertools.product(BLOCKS, LAYOUTS):
        yield Case(name, "sort", layout, "float64")
        yield Case(name, "sort", layout, "bfloat16")
    for name, precision in itertools.product(BLOCKS, ("float32", "float16", "half")):
        yield Case(name, "sort", precision=precision)
    for name, fusion in itertools.product(BLOCKS, FUSIONS):
        yield Case(name, fusion, precision="float64", mode="formulas")
    for name, fusion in itertools.product(TYPICAL, FUSIONS):
        yield Case(name, fusion, precision="float64")
        yield Case(name, fusion, precision="bfloat16")
    for name, mode in itertools.product(BLOCKS, MODES):
        yield Case(name, "sort", "contiguous", "float64", mode)
        yield Case(name, "gated", "contiguous", "float64", mode)
        if mode != "double":
            yield Case(name, "sort", "channels_last", "bfloat16", mode)
    for name in BLOCKS:
        yield Case(name, "sort", "contiguous", "float64", "inductor")
    for name in TYPICAL:
        yield Case(name, "sort", "channels_last", "float64", "inductor")
        yield Case(name, "sort", "strided", "float64", "inductor")
        yield Case(name, "gated", "contiguous", "float64", "inductor")
        yield Case(name, "sort", "contiguous", "bfloat16", "inductor")


def network_cases() -> Iterator[Case]:
    """Yield the networks of the paper, with initial weights and after some steps, in all modes."""
    for name in NETWORKS:
        for fusion in ("sum", "sort", "gated"):
            yield Case(name, fusion, precision="float64", mode="formulas")
        yield Case(name, "sort", precision="float64", mode="formulas", steps=5)
        yield Case(name, "sort", precision="bfloat16", mode="formulas", steps=5)
    for name in ("resnet20", "wrn28", "lenet"):
        yield Case(name, "sort", precision="float32", steps=5)
        yield Case(name, "gated", precision="bfloat16")
    for name in ("resnet20", "resnet20-xu", "wrn28", "lenet"):
        for mode in ("inductor", "export", "checkpoint", "ddp", "frozen", "cumulative"):
            yield Case(name, "sort", "contiguous", "float64", mode)


def converted_cases() -> Iterator[Case]:
    """Yield models of torchvision and timm, converted to SORT."""
    for name in CONVERTED:
        yield Case(name, "sum", "contiguous", "float64", "formulas")
        yield Case(name, "sort", "contiguous", "float64", "formulas")
        yield Case(name, "gated", "channels_last", "float64", "formulas")
        yield Case(name, "sort", "channels_last", "float32")
        yield Case(name, "sort", "channels_last", "bfloat16", "formulas")
    yield Case("torchvision:resnet18", "sort", "contiguous", "float64", "inductor")
    yield Case("timm:resnet10t", "sort", "contiguous", "float64", "inductor")


def cases() -> list[Case]:
    """Return all cases."""
    return list(dict.fromkeys([*block_cases(), *network_cases(), *converted_cases()]))


def rows(verdicts: list[Verdict]) -> list[dict[str, Any]]:
    """Return the rows of docs/correctness.md: the largest error by subject, mode and precision."""
    groups: dict[tuple[str, str, str], list[Verdict]] = {}
    for verdict in verdicts:
        case = verdict.case
        kind = "blocks" if case.subject in BLOCKS else case.subject
        groups.setdefault((kind, case.mode, case.precision), []).append(verdict)
    return [
        {
            "subject": kind,
            "mode": mode,
            "precision": precision,
            "cases": len(found),
            "failed": sum(not v.passed for v in found),
            "error": float(f"{max(v.error for v in found):.2g}"),
            "plain": float(f"{max(v.plain for v in found):.2g}"),
        }
        for (kind, mode, precision), found in groups.items()
    ]


def main() -> int:
    """Run all cases in two processes and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, help="file for the table of errors")
    parser.add_argument("--only", default="", help="run only cases whose name contains this")
    arguments = parser.parse_args()
    chosen = [case for case in cases() if arguments.only in str(case)]
    verdicts: list[Verdict] = []
    started = time.monotonic()
    for verdict in judged(chosen):
        verdicts.append(verdict)
        if not verdict.passed:
            print(f"FAIL {verdict}", flush=True)
        elif len(verdicts) % 20 == 0:
            spent = time.monotonic() - started
            print(f"{len(verdicts)} of {len(chosen)} cases, {spent:.0f} s", flush=True)
    failed = sum(not verdict.passed for verdict in verdicts)
    if arguments.json:
        order = {case: i for i, case in enumerate(chosen)}
        verdicts.sort(key=lambda verdict: order[verdict.case])
        content = {"torch": torch.__version__, "cases": len(chosen), "rows": rows(verdicts)}
        arguments.json.write_text(json.dumps(content, indent=1) + "\n")
    print(f"{len(verdicts) - failed} passed, {failed} failed")
    return 1 if failed else 0


def judged(chosen: list[Case]) -> Iterator[Verdict]:
    """Judge cases in two processes, restarted regularly because compiled code stays in memory."""
    for start in range(0, len(chosen), FRESH):
        with ProcessPoolExecutor(2, get_context("spawn"), quietly) as pool:
            jobs = [pool.submit(judge, case) for case in chosen[start : start + FRESH]]
            for done in as_completed(jobs):
                yield done.result()


def quietly() -> None:
    """Initialize a process of the pool: ignore warnings of libraries."""
    os.environ["OMP_NUM_THREADS"] = "1"
    warnings.simplefilter("ignore")
    logging.getLogger("torch").setLevel(logging.ERROR)


if __name__ == "__main__":
    sys.exit(main())
