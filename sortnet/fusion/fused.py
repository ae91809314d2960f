"""The fused path: two branches, their fusion and its activation as one autograd function.

Forward computes both branches, fuses and activates them in one pass over memory; backward
recomputes the branches from what was saved. `sortnet.fusion.dispatch` decides when it is used.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from sortnet.fusion import kernels
from sortnet.fusion.branches import Branch, Normalized, sum_by_channel
from sortnet.fusion.formulas import (
    derivatives,
    gate_derivative,
    recomputed_value,
    sum_dtype,
    value,
    widen,
)

MAX_IMAGE = 1 << 19
"""Elements per image above which PyTorch's backward of batch normalization is faster than a kernel
that sums image by image, because the image no longer fits the cache."""


class BranchSpec(NamedTuple):
    """A branch without its tensors: its kind, whose methods are the formulas, and its settings."""

    kind: type[Branch]
    settings: Any


class FusedOptions(NamedTuple):
    """What the formulas depend on besides tensors.

    Attributes:
        a: The first branch.
        b: The second branch.
        terms: The terms of the fusion.
        eps: Added under the root.
        relu: Whether the output is activated.
        dtype: Of the output.
        gated: Whether the last input is a gate.
        norm_backward: Whether `backward` includes the backward of batch normalization.
    """

    a: BranchSpec
    b: BranchSpec
    terms: tuple[str, ...]
    eps: float
    relu: bool
    dtype: torch.dtype
    gated: bool
    norm_backward: bool


def run_fused(
    a: Branch,
    b: Branch,
    terms: tuple[str, ...],
    eps: float,
    *,
    relu: bool = False,
    gate: Tensor | None = None,
) -> Tensor:
    """Fuse two branches by terms of which at least one is second-order.

    The caller has asked `sortnet.fusion.dispatch.why_not_fused` whether this is possible.
    """
    inputs = *a.inputs(), *b.inputs(), *(() if gate is None else (gate,))
    options = FusedOptions(
        BranchSpec(type(a), a.settings),
        BranchSpec(type(b), b.settings),
        terms,
        eps,
        relu,
        sum_dtype(a.raw, b.raw),
        gate is not None,
        _includes_norm_backward(a, b),
    )
    kernel = kernels.get_mode() == "auto" and not torch.compiler.is_compiling()
    if not torch.is_grad_enabled():
        y: Tensor = kernels.run(kernel, forward, options, inputs)[0]
        return y
    return _Fused.apply(options, kernel, *inputs)  # type: ignore[no-any-return]


def _includes_norm_backward(a: Branch, b: Branch) -> bool:
    """Return True if the backward formula should compute the gradients of batch normalization.

    On a CPU, this saves one pass over memory. Compiled, the gradient of the branch is stored once.
    It depends on the size alone, so that a resumed run is bit-identical.
    """
    norms = [x.module for x in (a, b) if isinstance(x, Normalized)]
    if not norms or not all(norm is not None and norm.training for norm in norms):
        return False
    return a.raw.is_cpu and a.raw.numel() < MAX_IMAGE * a.raw.shape[0]


# The formulas: functions of options and tensors alone, which `kernels` compiles.


def forward(options: FusedOptions, *tensors: Any) -> tuple[Tensor, ...]:  # noqa: ANN401
    """Compute the output, and the extras of both branches.

    Arguments:
        options: What is computed.
        tensors: The inputs of both branches, then the gate if there is one.
    """
    spec_a, spec_b = options.a, options.b
    a, b, gates = _split(spec_a.kind.Inputs, spec_b.kind.Inputs, tensors)
    p, *extras_a = spec_a.kind.forward(spec_a.settings, a)
    q, *extras_b = spec_b.kind.forward(spec_b.settings, b)
    gate = shaped_gate(gates[0], p) if options.gated else None
    y = value(p, q, options.terms, options.eps, gate)
    y = torch.relu(y) if options.relu else y
    return y.to(options.dtype), *extras_a, *extras_b


def backward(options: FusedOptions, *tensors: Any) -> tuple[Tensor | None, ...]:  # noqa: ANN401
    """Compute the gradients of the inputs of both branches, and of the gate.

    Arguments:
        options: What was computed.
        tensors: The saved tensors of both branches, the gate if there is one, the gradient of the
            output.
    """
    spec_a, spec_b = options.a, options.b
    a, b, (*gates, grad) = _split(spec_a.kind.Saved, spec_b.kind.Saved, tensors)
    grad = widen(grad)
    p = spec_a.kind.recompute(spec_a.settings, a)
    q = spec_b.kind.recompute(spec_b.settings, b)
    gate = shaped_gate(gates[0], p) if options.gated else None
    if options.relu:  # recomputing the output is one tensor less to save and to read
        y = recomputed_value(p, q, options.terms, options.eps, gate)
        grad = torch.where(y > 0, grad, 0.0)
    by_a, by_b = derivatives(p, q, options.terms, options.eps, gate)
    by_gate: tuple[Tensor, ...] = ()
    if gate is not None:
        by_gate = (sum_by_channel(grad * gate_derivative(p, q, options.terms, options.eps)),)
    return (
        *_branch_backward(options, spec_a, a, grad * by_a),
        *_branch_backward(options, spec_b, b, grad * by_b),
        *by_gate,
    )


def _branch_backward(options: FusedOptions, spec: BranchSpec, saved: Any, grad: Tensor) -> Any:  # noqa: ANN401
    if spec.kind is Normalized and not options.norm_backward:  # left to `_norm_backward`
        return Normalized.Inputs(grad.to(saved.raw.dtype), None, None)
    return spec.kind.backward(spec.settings, saved, grad)


def _split(kind_a: Any, kind_b: Any, tensors: tuple[Any, ...]) -> tuple[Any, Any, tuple[Any, ...]]:  # noqa: ANN401
    """Split a flat tuple into the named tuples of both branches, and the rest."""
    end_a = len(kind_a._fields)
    end_b = end_a + len(kind_b._fields)
    return kind_a(*tensors[:end_a]), kind_b(*tensors[end_a:end_b]), tensors[end_b:]


def shaped_gate(gate: Tensor, response: Tensor) -> Tensor:
    """Reshape one number per channel, the second dimension, to broadcast over a response."""
    return widen(gate).view(-1, *[1] * (response.dim() - 2))


class _Fused(torch.autograd.Function):
    """The formulas as an autograd function."""

    @staticmethod
    def forward(ctx: Any, options: FusedOptions, kernel: bool, *tensors: Any) -> Tensor:  # noqa: ANN401
        kind_a, kind_b = options.a.kind, options.b.kind
        y: Tensor
        y, *extras = kernels.run(kernel, forward, options, tensors)
        a, b, gates = _split(kind_a.Inputs, kind_b.Inputs, tensors)
        saved_a = kind_a.save(a, *extras[: kind_a.extras])
        saved_b = kind_b.save(b, *extras[kind_a.extras :])
        ctx.save_for_backward(*saved_a, *saved_b, *gates)
        ctx.options, ctx.kernel = options, kernel
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # noqa: ANN401
        options, tensors = ctx.options, ctx.saved_tensors
        if kernels.differentiating():
            tensors = _differentiable(options, tensors)
        grads = kernels.run(ctx.kernel, backward, options, (*tensors, grad))
        if not options.norm_backward:
            grads = _norm_backward(options, tensors, grads)
        return None, None, *grads


def _differentiable(options: FusedOptions, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
    """Replace saved statistics by ones that second derivatives pass through."""
    a, b, gates = _split(options.a.kind.Saved, options.b.kind.Saved, tensors)
    if options.a.kind is Normalized:
        a = Normalized.differentiable(options.a.settings, a)
    if options.b.kind is Normalized:
        b = Normalized.differentiable(options.b.settings, b)
    return *a, *b, *gates


def _norm_backward(
    options: FusedOptions, tensors: tuple[Any, ...], grads: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Compute the gradients that `backward` leaves to PyTorch's batch normalization."""
    saved_a, saved_b, _ = _split(options.a.kind.Saved, options.b.kind.Saved, tensors)
    a, b, by_gate = _split(options.a.kind.Inputs, options.b.kind.Inputs, grads)
    if options.a.kind is Normalized:
        a = Normalized.backward_by_pytorch(options.a.settings, saved_a, a.raw)
    if options.b.kind is Normalized:
        b = Normalized.backward_by_pytorch(options.b.settings, saved_b, b.raw)
    return *a, *b, *by_gate
