"""How the fusion's formulas are run: operation by operation, or as compiled kernels.

PyTorch's eager mode passes over memory once for every operation of a formula, ten times for the
root and its slopes. Compiled by Inductor, each formula is one pass, also within a network that is
otherwise not compiled. That needs a C++ compiler (CPU) or Triton (GPU) and some seconds once.
"""

import functools
import importlib.util
import logging
import os
import shutil
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from sortnet.fusion import private

MODES = ("auto", "eager", "plain")
SMALLEST = {"batch": 1 << 16, "image": 1 << 20}
"""Elements below which a kernel is not worth its call, or for one image its compilation.

The choice depends on nothing else, so that a run is the same after a restart, bit for bit.
"""

MOST = 64
"""Kernels for one formula; with images of ever new sizes the rest is run without."""

Formula = Callable[..., Any]
Kernel = Callable[[list[Tensor]], Any]
_mode = "auto"
_kernels: dict[tuple[Formula, Hashable], dict[Hashable, Kernel | None]] = {}
_broken: set[str] = set()
"""Devices for which a compilation or a kernel has failed: it is not tried again."""
_log = logging.getLogger(__name__)


def set_mode(mode: str) -> None:
    """Choose how fusions are run, from now on and everywhere.

    Arguments:
        mode: ``auto``: with kernels where they are worthwhile. ``eager``: without kernels, but
            saving as little for backward as with them; slower. ``plain``: by PyTorch's own
            operations and derivatives. The environment variable SORTNET_KERNELS sets the first.
    """
    global _mode
    if mode not in MODES:
        raise ValueError(f"unknown mode {mode!r}; there are {', '.join(MODES)}")
    _mode = mode


@contextmanager
def using(mode: str) -> Iterator[None]:
    """Choose how fusions are run within a ``with`` block."""
    before = _mode
    set_mode(mode)
    try:
        yield
    finally:
        set_mode(before)


def obstacle(x: Tensor) -> str | None:
    """Say why tensors like `x` are not fused jointly, or nothing if they are."""
    if _mode == "plain":
        return "the mode is plain"
    if _mode == "eager" or torch.compiler.is_compiling():
        return None
    one = x.dim() > 0 and x.shape[0] == 1 and not torch.is_grad_enabled()
    if x.numel() < SMALLEST["image" if one else "batch"]:
        return "the tensor is too small for a kernel to be worthwhile"
    return None if available(x.device.type) else f"no compiler for device {x.device.type}"


def worthwhile(x: Tensor) -> bool:
    """Return True if formulas on tensors like `x` should run as kernels."""
    return _mode == "auto" and not torch.compiler.is_compiling() and obstacle(x) is None


def enabled(device: str) -> bool:
    """Return True if large fusions on the device run as kernels."""
    return _mode == "auto" and available(device)


def available(device: str) -> bool:
    """Return True if kernels can be compiled for the device."""
    return device not in _broken and _has_compiler(device)


@functools.cache
def _has_compiler(device: str) -> bool:
    if device == "cpu":
        compiler = os.environ.get("CXX", "")
        return any(shutil.which(name) for name in (compiler, "g++", "clang++") if name)
    return device == "cuda" and importlib.util.find_spec("triton") is not None


def differentiating() -> bool:
    """Return True if a formula's own operations are differentiated: gradients of gradients."""
    return torch.is_grad_enabled() and not torch.compiler.is_compiling()


def run(kernel: bool, formula: Formula, static: Hashable, inputs: Sequence[Tensor | None]) -> Any:  # noqa: ANN401
    """Compute ``formula(static, *inputs)``, by a kernel if `kernel` says so.

    In backward that was decided by forward; saved tensors may come back in another form.
    """
    if not kernel or differentiating_or_observed():
        return formula(static, *inputs)
    made = _kernels.setdefault((formula, static), {})
    form = tuple([x if x is None else (x.dtype, x.shape, x.stride(), x.device) for x in inputs])
    if form not in made and len(made) < MOST:
        made[form] = _compiled(formula, static, inputs)
    found = made.get(form)
    if found is None:
        return formula(static, *inputs)
    try:
        return found([x for x in inputs if x is not None])
    except Exception as error:
        made[form] = None
        _give_up(formula, inputs, error)
        return formula(static, *inputs)


def differentiating_or_observed() -> bool:
    """Return True if the formula's operations must be seen by autograd or by a mode."""
    return _mode != "auto" or torch.is_grad_enabled() or private.observed()


def _compiled(
    formula: Formula, static: Hashable, inputs: Sequence[Tensor | None]
) -> Kernel | None:
    """Compile a formula for inputs of just this form; None if that fails."""
    given = [i for i, x in enumerate(inputs) if x is not None]
    tensors = [x.detach() for x in inputs if x is not None]
    if tensors[0].device.type in _broken:
        return None

    def flat(*tensors: Tensor) -> Any:  # noqa: ANN401
        filled = dict(zip(given, tensors, strict=True))
        return formula(static, *(filled.get(i) for i in range(len(inputs))))

    try:
        kernel = private.compile_formula(flat, tensors)
        _check(kernel(list(tensors)), flat(*tensors))
    except Exception as error:  # whatever a compiler, a linker or a full disk may say
        _give_up(formula, inputs, error)
        return None
    return kernel


def _check(found: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> None:
    """Hold a new kernel to its formula, on the numbers it is needed for."""
    norm = torch.linalg.vector_norm
    pairs = [
        (x, y) for x, y in zip(found, expected, strict=True) if x is not None and y is not None
    ]
    largest = max(float(norm(y.double())) for _, y in pairs)
    for x, y in pairs:
        # a sum over all images may cancel to nothing but roundings
        size = max(float(norm(y.double())), 1e-3 * largest)
        difference = float(norm(x.double() - y.double()))
        if difference > 0.02 * size:  # a NaN compares as False: it came in from the network
            raise ArithmeticError(f"its result is wrong by {difference / size:.1%}")


def _give_up(formula: Formula, inputs: Sequence[Tensor | None], error: Exception) -> None:
    device = next(x.device.type for x in inputs if x is not None)
    if device not in _broken:
        _log.warning(
            "fusions on %s run without kernels, more slowly, since that of %s failed: %s",
            device,
            formula.__name__,
            str(error).strip().partition("\n")[0],
        )
    _broken.add(device)


set_mode(os.environ.get("SORTNET_KERNELS", "auto"))
