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
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

MODES = ("auto", "eager", "plain")
SMALLEST = {"batch": 1 << 16, "image": 1 << 20}
"""Elements below which a kernel is not worth its call, or to look at one image its compilation.

The choice depends on nothing else, so that a run is the same after a restart, bit for bit.
"""

MOST = 64
"""Kernels for one formula; with images of ever new sizes the rest is run without."""

Kernel = Callable[[list[Tensor]], Any]
_mode = "auto"
_kernels: dict[tuple[Callable[..., Any], Hashable], dict[Hashable, Kernel | None]] = {}
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
    one = x.dim() > 0 and x.shape[0] == 1 and not torch.is_grad_enabled()
    smallest = SMALLEST["image" if one else "batch"]
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


def active() -> bool:
    """Whether formulas are run by kernels now, where that was found to pay."""
    return _mode == "auto" and not torch.compiler.is_compiling() and not torch.is_grad_enabled()


def run(
    kernel: bool,
    formula: Callable[..., Any],
    options: Hashable,
    inputs: Sequence[Tensor | None],
) -> Any:  # noqa: ANN401
    """Compute ``formula(options, *inputs)``, by a kernel if that was found to pay."""
    if not kernel or not active():
        return formula(options, *inputs)
    key = formula, options
    made = _kernels.get(key) or _kernels.setdefault(key, {})
    form = tuple([x if x is None else (x.dtype, x.shape, x.stride(), x.device) for x in inputs])
    if form not in made and len(made) < MOST:
        made[form] = _kernel(formula, options, inputs)
    found = made.get(form)
    if found is None:
        return formula(options, *inputs)
    return found([x for x in inputs if x is not None])


def _kernel(
    formula: Callable[..., Any], options: Hashable, inputs: Sequence[Tensor | None]
) -> Kernel | None:
    """Have Inductor make a kernel for inputs of just this form; None if it cannot.

    By way of make_fx and of Inductor's innermost step, not of torch.compile: guards and wrappers
    would cost more than the pass over a small tensor, and `run` has looked at all that they
    would look at.
    """
    # They take seconds to import, and who runs without kernels does not need them.
    from torch._inductor import compile_fx, config, decomposition

    given = [i for i, x in enumerate(inputs) if x is not None]

    def flat(*tensors: Tensor) -> Any:  # noqa: ANN401
        filled = dict(zip(given, tensors, strict=True))
        return formula(options, *(filled.get(i) for i in range(len(inputs))))

    tensors: list[Any] = [x.detach() for x in inputs if x is not None]
    try:
        graph = make_fx(flat, decomposition.select_decomp_table())(*tensors)
        # A branch is not stored on its way, however many numbers it is made of.
        with config.patch(size_asserts=False, realize_reads_threshold=32):
            compiled = compile_fx.compile_fx_inner(graph, tensors)
    except Exception as error:  # whatever a compiler, a linker or a full disk may say
        _log.warning("no kernel for %s, going on without: %s", formula.__name__, error)
        return None
    # On a CPU what it calls itself, without its bookkeeping; on a GPU it has more to look after.
    inner: Kernel | None = getattr(compiled, "current_callable", None)
    return inner if inner is not None and tensors[0].is_cpu else compiled


set_mode(os.environ.get("SORTNET_KERNELS", "auto"))
