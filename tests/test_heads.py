"""Bilinear and compact bilinear pooling against their definitions."""

import pytest
import torch

from sortnet.heads import HEADS, Bilinear, CompactBilinear, normalize


def test_bilinear_is_the_mean_outer_product() -> None:
    x = torch.randn(2, 5, 3, 4, dtype=torch.float64)
    outer = torch.einsum("nchw,ndhw->ncd", x, x) / 12
    expected = outer.sign() * outer.abs().sqrt()
    expected = expected.flatten(1) / expected.flatten(1).norm(dim=1, keepdim=True)
    torch.testing.assert_close(Bilinear(5)(x), expected, rtol=1e-5, atol=1e-5)


def test_compact_inner_products_estimate_bilinear_ones() -> None:
    """Over many sketches <cbp(x), cbp(y)> has the mean <x x', y y'>: that is what it is for."""
    x, y = torch.randn(2, 1, 8, 3, 3, dtype=torch.float64)

    def raw(head: CompactBilinear, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(2).mT
        product = head._spectrum(x, 0) * head._spectrum(x, 1)
        z: torch.Tensor = torch.fft.irfft(product.mean(1), n=head.out_features)
        return z

    heads = [CompactBilinear(8, out_features=128, seed=seed) for seed in range(400)]
    estimates = torch.stack([(raw(head, x) * raw(head, y)).sum() for head in heads])
    a, b = (torch.einsum("nchw,ndhw->cd", z, z) / 9 for z in (x, y))
    error = estimates.std() / len(heads) ** 0.5
    assert (estimates.mean() - (a * b).sum()).abs() < 4 * error
    assert error < 0.2 * (a * b).sum().abs()


def test_sketches_travel_with_the_weights_and_leave_the_random_state() -> None:
    before = torch.get_rng_state()
    first, second = CompactBilinear(8, 64, seed=1), CompactBilinear(8, 64, seed=2)
    assert torch.equal(torch.get_rng_state(), before)
    x = torch.randn(2, 8, 4, 4)
    assert not torch.equal(first(x), second(x))
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(x), second(x))
    assert not list(first.parameters())


@pytest.mark.parametrize("head", [Bilinear(3), CompactBilinear(3, out_features=16)])
def test_gradients(head: torch.nn.Module) -> None:
    x = torch.randn(2, 3, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(head, (x,))


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("value", [0.0, 1e-20, 3e4])
def test_finite_where_everything_is_equal(name: str, value: float) -> None:
    head = HEADS[name](8)
    x = torch.full((2, 8, 4, 4), value, requires_grad=True)
    y = head(x)
    y.sum().backward()
    assert y.isfinite().all()
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("name", ["bilinear", "compact"])
def test_float32_under_autocast(name: str) -> None:
    head = HEADS[name](8)
    x = torch.randn(2, 8, 4, 4).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = head(x)
    assert y.dtype == torch.float32
    assert torch.equal(y, head(x.float()))


def test_normalised_vectors_have_length_one() -> None:
    z = torch.randn(5, 100, dtype=torch.float64)
    torch.testing.assert_close(normalize(z).norm(dim=1), torch.ones(5, dtype=torch.float64))
