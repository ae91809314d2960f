"""Claims about cost, measured on this machine in turns with the sum."""

from functools import cache

import torch

from sortnet.heads import Bilinear
from sortnet.lab import paper
from sortnet.lab.claims.finding import FAILS, HOLDS, OPEN, Check, Context, Finding, finding
from sortnet.lab.experiments import benchmark
from sortnet.lab.experiments.benchmark import CASES, HEADS, Measurement
from sortnet.lab.measure import Peak, Ratio, parameters
from sortnet.lab.training import Machine
from sortnet.networks import create_model

ROUNDING = 0.005
"""The excess over the sum's memory that counts as more memory: it would print as 1.01."""
UNKNOWN = Peak(1.0, 1.0)
"""A placeholder: these claims do not use the machine's peak."""


@cache
def _measured(networks: tuple[str, ...], rounds: int) -> list[Measurement]:
    machine = Machine.here(compile="off")
    return [
        found
        for name in networks
        for found in benchmark.measure_network(CASES[name], machine, UNKNOWN, rounds, ("SORT",))
    ]


def measured(context: Context) -> list[Measurement]:
    """Measure SORT relative to the sum, in a chain and a residual network or in all networks."""
    names = ("lenet", "resnet20") if context.brief else tuple(CASES)
    return _measured(names, 41 if context.brief else 36)


def extra_time(context: Context) -> Finding:
    """Compare the times of a training step and a forward pass."""
    bound = paper.claim("extra-time").bound
    assert bound is not None
    limit = 1 + bound / 100
    times = [found for found in measured(context) if found.what in ("step", "forward")]
    figures = "; ".join(f"{m.name} {m.what} {_text(m.time)}" for m in times) + " of the sum's time"
    if all(m.time.high < limit for m in times):  # whole intervals: medians alone are noise
        return Finding(HOLDS, figures)
    return Finding(FAILS if any(m.time.low > limit for m in times) else OPEN, figures)


def _text(time: Ratio) -> str:
    return f"{time.median:.3f} [{time.low:.3f}, {time.high:.3f}]"


def extra_memory(context: Context) -> Finding:
    """Compare the bytes saved for backward, and the peak memory of a step."""
    ratios, held = {}, {}
    for found in measured(context):
        if found.saved is not None and found.peak is not None:
            ratios[found.name] = found.saved[1] / found.saved[0]
            held[found.name] = found.peak[1] / found.peak[0]
    figures = "; ".join(
        f"{name} keeps {ratios[name]:.3f} times the sum's bytes, holds {held[name]:.3f} at most"
        for name in ratios
    )
    most = max([*ratios.values(), *held.values()])
    return finding(most <= 1 + ROUNDING, figures)


def bilinear_larger(context: Context) -> Finding:
    """Count features and parameters of BigNet* with each head."""
    own, average, bilinear = (
        create_model("bignet", branched=True, head=head) for head in (None, "average", "bilinear")
    )
    pool = bilinear.get_submodule("pool")
    assert isinstance(pool, Bilinear)
    counts = [parameters(network) for network in (average, bilinear, own)]
    figures = (
        f"{pool.out_features:,} features in place of average pooling's 256, {counts[1]:,}"
        f" parameters in place of {counts[0]:,}; with its own fully connected layers BigNet* has"
        f" {counts[2]:,}"
    )
    return finding(pool.out_features > 256 and counts[1] > counts[0], figures)


def bilinear_slower(context: Context) -> Finding:
    """Compare training steps of BigNet*, the heads in turns with SORT."""
    machine = Machine.here(compile="off")
    batch = CASES["bignet"].batch
    images = machine.images(torch.randn(batch, 3, 32, 32))
    labels = machine.labels(torch.randint(10, (batch,)))
    found = benchmark.time_in_turns(
        [benchmark.create_variant(CASES["bignet"], machine, name) for name in HEADS],
        lambda variant: variant.step(machine, images, labels),
        7 if context.brief else 36,
    )
    times = {each.variant.name: each.time for each in found}
    figures = ", ".join(f"{name} pooling takes {_text(time)}" for name, time in times.items())
    figures += " of SORT's time for a step, in place of BigNet*'s fully connected layers"
    if all(time.low > 1 for time in times.values()):
        return Finding(HOLDS, figures)
    return Finding(FAILS if any(time.high < 1 for time in times.values()) else OPEN, figures)


CHECKS: dict[str, Check] = {
    "extra-time": extra_time,
    "extra-memory": extra_memory,
    "bilinear-larger": bilinear_larger,
    "bilinear-slower": bilinear_slower,
}
