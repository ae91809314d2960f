"""If a private interface of PyTorch is missing, fusions run by its own operations."""

import ast
import re
import subprocess
import sys
from pathlib import Path

from sortnet.fusion import private

HIDDEN = [
    "torch.batch_norm_update_stats",
    "torch._C._are_functorch_transforms_active",
    "torch._C._len_torch_dispatch_stack",
    "torch.autograd.forward_ad._current_level",
    "torch.nn.modules.module._has_any_global_hook",
    "torch.overrides._get_current_function_mode_stack",
    "torch.utils._device.DeviceContext",
]
"""What another version may lack."""

PRIVATE = re.compile(r"(torch|nn|F|Tensor)\.([A-Za-z_.]+\.)?_(?!_)")

SCRIPT = """
import copy, importlib, sys
import torch, torch._dynamo, torch.library

torch.set_num_threads(1)
images = torch.randn(8, 3, 32, 32)
a, b = torch.randn(2, 8, 16, 32, 32)


def outcome(network, mode):
    again = copy.deepcopy(network)
    with kernels.using(mode):
        logits = again(images)
        logits.square().sum().backward()
        fused = sort(a, b, "root")
    return [logits, fused, *(p.grad for p in again.parameters()), *again.buffers()]


for path in sys.argv[1:]:
    place, _, name = path.rpartition(".")
    module = importlib.import_module(place)
    for loaded in [key for key in sys.modules if key.partition(".")[0] == "sortnet"]:
        del sys.modules[loaded]
    hidden = getattr(module, name)
    delattr(module, name)
    from sortnet.fusion import Fusion, kernels, private, sort, why_not_fused
    setattr(module, name, hidden)  # PyTorch needs it itself

    from sortnet.networks import create_model

    assert not private.COMPLETE, path
    kernels.MIN_ELEMENTS.update(batch=0, image=0)
    network = create_model("resnet20", fusion="sort")
    plain = outcome(network, "plain")
    for mode in ("auto", "eager"):
        with kernels.using(mode):
            assert "lacks" in why_not_fused(Fusion("sum+root"), a, b)
        assert all(map(torch.equal, outcome(network, mode), plain)), path
    assert not kernels._kernels
compiled = torch.compile(sort, backend="eager", fullgraph=True)
assert torch.equal(compiled(a, b), sort(a, b))
"""


def test_all_is_there() -> None:
    assert private.COMPLETE


def test_without_one_name_all_is_plain() -> None:
    """Each is hidden separately while the library is imported again."""
    command = [sys.executable, "-c", SCRIPT, *HIDDEN]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_no_other_file_uses_private_names() -> None:
    """Neither an import nor an attribute of torch that begins with one underscore."""
    found = set()
    for path in Path(private.__file__).parents[1].rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [ast.unparse(node)] if isinstance(node, ast.Attribute) else []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {f"{path.name}: {name}" for name in names if PRIVATE.match(name)}
    assert len(found) > 5
    assert {line for line in found if not line.startswith("private.py")} == set()
