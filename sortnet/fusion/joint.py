"""Two branches, their fusion and its activation as one autograd function.

Forward computes both branches, fuses and activates them in one pass over memory; backward
recomputes the branches from what was saved. `sortnet.fusion.dispatch` decides when it is used.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from sortnet.fusion import kernels
from sortnet.fusion.branches import Branch, Normalized, Tensors, sum_by_channel
from sortnet.fusion.terms import gate_slope, recomputed_value, slopes, sum_dtype, value, widen

LARGEST_IMAGE = 1 << 19
"""Elements in one image's response from which PyTorch's backward of batch normalization is faster
than a kernel that sums image by image: the image must stay in the cache for that."""


class Options(NamedTuple):
    """What the formulas depend on besides tensors.

    Attributes:
        a: The kind of the first branch, and its settings.
        b: Of the second one.
        terms: Of the fusion.
        eps: Under the root.
        relu: Whether the output is activated.
        dtype: Of the output.
        gated: Whether there is a gate.
        inside: Whether backward computes batch normalization's gradients, too.
    """

    a: tuple[type[Branch], tuple[Any, ...]]
    b: tuple[type[Branch], tuple[Any, ...]]
    terms: tuple[str, ...]
    eps: float
    relu: bool
    dtype: torch.dtype
    gated: bool
    inside: bool


def fuse_jointly(
    a: Branch,
    b: Branch,
    terms: tuple[str, ...],
    eps: float,
    relu: bool,
    gate: Tensor | None = None,
) -> Tensor:
    """Fuse two branches, one of the terms being of second order.

    The caller has asked `sortnet.fusion.dispatch` whether this can be done.
    """
    dtype = sum_dtype(a.raw, b.raw)
    first, second = a.inputs(), b.inputs()
    options = Options(
        (type(a), a.settings),
        (type(b), b.settings),
        terms,
        eps,
        relu,
        dtype,
        gate is not None,
        _norm_inside(a, b),
    )
    gates = () if gate is None else (gate,)
    kernel = kernels.worthwhile(a.raw)
    if not torch.is_grad_enabled():
        y: Tensor = kernels.run(kernel, forward, (options, len(first)), (*first, *second, *gates))[
            0
        ]
        return y
    return _Joint.apply(options, kernel, len(first), *first, *second, *gates)  # type: ignore[no-any-return]


def _norm_inside(a: Branch, b: Branch) -> bool:
    """Return True if backward's formula should compute batch normalization's gradients.

    On a CPU, that is one pass less over memory. Compiled, the gradient by the branch is stored
    once. It depends on the size alone, so that a run is the same after a restart.
    """
    norms = [x.norm for x in (a, b) if isinstance(x, Normalized)]
    if not norms or not all(norm.training for norm in norms):
        return False
    return a.raw.is_cpu and a.raw.numel() < LARGEST_IMAGE * a.raw.shape[0]


# The formulas: functions of options and tensors alone, which `kernels` compiles.


def forward(static: tuple[Options, int], *tensors: Any) -> Tensors:  # noqa: ANN401
    """Compute the output and the extras of both branches."""
    options, count = static
    end = -1 if options.gated else None
    (a, a_settings), (b, b_settings) = options.a, options.b
    p, *a_extras = a.forward(a_settings, *tensors[:count])
    q, *b_extras = b.forward(b_settings, *tensors[count:end])
    gate = shaped_gate(tensors[-1], p) if options.gated else None
    y = value(p, q, options.terms, options.eps, gate)
    y = torch.relu(y) if options.relu else y
    return y.to(options.dtype), *a_extras, *b_extras


def backward(static: tuple[Options, int, int], *tensors: Any) -> Tensors:  # noqa: ANN401
    """Compute the gradients by the inputs of both branches, and by the gate.

    Arguments:
        static: The options, and how many tensors each branch has saved.
        tensors: What both have saved, the gate, the gradient by the output.
    """
    options, first, second = static
    (a, a_settings), (b, b_settings) = options.a, options.b
    saved_a, saved_b = tensors[:first], tensors[first : first + second]
    grad = widen(tensors[-1])
    p = a.recompute(a_settings, *saved_a)
    q = b.recompute(b_settings, *saved_b)
    gate = shaped_gate(tensors[-2], p) if options.gated else None
    if options.relu:  # recomputing the output is one tensor less to save and to read
        y = recomputed_value(p, q, options.terms, options.eps, gate)
        grad = torch.where(y > 0, grad, 0.0)
    by_a, by_b = slopes(p, q, options.terms, options.eps, gate)
    by_gate: Tensors = ()
    if gate is not None:
        by_gate = (sum_by_channel(grad * gate_slope(p, q, options.terms, options.eps)),)
    return (
        *_backward(options, a, a_settings, grad * by_a, saved_a),
        *_backward(options, b, b_settings, grad * by_b, saved_b),
        *by_gate,
    )


def _backward(
    options: Options, kind: type[Branch], settings: Tensors, grad: Tensor, saved: Tensors
) -> Tensors:
    if kind is Normalized and not options.inside:
        return (grad.to(saved[0].dtype),)  # PyTorch's operator does the rest
    return kind.backward(settings, grad, *saved)


def shaped_gate(gate: Tensor, response: Tensor) -> Tensor:
    """Return one number per channel, the second dimension, in the shape of one image."""
    return widen(gate).view(-1, *[1] * (response.dim() - 2))


class _Joint(torch.autograd.Function):
    """The formulas as a function of autograd."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        options: Options,
        kernel: bool,
        count: int,
        *tensors: Any,  # noqa: ANN401
    ) -> Tensor:
        y: Tensor
        y, *extras = kernels.run(kernel, forward, (options, count), tensors)
        (a, _), (b, _) = options.a, options.b
        end = len(tensors) - options.gated
        saved_a = a.saved(tensors[:count], tuple(extras[: a.extras]))
        saved_b = b.saved(tensors[count:end], tuple(extras[a.extras :]))
        ctx.save_for_backward(*saved_a, *saved_b, *tensors[end:])
        ctx.static = options, len(saved_a), len(saved_b)
        ctx.kernel = kernel
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # noqa: ANN401
        static, tensors = ctx.static, ctx.saved_tensors
        if kernels.differentiating():
            tensors = _differentiable(static, tensors)
        found = kernels.run(ctx.kernel, backward, static, (*tensors, grad))
        return None, None, None, *_finished(static, tensors, found)


def _differentiable(static: tuple[Options, int, int], tensors: Tensors) -> Tensors:
    """Replace saved statistics by ones that derivatives can pass through."""
    options, first, second = static
    parts = [tensors[:first], tensors[first : first + second]]
    for i, (kind, settings) in enumerate((options.a, options.b)):
        if kind is Normalized:
            parts[i] = Normalized.differentiable(settings, *parts[i])
    return *parts[0], *parts[1], *tensors[first + second :]


def _finished(static: tuple[Options, int, int], tensors: Tensors, found: Tensors) -> Tensors:
    """Complete the gradients that the formula left to PyTorch's batch normalization."""
    options, first, second = static
    if options.inside:
        return found
    (a, a_settings), (b, b_settings) = options.a, options.b
    saved_a, saved_b = tensors[:first], tensors[first : first + second]
    if a is Normalized:
        found = *Normalized.backward_by_pytorch(a_settings, found[0], *saved_a), *found[1:]
    if b is Normalized:
        at = len(found) - 1 - options.gated
        by_b = Normalized.backward_by_pytorch(b_settings, found[at], *saved_b)
        found = *found[:at], *by_b, *found[at + 1 :]
    return found
