"""How the fusion's formulas are run: as they stand, or as kernels made by Inductor.

PyTorch's eager mode passes over memory once for every operation of a formula, ten times for the
root and its slopes. Compiled, each formula is one pass, also within a network that is otherwise
not compiled. That needs a C++ compiler (CPU) or Triton (GPU) and some seconds once; where there
is none, or where the tensors are small, the plain operations are used.
"""

import functools
import importlib.util
import logging
import os
import shutil
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch._inductor
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

MODES = ("auto", "eager", "plain")
SMALLEST = {"training": 1 << 16, "inference": 1 << 20}
"""Elements below which a kernel is not worth its call, or for a single image its compilation.

The choice depends on nothing else, so that a run is the same after a restart, bit for bit.
"""

MOST = 64
"""Kernels for one formula; with images of ever new sizes the rest is run without."""

Inputs = tuple[Tensor | None, ...]
Kernel = Callable[..., Any]
_mode = "auto"
_kernels: dict[Hashable, dict[Hashable, Kernel]] = {}
_log = logging.getLogger(__name__)


def set_mode(mode: str) -> None:
    """Choose how fusions are run, from now on and everywhere.

    Arguments:
        mode: ``auto``: with kernels where they pay. ``eager``: without kernels, but keeping as
            little for the backward pass as with them; slower. ``plain``: by PyTorch's own
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


def pay(x: Tensor) -> bool:
    """Whether a fusion of tensors like `x` should be run by functions of our own."""
    if _mode == "plain":
        return False
    if _mode == "eager" or torch.compiler.is_compiling():
        return True
    smallest = SMALLEST["training" if torch.is_grad_enabled() else "inference"]
    return x.numel() >= smallest and available(x.device.type)


@functools.cache
def available(device: str) -> bool:
    """Whether kernels can be made for the device."""
    if device == "cpu":
        compiler = os.environ.get("CXX", "")
        return any(shutil.which(name) for name in (compiler, "g++", "clang++") if name)
    return device == "cuda" and importlib.util.find_spec("triton") is not None


def differentiating() -> bool:
    """Whether a formula's own operations are being differentiated: a gradient of a gradient."""
    return torch.is_grad_enabled() and not torch.compiler.is_compiling()


def run(
    kernel: bool,
    formula: Callable[..., Any],
    options: Hashable,
    *inputs: Tensor | None,
) -> Any:  # noqa: ANN401
    """Compute ``formula(options, *inputs)``, by a kernel if that was found to pay."""
    if not kernel or _mode != "auto" or torch.compiler.is_compiling() or differentiating():
        return formula(options, *inputs)
    made = _kernels.setdefault((formula, options), {})
    form = tuple(None if x is None else _form(x) for x in inputs)
    if form not in made:
        if len(made) >= MOST:
            return formula(options, *inputs)
        made[form] = _kernel(formula, options, inputs)
    return made[form](*inputs)


def _form(x: Tensor) -> Hashable:
    return x.dtype, x.shape, x.stride(), x.device


def _kernel(formula: Callable[..., Any], options: Hashable, inputs: Inputs) -> Kernel:
    """Have Inductor make a kernel for inputs of just this form.

    By way of make_fx and not of torch.compile, whose guards would cost more than the pass over
    a small tensor: `run` has looked at all that they would look at.
    """
    given = [i for i, x in enumerate(inputs) if x is not None]

    def flat(*tensors: Tensor) -> Any:  # noqa: ANN401
        filled = dict(zip(given, tensors, strict=True))
        return formula(options, *(filled.get(i) for i in range(len(inputs))))

    tensors: list[Any] = [x.detach() for x in inputs if x is not None]
    try:
        graph = make_fx(flat)(*tensors)
        compiled = torch._inductor.compile(graph, tensors)
    except Exception as error:  # whatever a compiler, a linker or a full disk may say
        _log.warning("no kernel for %s, going on without: %s", formula.__name__, error)
        return functools.partial(formula, options)
    return lambda *inputs: compiled(*(inputs[i] for i in given))


set_mode(os.environ.get("SORTNET_KERNELS", "auto"))
