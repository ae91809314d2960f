"""What SORT costs relative to the sum: the op, the blocks and every network of the paper.

Every number is a ratio of two variants measured in turns in one process. Sections 1, 3.1, 3.4 and
4.2.2 of the paper claim less than 5 % more time, no more memory, and much less than bilinear
pooling.
"""

import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sortnet import files, modelspec
from sortnet.blocks import Basic, PreActivation, TwoBranch
from sortnet.errors import UsageError
from sortnet.fusion import Fusion, kernels, sort
from sortnet.lab import measure, runs
from sortnet.lab.measure import Peak, Ratio, saved_bytes
from sortnet.lab.training import Machine, description, resolve_device

WARM_UP = 2


@dataclass(frozen=True)
class BenchmarkCase:
    """A model and a batch size that a CPU can measure.

    Attributes:
        network: Its name, as `sortnet.modelspec.create` takes it.
        batch: Images per step: the paper's 100, fewer where a step would take seconds.
        options: Further arguments of `sortnet.modelspec.create`.
    """

    network: str
    batch: int
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name in tables."""
        title = modelspec.title(self.network, branched="branched" in self.options)
        width = self.options.get("width")
        return title + (f"-{width}" if width else "")


BRANCHED = {"branched": True}
CASES = {
    "resnet20": BenchmarkCase("resnet20", 100),
    "wrn28": BenchmarkCase("wrn28", 12, {"width": 4}),
    "lenet": BenchmarkCase("lenet", 100, BRANCHED),
    "resnet18": BenchmarkCase("resnet18", 8),
    "resnet32": BenchmarkCase("resnet32", 100),
    "bignet": BenchmarkCase("bignet", 10, BRANCHED),
    "alexnet": BenchmarkCase("alexnet", 4, BRANCHED),
    "resnet50": BenchmarkCase("resnet50", 4),
    "resnet56": BenchmarkCase("resnet56", 100),
    "resnet34": BenchmarkCase("resnet34", 4),
}
OTHER_BATCH = 8
"""Images per step of a model that is not one of the paper's."""


def find_case(model: str) -> BenchmarkCase:
    """Return the case of a model, given by name or as a run."""
    if model in CASES:
        return CASES[model]
    start = runs.start(model)
    batch = CASES[start.network].batch if start.network in CASES else OTHER_BATCH
    return BenchmarkCase(start.network, batch, dict(start.options))


@dataclass(frozen=True)
class Measurement:
    """One measurement relative to the sum.

    Attributes:
        level: ``op``, ``block``, ``network`` or ``head``.
        name: What was measured.
        what: ``forward``, ``both passes`` or ``step``.
        mode: ``eager`` or ``compiled``.
        against: ``SORT``; ``naive`` for its plain formula; or a head in its place.
        base: The mode of the sum it is compared with.
        time: The ratio to the sum.
        seconds: Median of one call, with the sum and with the variant.
        saved: Bytes saved for backward, in the same order; None for a forward pass.
        peak: Peak bytes, in the same order.
        images: Images per second of the variant.
        arithmetic: The variant's share of the machine's peak multiply-adds.
        bandwidth: Its share of the peak bandwidth; only for the op, whose traffic is known.
        compilation: Seconds of the first compiled step.
    """

    level: str
    name: str
    what: str
    mode: str
    against: str
    base: str
    time: Ratio
    seconds: tuple[float, float]
    saved: tuple[int, int] | None = None
    peak: tuple[int, int] | None = None
    images: float | None = None
    arithmetic: float | None = None
    bandwidth: float | None = None
    compilation: float | None = None


@dataclass(frozen=True)
class BenchmarkVariant:
    """One way to compute the same function: a name, a callable and the kernel mode."""

    name: str
    model: Callable[..., Tensor]
    mode: str = "auto"
    optimizer: torch.optim.Optimizer | None = None

    def forward(self, *inputs: Tensor) -> None:
        """Run a forward pass without gradients."""
        with kernels.using(self.mode), torch.no_grad():
            self.model(*inputs)

    def backward(self, *inputs: Tensor) -> None:
        """Run a forward and a backward pass, to the parameters and all inputs with a gradient."""
        wanted = [x for x in inputs if x.requires_grad]
        if isinstance(self.model, nn.Module):
            wanted += self.model.parameters()
        with kernels.using(self.mode):
            y = self.model(*inputs)
            torch.autograd.grad(y, wanted, y.detach())  # any gradient will do

    def step(self, machine: Machine, images: Tensor, labels: Tensor) -> None:
        """Take a training step."""
        assert self.optimizer is not None
        with kernels.using(self.mode):
            with machine.autocast():
                logits = self.model(images)
            loss = F.cross_entropy(logits.float(), labels)
            torch.autograd.backward(loss)
        self.optimizer.step()
        self.optimizer.zero_grad()


@dataclass(frozen=True)
class VariantTiming:
    """A variant relative to a base: the ratio of their times, and the median of each."""

    variant: BenchmarkVariant
    base: BenchmarkVariant
    time: Ratio
    seconds: tuple[float, float]


def time_in_turns(
    variants: Sequence[BenchmarkVariant],
    call: Callable[[BenchmarkVariant], None],
    rounds: int,
    bases: int = 1,
) -> list[VariantTiming]:
    """Time variants in turns, and relate each to the first one, or to each of the first few.

    Arguments:
        variants: The bases first.
        call: Called with the variant whose turn it is.
        rounds: Turns of each variant.
        bases: Number of bases.
    """
    functions = [partial(call, variant) for variant in variants]
    for function in functions:
        for _ in range(WARM_UP):
            function()
    times = measure.side_by_side(functions, rounds)
    middles = [statistics.median(each) for each in times]
    return [
        VariantTiming(
            variants[i], variants[j], measure.ratio(times[i], times[j]), (middles[j], middles[i])
        )
        for i in range(bases, len(variants))
        for j in range(bases)
    ]


def measure_op(machine: Machine, peak: Peak, rounds: int, naive: bool) -> Iterator[Measurement]:
    """Measure `sort` relative to `torch.add`, on tensors of 6 to 60 MB."""
    for term in ("prod", "root"):
        for shape in ((100, 16, 32, 32), (100, 64, 32, 32), (16, 256, 56, 56)):
            a, b = (machine.images(torch.randn(shape)).requires_grad_() for _ in range(2))
            fuse = partial(sort, term=term)
            variants = [BenchmarkVariant("sum", torch.add), BenchmarkVariant("SORT", fuse)]
            variants += [BenchmarkVariant("naive", fuse, "plain")] if naive else []
            size = a.numel() * a.element_size()
            # forward: two tensors read, one written; backward: three read, two written
            for what, passes in (("forward", 3), ("both passes", 8)):
                act = BenchmarkVariant.forward if what == "forward" else BenchmarkVariant.backward
                call = lambda c, act=act, a=a, b=b: act(c, a, b)  # noqa: E731
                for found in time_in_turns(variants, call, rounds):
                    against, seconds = found.variant.name, found.seconds
                    share = passes * size / seconds[1] / peak.bytes if against == "SORT" else None
                    name = f"{term}, {size / 1e6:.0f} MB"
                    yield Measurement(
                        "op", name, what, "eager", against, "eager", found.time, seconds,
                        bandwidth=share,
                    )  # fmt: skip


def measure_blocks(machine: Machine, rounds: int, naive: bool) -> Iterator[Measurement]:
    """Measure the three kinds of block, at sizes of ResNet-20 and LeNet*."""
    blocks: dict[str, tuple[Callable[[str], nn.Module], tuple[int, ...]]] = {
        "two branches": (
            lambda terms: TwoBranch(32, 32, 5, Fusion(terms), padding=2),
            (100, 32, 16, 16),
        ),
        "residual": (
            lambda terms: Basic(16, 16, 1, Fusion(terms, block="residual")),
            (100, 16, 32, 32),
        ),
        "pre-activation": (
            # with the first step of the next block, which saves the response that this one needs
            lambda terms: nn.Sequential(
                PreActivation(32, 32, 1, Fusion(terms, block="residual")), nn.BatchNorm2d(32)
            ),
            (100, 32, 32, 32),
        ),
    }
    for name, (make, shape) in blocks.items():
        x = machine.images(torch.randn(shape)).requires_grad_()
        plain, block = (machine.place(make(terms)) for terms in ("sum", "sort"))
        variants = [BenchmarkVariant("sum", plain), BenchmarkVariant("SORT", block)]
        variants += [BenchmarkVariant("naive", block, "plain")] if naive else []
        for what, act in (
            ("forward", BenchmarkVariant.forward),
            ("both passes", BenchmarkVariant.backward),
        ):
            call = lambda c, act=act, x=x: act(c, x)  # noqa: E731
            for found in time_in_turns(variants, call, rounds):
                with kernels.using(found.variant.mode):
                    saved = (saved_bytes(plain, x), saved_bytes(block, x))
                against = found.variant.name
                yield Measurement(
                    "block", name, what, "eager", against, "eager", found.time, found.seconds,
                    saved=saved if what != "forward" else None,
                )  # fmt: skip


def measure_network(
    case: BenchmarkCase, machine: Machine, peak: Peak, rounds: int, against: Sequence[str]
) -> Iterator[Measurement]:
    """Measure a network with SORT, the plain formula or another head, relative to the sum.

    A compiled network is related to the sum both compiled and eager: either may be faster.
    """
    variants = [create_variant(case, machine, name) for name in ("sum", *against)]
    size = modelspec.image_size(case.network)
    images = machine.images(torch.randn(case.batch, 3, size, size))
    labels = machine.labels(torch.zeros(case.batch, dtype=torch.long))
    done = {c.name: case.batch * measure.work(c.model, images[:1]).total for c in variants}  # type: ignore[arg-type]
    bases, compilation = 1, None
    if machine.compile:
        plain, *others = [_compiled(c, machine) for c in variants]
        variants, bases = [plain, variants[0], *others], 2
        started = time.perf_counter()
        others[-1].step(machine, images, labels)
        compilation = time.perf_counter() - started
    level = "head" if "bilinear" in against else "network"
    mode = "compiled" if machine.compile else "eager"
    # Compiling a forward pass as well would take another minute per network.
    for what in ["step"] if machine.compile else ["step", "both passes", "forward"]:
        call = _call(what, machine, images, labels)
        chosen = [c for c in variants if what == "step" or c.name != "naive"]
        turns = rounds if what == "step" else max(1, rounds // 3)
        for found in time_in_turns(chosen, call, turns, bases):
            c, seconds = found.variant, found.seconds
            multiply_adds = done[c.name] * (1 if what == "forward" else 3)
            measured = Measurement(
                level, case.name, what, mode, c.name,
                mode if found.base is variants[0] else "eager",
                found.time, seconds,
                images=case.batch / seconds[1],
                arithmetic=multiply_adds / seconds[1] / peak.multiply_adds,
                compilation=compilation,
            )  # fmt: skip
            if what == "step":
                saved, held = _memory(found.base, c, machine, images, labels)
                measured = replace(measured, saved=saved, peak=held)
            yield measured


def create_variant(case: BenchmarkCase, machine: Machine, name: str) -> BenchmarkVariant:
    """Return a model with ``sum``, ``SORT``, the ``naive`` formula, or another head."""
    fusion = "sort" if name in ("SORT", "naive") else "sum"
    head: dict[str, Any] = {"head": name} if name in ("bilinear", "compact") else {}
    num_classes = None if modelspec.is_foreign(case.network) else 10
    torch.manual_seed(0)
    network = machine.place(
        modelspec.create(case.network, num_classes, fusion=fusion, **case.options, **head)
    )
    # a rate so small that a thousand steps on noise change nothing
    optimizer = machine.sgd(network.parameters(), lr=1e-6, momentum=0.9, decay=1e-4)
    return BenchmarkVariant(name, network, "plain" if name == "naive" else "auto", optimizer)


def _compiled(variant: BenchmarkVariant, machine: Machine) -> BenchmarkVariant:
    assert isinstance(variant.model, nn.Module)
    return replace(variant, model=machine.maybe_compile(variant.model))


def _call(
    what: str, machine: Machine, images: Tensor, labels: Tensor
) -> Callable[[BenchmarkVariant], None]:
    if what == "step":
        return lambda c: c.step(machine, images, labels)
    act = BenchmarkVariant.forward if what == "forward" else BenchmarkVariant.backward

    def call(variant: BenchmarkVariant) -> None:
        with machine.autocast():
            act(variant, images)

    return call


def _memory(
    base: BenchmarkVariant,
    other: BenchmarkVariant,
    machine: Machine,
    images: Tensor,
    labels: Tensor,
) -> tuple[tuple[int, int], tuple[int, int]]:
    saved, peak = [], []
    for c in (base, other):
        assert isinstance(c.model, nn.Module)
        with kernels.using(c.mode), machine.autocast():
            saved.append(saved_bytes(c.model, images))
        peak.append(measure.peak_bytes(partial(c.step, machine, images, labels), machine.device))
    return (saved[0], saved[1]), (peak[0], peak[1])


HEADS = ("SORT", "bilinear", "compact")


@dataclass(frozen=True)
class BenchmarkPlan:
    """What to measure.

    Attributes:
        networks: Names of models, or runs.
        rounds: Measurements of each variant.
        compiled: Compile the networks with SORT.
        naive: Also measure the plain formula.
        parts: Also measure op, blocks and heads.
        precision: Precision of convolutions.
        device: One of `sortnet.lab.training.DEVICES`.
    """

    networks: tuple[str, ...] = tuple(CASES)
    rounds: int = 36
    compiled: bool = False
    naive: bool = False
    parts: bool = True
    precision: str = "float32"
    device: str = "auto"

    def __post_init__(self) -> None:
        for name in self.networks:
            find_case(name)  # raises for an unknown one
        if self.rounds < 1:
            raise UsageError(f"rounds is {self.rounds}, but must be 1 or more")
        resolve_device(self.device)

    def tasks(
        self, machine: Machine, peak: Peak
    ) -> dict[str, Callable[[], Iterator[Measurement]]]:
        """Return the measurements to make, by the name that is shown."""
        against = ("SORT", "naive") if self.naive else ("SORT",)
        tasks: dict[str, Callable[[], Iterator[Measurement]]] = {}
        if self.parts and not self.compiled:
            tasks["op"] = partial(measure_op, machine, peak, self.rounds, self.naive)
            tasks["blocks"] = partial(measure_blocks, machine, self.rounds, self.naive)
            tasks["bilinear pooling"] = partial(
                measure_network, CASES["bignet"], machine, peak, self.rounds, HEADS
            )
        if self.compiled:
            machine, against = replace(machine, compile=True), ("SORT",)
        for case in map(find_case, self.networks):
            tasks[case.name] = partial(measure_network, case, machine, peak, self.rounds, against)
        return tasks


def bench(plan: BenchmarkPlan, show: Callable[[str, int, int], None]) -> Iterator[dict[str, Any]]:
    """Run a benchmark; after each part, yield all results so far, ready for JSON.

    Numbers are rounded to four digits.

    Arguments:
        plan: What to measure.
        show: Called with the name of the next part, the number of parts done, and of all.
    """
    machine = Machine.here(compile="off", precision=plan.precision, device=plan.device)
    peak = measure.machine_peak(machine.device)
    started = time.time()
    found: list[Measurement] = []
    tasks = plan.tasks(machine, peak)
    for i, (name, task) in enumerate(tasks.items()):
        show(name, i, len(tasks))
        found += task()
        torch.compiler.reset()
        gc.collect()
        result = {
            "machine": description(),
            "peak": asdict(peak),
            "plan": asdict(plan) | {"device": machine.device.type},
            "seconds": round(time.time() - started),
            "measurements": [asdict(measurement) for measurement in found],
        }
        yield json.loads(json.dumps(result), parse_float=lambda text: float(f"{float(text):.4g}"))


def write(result: dict[str, Any], path: Path) -> None:
    """Store a benchmark's result."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, json.dumps(result, indent=1) + "\n")
