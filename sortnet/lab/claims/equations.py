"""Claims about the operation: mathematics, checked in float64 and on every network."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sortnet.blocks import Basic, TwoBranch
from sortnet.fusion import EPS, Fusion, fuse, kernels
from sortnet.lab.claims.finding import Check, Context, Finding, finding
from sortnet.lab.measure import parameters, receptive_fields
from sortnet.networks import NETWORKS, Network, create_model

Fused = Callable[[Tensor, Tensor], Tensor]
PROD: Fused = partial(fuse, terms=("sum", "prod"))
ROOT: Fused = partial(fuse, terms=("sum", "root"))
SIZES = {"alexnet": 67, "resnet18": 64, "resnet34": 64, "resnet50": 64}
"""The smallest images that the large networks accept."""


def _pair(name: str) -> tuple[Network, Network]:
    """Return a network with the sum and with SORT; a chain in its two-branch form."""
    options: dict[str, Any] = {"branched": True} if "branched" in NETWORKS[name].variants else {}
    if name == "wrn28":
        options = {"width": 1}
    size = SIZES.get(name)
    plain, second = (create_model(name, 10, f, size=size, **options) for f in ("sum", "sort"))
    return plain, second


def no_new_parameters(context: Context) -> Finding:
    """Count parameters and state-dict entries in every network of the paper."""
    added = keys = 0
    for name in NETWORKS:
        plain, second = _pair(name)
        added += parameters(second) - parameters(plain)
        keys += len(second.state_dict().keys() ^ plain.state_dict().keys())
    gated = parameters(create_model("resnet20", fusion="sort", gate="one")) - parameters(
        create_model("resnet20")
    )
    figures = (
        f"{added} parameters and {keys} state-dict entries added in all of"
        f" {len(NETWORKS)} networks; gates, one number per channel, would add {gated} to ResNet-20"
    )
    return finding(added == keys == 0, figures)


def wide_range(context: Context) -> Finding:
    """Compute a gradient in every network, and check that only the fusions differ."""
    changed, trained = 0, 0
    for name in NETWORKS:
        plain, second = _pair(name)
        kinds = [[m for m in n.modules() if not isinstance(m, Fusion)] for n in (plain, second)]
        changed += any(repr(type(a)) != repr(type(b)) for a, b in zip(*kinds, strict=True))
        images = torch.randn(2, 3, plain.size, plain.size)
        with kernels.using("plain"):  # compiling kernels does not pay for one step
            torch.autograd.backward(F.cross_entropy(second(images), torch.tensor([0, 1])))
        gradients = [p.grad for p in second.parameters()]
        trained += all(g is not None and bool(g.isfinite().all()) for g in gradients)
    figures = (
        f"{trained} of {len(NETWORKS)} networks have a finite gradient for every parameter;"
        f" {changed} differ from the network with the sum in more than the fusion modules"
    )
    return finding(trained == len(NETWORKS) and changed == 0, figures)


def _seen(module: nn.Module) -> int | None:
    """Return the receptive field of a module."""
    return receptive_fields(Network({"module": module}, size=63))["module"]


def receptive_field(context: Context) -> Finding:
    """Measure receptive fields by the support of one response's gradient."""
    found, holds = [], True
    for kernel in (3, 5, 11):
        one = _seen(nn.Conv2d(3, 8, kernel, padding=kernel // 2))
        two = _seen(TwoBranch(3, 8, kernel, Fusion("sort"), padding=kernel // 2))
        holds &= one == two == kernel
        found.append(f"{one} and {two} pixels for k = {kernel}")
    blocks = [_seen(Basic(3, 3, 1, Fusion(f, block="residual"))) for f in ("sum", "sort")]
    holds &= blocks[0] == blocks[1]
    figures = (
        f"one kernel and its two-branch form with SORT see {', '.join(found)};"
        f" a residual block sees {blocks[0]} with the sum, {blocks[1]} with SORT"
    )
    return finding(holds, figures)


def finite_gradient(context: Context) -> Finding:
    """Find the largest slope of the root with one branch at 1 and the other going to 0."""
    slopes = {}
    for eps in (EPS, 1e-12):
        a = torch.logspace(-16, 0, 200, dtype=torch.float64).requires_grad_()
        y = fuse(a, torch.ones_like(a), ("sum", "root"), eps)
        (gradient,) = torch.autograd.grad(y.sum(), a)
        slopes[eps] = float(gradient.max())
    zero = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    (at_zero,) = torch.autograd.grad(fuse(zero, zero, ("sum", "root")).sum(), zero)
    bound = 1 + 0.5 / EPS**0.5
    holds = slopes[EPS] <= bound < slopes[1e-12] and bool(at_zero.isfinite())
    figures = (
        f"the slope stays below {slopes[EPS]:.1f} (bound {bound:g}) with ε = {EPS:g} and reaches"
        f" {slopes[1e-12]:.2g} with 1e-12; at 0 it is {float(at_zero):g}"
    )
    return finding(holds, figures)


def gradient(context: Context) -> Finding:
    """Compare equation 2 with autograd, for the weights of one branch."""
    branch1, branch2 = (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU()).double()
        for _ in range(2)
    )
    x = torch.randn(2, 3, 12, 12, dtype=torch.float64)
    theta = list(branch1.parameters())
    y = PROD(branch1(x), branch2(x))
    outer = torch.randn_like(y)
    auto = torch.autograd.grad(y, theta, outer)
    formula = torch.autograd.grad(branch1(x), theta, outer * (1 + branch2(x).detach()))
    far = max(float((a - b).abs().max()) for a, b in zip(auto, formula, strict=True))
    largest = max(float(a.abs().max()) for a in auto)
    figures = (
        f"largest difference to autograd {far:.1e}, of gradients up to {largest:.1f} (float64)"
    )
    return finding(far < 1e-10 * largest, figures)


def _by_closeness(fused: Fused) -> tuple[bool, float]:
    """Return whether the output grows as (0, 2) becomes (1, 1), and its value at (0, 2)."""
    a = torch.linspace(0, 1, 101, dtype=torch.float64)
    y = fused(a, 2 - a)
    return bool((y.diff() > 0).all()), float(y[0])


def consistent_responses(context: Context) -> Finding:
    """Check that the output grows from (0, 2) to (1, 1)."""
    grows, alone = _by_closeness(PROD)
    root_grows, root_alone = _by_closeness(ROOT)
    figures = (
        f"from (0, 2) to (1, 1) the output grows from {alone:g} to 3 with the product, from"
        f" {root_alone:g} to {float(ROOT(torch.ones(1), torch.ones(1))):.2f} with the root"
        f" (its constant is {EPS**0.5:g})"
    )
    return finding(grows and root_grows and alone == 2, figures)


def logical_and(context: Context) -> Finding:
    """Evaluate the term for responses of 0 and 1."""
    states = torch.tensor([0.0, 1.0], dtype=torch.float64)
    a, b = torch.meshgrid(states, states, indexing="ij")
    terms = {name: fuse(a, b, (name,)) for name in ("prod", "root")}
    both = (a > 0) & (b > 0)
    holds = all(
        bool((term[both] >= 1).all() and (term[~both] <= EPS**0.5).all())
        for term in terms.values()
    )
    tables = "; ".join(
        f"{name} {[round(v, 3) for v in term.flatten().tolist()]}" for name, term in terms.items()
    )
    return finding(holds, f"of (0,0), (0,1), (1,0), (1,1): {tables}")


def nonlinear_region(context: Context) -> Finding:
    """Find where second derivatives of Figure 2's functions are nonzero, at 10,000 points."""
    points = (torch.rand(10_000, 2, dtype=torch.float64) * 4 - 2).requires_grad_()
    inside = (points > 0).all(1)
    parts = {}
    for name, terms in (("f1", ("sum",)), ("f2", ("sum", "prod"))):
        x, y = torch.relu(points).unbind(1)
        slope = torch.autograd.grad(fuse(x, y, terms).sum(), points, create_graph=True)[0]
        curved = torch.zeros(len(points), dtype=torch.bool)
        for i in range(2):
            if slope.requires_grad:
                second = torch.autograd.grad(slope[:, i].sum(), points, retain_graph=True)[0]
                curved |= (second != 0).any(1)
        parts[name] = (
            float(curved[inside].double().mean()),
            float(curved[~inside].double().mean()),
        )
    figures = "; ".join(
        f"{name} is curved at {100 * within:.0f} % of the points where both are positive,"
        f" at {100 * elsewhere:.0f} % of the others"
        for name, (within, elsewhere) in parts.items()
    )
    return finding(parts == {"f1": (0.0, 0.0), "f2": (1.0, 0.0)}, figures)


def _reaction(terms: tuple[str, ...]) -> float:
    """Return how much one branch's gradient changes with the other branch."""
    a = torch.rand(1000, dtype=torch.float64).requires_grad_()
    slopes = [
        torch.autograd.grad(fuse(a, torch.rand_like(a), terms).sum(), a)[0] for _ in range(2)
    ]
    return float((slopes[0] - slopes[1]).abs().max())


def square_stays_in_branch(context: Context) -> Finding:
    """Change one branch and compare the other one's gradient."""
    square, prod = _reaction(("sum", "square")), _reaction(("sum", "prod"))
    figures = f"with new responses of the other branch the gradient changes by {square:g} with the"
    return finding(square == 0 < prod, f"{figures} square, by up to {prod:.2f} with the product")


def _trained(terms: tuple[str, ...]) -> float:
    a, b = (torch.rand(10_000, dtype=torch.float64).requires_grad_() for _ in range(2))
    gradients = torch.autograd.grad(fuse(a, b, terms).sum(), (a, b))
    return float((torch.cat(gradients) != 0).double().mean())


def max_trains_half(context: Context) -> Finding:
    """Count the responses that get a gradient."""
    maximum, added = _trained(("max",)), _trained(("sum",))
    figures = f"{100 * maximum:.0f} % of the responses get a gradient with the maximum,"
    return finding((maximum, added) == (0.5, 1.0), f"{figures} {100 * added:.0f} % with the sum")


def max_ignores_consistency(context: Context) -> Finding:
    """Check that the maximum does not grow from (0, 2) to (1, 1)."""
    grows, alone = _by_closeness(partial(fuse, terms=("max",)))
    figures = f"from (0, 2) to (1, 1) the maximum falls from {alone:g} to 1"
    return finding(not grows, figures)


CHECKS: dict[str, Check] = {
    "no-new-parameters": no_new_parameters,
    "wide-range": wide_range,
    "receptive-field": receptive_field,
    "finite-gradient": finite_gradient,
    "gradient": gradient,
    "consistent-responses": consistent_responses,
    "logical-and": logical_and,
    "nonlinear-region": nonlinear_region,
    "square-stays-in-branch": square_stays_in_branch,
    "max-trains-half": max_trains_half,
    "max-ignores-consistency": max_ignores_consistency,
}
