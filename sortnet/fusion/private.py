"""The only file that uses private interfaces of PyTorch, which may change in any version.

They are imported here. If one is missing, `COMPLETE` is False and fusions run by PyTorch's own
operations. What only kernels need is imported when the first one is compiled; if it is missing,
there are no kernels.
"""

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.modules.batchnorm import _NormBase as NormBase
from torch.utils._pytree import tree_leaves, tree_map

__all__ = [
    "BatchNorm",
    "NormBase",
    "tree_leaves",
    "tree_map",
]  # used by other files; stable for years

try:
    from torch._C import _are_functorch_transforms_active, _len_torch_dispatch_stack
    from torch.nn.modules.module import _has_any_global_hook
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._device import DeviceContext

    batch_norm_update_stats = torch.batch_norm_update_stats
    batch_norm_backward = torch.ops.aten.native_batch_norm_backward.default
    _hooks = {"_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"}
    COMPLETE = hasattr(torch.autograd.forward_ad, "_current_level")
    COMPLETE = COMPLETE and _hooks <= vars(nn.Module()).keys()
except (ImportError, AttributeError):  # another version of PyTorch
    COMPLETE = False

_tracing = False
"""True while a formula is traced for a kernel."""


def cpu_has_bfloat16() -> bool:
    """Return True if PyTorch reports that the processor has AVX512-BF16 or AMX."""
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, bool)() for name in names)


def transformed() -> bool:
    """Return True within `torch.func` transforms and forward-mode differentiation."""
    return _are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # Dynamo calls it
def exporting() -> bool:
    """Return True within `torch.export`.

    Dynamo must call this function and not trace it: in PyTorch 2.10 it evaluates `is_exporting` to
    True in any compilation.
    """
    return torch.compiler.is_exporting()


def tracing() -> bool:
    """Return True within `torch.jit.trace`."""
    return torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call, no-any-return]


def observed() -> bool:
    """Return True if a mode observes each operation: FakeTensorMode, make_fx, profilers.

    `torch.set_default_device` is a mode as well, but only changes where new tensors are created.
    """
    if _len_torch_dispatch_stack() > 0:
        return True
    return any(type(mode) is not DeviceContext for mode in _get_current_function_mode_stack())  # type: ignore[no-untyped-call]


def hooked(*modules: nn.Module) -> bool:
    """Return True if something would notice that one of the modules is not called.

    Besides hooks, that is a `forward` set on the instance, as some libraries do to wrap a module.
    """
    return (
        not COMPLETE
        or bool(_has_any_global_hook())  # type: ignore[no-untyped-call]
        or any(
            module._forward_hooks
            or module._forward_pre_hooks
            or module._backward_hooks
            or module._backward_pre_hooks
            or "forward" in module.__dict__
            for module in modules
        )
    )


@torch.library.custom_op("sortnet::store", mutates_args=())
def _store(x: Tensor) -> Tensor:
    return x.clone()


_store.register_fake(torch.empty_like)


def store(x: Tensor) -> Tensor:
    """Return x; when compiled, write it to memory once instead of recomputing it at every use."""
    if torch.compiler.is_compiling():
        _prepare_inductor()
        return torch.ops.sortnet.store(x)  # type: ignore[no-any-return]
    return torch.ops.sortnet.store(x) if _tracing else x


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # Dynamo calls it
def _prepare_inductor() -> bool:
    """Register the lowering of `store` in Inductor; without it, `store` would be a copy."""
    try:
        from torch._inductor.lowering import lowerings, register_lowering
    except ImportError:
        return False
    operator = torch.ops.sortnet.store.default
    if operator not in lowerings:

        def realize(x: Any) -> Any:  # noqa: ANN401
            x.realize()
            return x

        register_lowering(operator, type_promotion_kind=None)(realize)
    return True


def compile_formula(formula: Callable[..., Any], inputs: Sequence[Tensor]) -> Callable[..., Any]:
    """Compile a function of tensors for inputs of exactly this form.

    This uses make_fx and the innermost step of Inductor, not `torch.compile`, whose guards and
    wrappers would cost more than a pass over a small tensor. The caller checks the form.

    Returns:
        A function of a list of tensors.
    """
    # These take seconds to import.
    from torch._inductor import compile_fx, config, decomposition
    from torch.fx.experimental.proxy_tensor import make_fx

    _prepare_inductor()
    with _traced():
        graph = make_fx(formula, decomposition.select_decomp_table())(*inputs)
    options: dict[str, Any] = {
        "size_asserts": False,
        "realize_reads_threshold": 32,  # do not store a branch
        "cpp.vec_isa_ok": True,  # otherwise it compiles and runs test programs
    }
    with config.patch(options), _cached() as cache:
        try:
            compiled = compile_fx.compile_fx_inner(graph, list(inputs))
        except Exception as error:
            if not _remove_damaged(cache, str(error)):
                raise
            compiled = compile_fx.compile_fx_inner(graph, list(inputs))
    # On a CPU, skip the bookkeeping around the compiled function; a GPU needs it.
    inner: Callable[..., Any] | None = getattr(compiled, "current_callable", None)
    if inner is not None and inputs[0].is_cpu:
        return inner
    return compiled


@contextmanager
def _cached() -> Iterator[Path]:
    """Keep kernels on disk, in a directory of this user."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    cache = Path(os.environ.get("SORTNET_CACHE") or Path(home) / "sortnet" / "kernels")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        cache.chmod(0o700)  # its content is loaded as code
    except OSError:  # a read-only home, or a directory of another user
        cache = Path(tempfile.mkdtemp(prefix="sortnet-"))
    with mock.patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=str(cache)):
        yield cache


def _remove_damaged(cache: Path, message: str) -> bool:
    """Remove a library that could not be loaded: a killed process may leave it truncated."""
    found = re.search(rf"{re.escape(str(cache))}\S+?\.so", message)
    if found is None:
        return False
    Path(found.group()).unlink(missing_ok=True)
    return True


@contextmanager
def _traced() -> Iterator[None]:
    global _tracing
    _tracing = True
    try:
        yield
    finally:
        _tracing = False
