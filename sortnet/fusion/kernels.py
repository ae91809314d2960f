"""Run formulas as compiled kernels, or operation by operation.

Eager PyTorch passes over memory once per operation, ten times for the root and its derivatives.
Compiled by Inductor, each formula is one pass, even if the network is not compiled. This needs a
C++ compiler (CPU) or Triton (GPU), and takes a few seconds once.
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
MIN_ELEMENTS = {"batch": 1 << 16, "image": 1 << 20}
"""Elements below which a kernel is not worth its call or, for a single image, its compilation.

The choice depends on nothing else, so that a resumed run is bit-identical.
"""

MAX_KERNELS = 64
"""Kernels per formula; with images of many sizes, further ones run without a kernel."""

Formula = Callable[..., Any]
Kernel = Callable[[list[Tensor]], Any]
_mode = "auto"
_kernels: dict[tuple[Formula, Hashable], dict[Hashable, Kernel | None]] = {}
_broken: set[str] = set()
"""Devices on which a compilation or a kernel has failed; no further one is tried there."""
_log = logging.getLogger(__name__)


def set_mode(mode: str) -> None:
    """Set how all fusions are run.

    Arguments:
        mode: ``auto``: with kernels where they are worthwhile. ``eager``: without kernels, but
            saving as little for backward; slower. ``plain``: by PyTorch's own operations and
            derivatives. The environment variable SORTNET_KERNELS sets the initial mode.
    """
    global _mode
    if mode not in MODES:
        raise ValueError(f"unknown mode {mode!r}; there are {', '.join(MODES)}")
    _mode = mode


def get_mode() -> str:
    """Return how fusions are run."""
    return _mode


@contextmanager
def using(mode: str) -> Iterator[None]:
    """Set how fusions are run within a ``with`` block."""
    before = _mode
    set_mode(mode)
    try:
        yield
    finally:
        set_mode(before)


def min_elements(x: Tensor) -> int:
    """Return the number of elements from which a kernel is worthwhile for tensors like `x`."""
    single = x.dim() > 0 and x.shape[0] == 1 and not torch.is_grad_enabled()
    return MIN_ELEMENTS["image" if single else "batch"]


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
    """Return True if a formula is itself differentiated, in double backward."""
    return torch.is_grad_enabled() and not torch.compiler.is_compiling()


def run(kernel: bool, formula: Formula, static: Hashable, inputs: Sequence[Tensor | None]) -> Any:  # noqa: ANN401
    """Compute ``formula(static, *inputs)``, by a kernel if `kernel` is True and no one observes.

    Forward decides about `kernel` for backward, too; saved tensors may come back in another form.
    """
    if not kernel or _mode != "auto" or torch.is_grad_enabled() or private.observed():
        return formula(static, *inputs)
    made = _kernels.setdefault((formula, static), {})
    form = tuple([x if x is None else (x.dtype, x.shape, x.stride(), x.device) for x in inputs])
    if form not in made and len(made) < MAX_KERNELS:
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


def _compiled(
    formula: Formula, static: Hashable, inputs: Sequence[Tensor | None]
) -> Kernel | None:
    """Compile a formula for inputs of exactly this form; return None if that fails."""
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
    except Exception as error:  # from a compiler, a linker, a full disk
        _give_up(formula, inputs, error)
        return None
    return kernel


def _check(found: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> None:
    """Raise if a new kernel differs from its formula on its first inputs."""
    norm = torch.linalg.vector_norm
    pairs = [
        (x, y) for x, y in zip(found, expected, strict=True) if x is not None and y is not None
    ]
    largest = max(float(norm(y.double())) for _, y in pairs)
    for x, y in pairs:
        # a sum over all images may cancel to rounding errors
        size = max(float(norm(y.double())), 1e-3 * largest)
        difference = float(norm(x.double() - y.double()))
        if difference > 0.02 * size:  # NaN, which comes from the network, compares as False
            raise ArithmeticError(f"its result is wrong by {difference / size:.1%}")


def _give_up(formula: Formula, inputs: Sequence[Tensor | None], error: Exception) -> None:
    device = next(x.device.type for x in inputs if x is not None)
    if device not in _broken:
        _log.warning(
            "fusions on %s run without kernels, more slowly, because the kernel of %s failed: %s",
            device,
            formula.__name__,
            str(error).strip().partition("\n")[0],
        )
    _broken.add(device)


set_mode(os.environ.get("SORTNET_KERNELS", "auto"))
