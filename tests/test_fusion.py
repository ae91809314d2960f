"""The op against its definition: values, derivatives, dtypes, and every way torch can run it."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from sortnet import Fusion, sort
from sortnet.fusion import EPS, TERMS, fuse, kernels, parse

TABLE1 = ["sum", "max", "prod", "sum+max", "sum+prod", "max+prod", "sum+max+prod"]
FUSIONS = [*TABLE1, "root", "sum+root", "max+root", "sum+max+root", "sum+square", "sum+prod+root"]
SECOND = [name for name in FUSIONS if set(parse(name)) & {"prod", "root", "square"}]
VALUES: dict[str, Callable[[float, float], float]] = {
    "sum": lambda a, b: a + b,
    "max": max,
    "prod": lambda a, b: a * b,
    "root": lambda a, b: math.sqrt(max(a, 0) * max(b, 0) + EPS),
    "square": lambda a, b: a * a,
}

numbers = st.floats(-100, 100, allow_nan=False, width=32)
pairs = st.lists(st.tuples(numbers, numbers), min_size=1, max_size=30)


def branches(*shape: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    a = torch.randn(*shape, dtype=dtype, requires_grad=True)
    return a, torch.randn(*shape, dtype=dtype, requires_grad=True)


@given(pairs, st.sampled_from(FUSIONS))
def test_value_is_the_sum_of_its_terms(values: list[tuple[float, float]], name: str) -> None:
    a, b = torch.tensor(values, dtype=torch.float64).unbind(1)
    y = Fusion(name)(a.view(1, -1), b.view(1, -1))
    expected = [sum(VALUES[t](p, q) for t in parse(name)) for p, q in values]
    torch.testing.assert_close(y.flatten(), torch.tensor(expected, dtype=torch.float64))


@given(pairs)
def test_sort_is_symmetric_and_more_than_the_sum(values: list[tuple[float, float]]) -> None:
    a, b = torch.tensor(values).unbind(1)
    for term in ("prod", "root"):
        assert torch.equal(sort(a, b, term), sort(b, a, term))
    a, b = a.abs(), b.abs()
    assert (sort(a, b) >= a + b).all()
    assert torch.equal(sort(a, torch.zeros_like(a)), a)


def test_consistent_responses_are_rewarded() -> None:
    """Section 3.2: of all a1 + a2 = a the equal ones give the largest response."""
    a1 = torch.linspace(0, 2, 101, dtype=torch.float64)
    y = sort(a1, 2 - a1)
    assert y.argmax() == 50
    assert y[0] == y[-1] == 2


@pytest.mark.parametrize("name", FUSIONS)
def test_gradients(name: str) -> None:
    fusion = Fusion(name)
    a, b = branches(2, 3, 2, 2)
    assert gradcheck(fusion, (a, b))
    assert gradgradcheck(fusion, (a, b))


@pytest.mark.parametrize("gate", ["zero", "one"])
def test_gradients_of_a_gate(gate: str) -> None:
    fusion = Fusion("sort", block="residual", gate=gate, channels=3).double()
    a, b = branches(2, 3, 2, 2)
    assert fusion.gate is not None
    # gradcheck moves the gate itself, so it must see it as an input
    fused = lambda a, b, gate: torch.func.functional_call(fusion, {"gate": gate}, (a, b))  # noqa: E731
    assert gradcheck(fused, (a, b, fusion.gate))
    assert gradgradcheck(fused, (a, b, fusion.gate))


def test_equation_2_in_closed_form() -> None:
    a, b = branches(5, 7)
    weight = torch.randn(5, 7, dtype=torch.float64)
    by_a, by_b = torch.autograd.grad((sort(a, b) * weight).sum(), (a, b))
    torch.testing.assert_close(by_a, weight * (1 + b))
    torch.testing.assert_close(by_b, weight * (1 + a))


def test_square_does_not_cross_branches_and_max_trains_one_of_them() -> None:
    a, b = branches(50)
    (by_b,) = torch.autograd.grad(
        fuse(a, b, ("square",)).sum(), b, allow_unused=True, materialize_grads=True
    )
    assert (by_b == 0).all()
    by_a, by_b = torch.autograd.grad(fuse(a, b, ("max",)).sum(), (a, b))
    assert torch.equal(by_a + by_b, torch.ones_like(a))
    assert (by_a * by_b == 0).all()


EDGES = [0.0, -0.0, 1e-30, 6e-8, 1e-4, 1.0, 300.0, 1e4, -1e4]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", SECOND)
def test_finite_at_zero_at_the_kink_and_far_out(name: str, dtype: torch.dtype) -> None:
    grid = torch.tensor(EDGES, dtype=dtype)
    a, b = torch.meshgrid(grid, grid, indexing="ij")
    a, b = a.clone().requires_grad_(), b.clone().requires_grad_()
    y = fuse(a, b, parse(name))
    assert y.dtype == dtype
    exact = fuse(a.double(), b.double(), parse(name)).to(dtype)  # infinite where float16 ends
    torch.testing.assert_close(y, exact)
    for gradient in torch.autograd.grad(y.sum(), (a, b)):
        assert gradient.dtype == dtype
        assert not gradient.isnan().any()


def test_float16_is_computed_in_float32_and_rounded_once() -> None:
    a, b = torch.randn(2, 1000).half().unbind(0)
    exact = sort(a.double(), b.double(), "root")
    assert torch.equal(sort(a, b, "root"), exact.half())
    threehundred = torch.tensor(300.0, dtype=torch.float16)
    assert sort(threehundred, threehundred, "root") == 900


@pytest.mark.parametrize("name", SECOND)
@pytest.mark.parametrize("mode", ["eager", "plain"])
def test_what_float16_cannot_hold_stays_visible(name: str, mode: str) -> None:
    """A GradScaler looks for Inf: in what comes in, what goes out and what comes back."""
    wide = torch.tensor([1.0, 300.0, float("inf")], dtype=torch.float16)
    a, b = (x.reshape(1, 1, 3, 3) for x in torch.meshgrid(wide, wide, indexing="ij"))
    grad = torch.full_like(a, 6e4)
    found = []
    for dtype in (torch.float16, torch.float64):
        inputs = [x.to(dtype).requires_grad_() for x in (a, b)]
        with kernels.using(mode if dtype == torch.float16 else "plain"):
            y = Fusion(name)(*inputs)
            found.append((y, *torch.autograd.grad(y, inputs, grad.to(dtype))))
    for half, exact in zip(*found, strict=True):
        assert torch.equal(half.isfinite(), exact.half().isfinite())


@pytest.mark.parametrize("name", FUSIONS)
def test_autocast_and_mixed_branches_have_the_dtype_of_the_sum(name: str) -> None:
    x = torch.randn(2, 4, 8, 8)
    conv = torch.nn.Conv2d(4, 4, 3, padding=1)
    fusion = Fusion(name)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = conv(x)
        assert fusion(x, y).dtype == (x + y).dtype == torch.float32
        assert fusion(y, y).dtype == (y + y).dtype == torch.bfloat16
        expected = fusion(y.float(), y.float()).bfloat16()
    torch.testing.assert_close(fusion(y, y), expected)


def cases() -> list[tuple[str, Callable[[Tensor, Tensor], Tensor]]]:
    functions = [(name, Fusion(name)) for name in FUSIONS]
    return [*functions, ("gated", Fusion("sum+prod", gate="one", channels=3))]


@pytest.mark.parametrize(("name", "fusion"), cases())
def test_fx_meta_export_and_channels_last(name: str, fusion: Fusion) -> None:
    a, b = torch.rand(2, 2, 3, 4, 4).unbind(0)
    expected = fusion(a, b)

    graph = torch.fx.symbolic_trace(fusion)
    assert torch.equal(graph(a, b), expected)

    on_meta = Fusion("+".join(fusion.terms))(a.to("meta"), b.to("meta"))
    assert on_meta.shape == a.shape

    batch = torch.export.Dim.DYNAMIC
    exported = torch.export.export(fusion, (a, b), dynamic_shapes=({0: batch}, {0: batch}))
    assert torch.equal(exported.module()(a, b), expected)
    assert exported.module()(torch.rand(5, 3, 4, 4), torch.rand(5, 3, 4, 4)).shape[0] == 5

    last = [t.contiguous(memory_format=torch.channels_last).requires_grad_() for t in (a, b)]
    y = fusion(*last)
    assert y.is_contiguous(memory_format=torch.channels_last)
    for gradient in torch.autograd.grad(y.square().sum(), last, allow_unused=True):
        if gradient is not None:
            assert gradient.is_contiguous(memory_format=torch.channels_last)


# torch itself warns here: forward-mode derivatives are decomposed by torch.jit.script
@pytest.mark.filterwarnings("ignore:`torch.jit.script:FutureWarning")
@pytest.mark.parametrize("name", SECOND)
def test_function_transforms(name: str) -> None:
    a, b = branches(3, 4)
    terms = parse(name)

    def scalar(a: Tensor, b: Tensor) -> Tensor:
        return fuse(a, b, terms).square().sum()

    expected = torch.autograd.grad(scalar(a, b), a)[0]
    torch.testing.assert_close(torch.func.grad(scalar)(a, b), expected)
    torch.testing.assert_close(torch.vmap(torch.func.grad(scalar))(a, b), expected)
    torch.testing.assert_close(torch.vmap(lambda a, b: fuse(a, b, terms))(a, b), fuse(a, b, terms))
    hessian = torch.func.hessian(scalar)(a[0], b[0])  # forward over reverse
    reverse = torch.func.jacrev(torch.func.jacrev(scalar))(a[0], b[0])
    torch.testing.assert_close(hessian, reverse)


@pytest.mark.parametrize("name", ["sum+prod", "sum+root", "sum+max+square"])
def test_compiles_without_a_graph_break(name: str) -> None:
    fusion = Fusion(name)
    compiled = torch.compile(fusion, fullgraph=True)
    a, b = branches(2, 3, 4, 4, dtype=torch.float32)
    results = []
    for function in (fusion, compiled):
        y = function(a, b)
        results.append((y, *torch.autograd.grad(y.square().sum(), (a, b))))
    torch.testing.assert_close(results[0], results[1])


@settings(max_examples=30)
@given(st.lists(st.integers(0, 4), max_size=4), st.sampled_from(FUSIONS))
def test_any_shape(shape: list[int], name: str) -> None:
    a, b = torch.rand(2, *shape).unbind(0)
    assert fuse(a, b, parse(name)).shape == a.shape


def test_gate_at_zero_is_the_sum_and_at_one_is_sort() -> None:
    a, b = torch.randn(2, 4, 3, 5, 5).unbind(0)
    assert torch.equal(Fusion("sort", gate="zero", channels=3)(a, b), a + b)
    torch.testing.assert_close(Fusion("sort", gate="one", channels=3)(a, b), sort(a, b))


def test_sort_is_resolved_by_the_block() -> None:
    assert parse("sort") == ("sum", "prod")
    assert parse("sort", "residual") == ("sum", "root")
    assert parse("sort+max", "residual") == ("sum", "root", "max")
    assert set(TERMS) == set(VALUES)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: Fusion("sum+sum"), "twice"),
        (lambda: Fusion("sort+sum"), "twice"),
        (lambda: Fusion("sum+prd"), "'prd' .* there are sum, max, prod, root, square, sort"),
        (lambda: Fusion(""), "unknown term ''"),
        (lambda: Fusion("sum", gate="zero", channels=3), "no second-order term"),
        (lambda: Fusion("sort", gate="half", channels=3), "there are zero, one"),
        (lambda: Fusion("sort", gate="one"), "channels"),
        (lambda: Fusion("root", eps=0), "above 0"),
        (lambda: Fusion("sort", block="dense"), "there are branches, residual"),
        (lambda: sort(torch.ones(2, 3), torch.ones(3)), r"\(2, 3\) and \(3,\).* not broadcast"),
        (lambda: sort(torch.ones(2), torch.ones(1), "root"), "does not broadcast"),
        (lambda: sort(torch.ones(2, dtype=torch.int64), torch.ones(2)), "floating point"),
        (lambda: sort(torch.ones(2), torch.ones(2), "cube"), "there are prod, root, square"),
    ],
)
def test_wrong_input_says_what_is_allowed(wrong: Callable[[], object], says: str) -> None:
    with pytest.raises(ValueError, match=says) as error:
        wrong()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("eps", [0, -1.0, math.nan, math.inf, "1", None, True, 1j, [0.1]])
def test_eps_is_a_finite_number_above_zero(eps: Any) -> None:  # noqa: ANN401
    """A negative one or NaN would give NaN at every place where a branch is not positive."""
    x = torch.ones(2)
    for make in (lambda: Fusion("root", eps=eps), lambda: sort(x, x, "root", eps)):
        with pytest.raises((ValueError, TypeError), match=r"^eps is .*, but must be ") as error:
            make()
        assert "\n" not in str(error.value)
