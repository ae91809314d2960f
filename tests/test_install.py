"""Installed without extras, the library works and the rest says how to install it."""

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

import sortnet
from sortnet import errors

CLONE = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((CLONE / "pyproject.toml").read_text())["project"]
IMPORTED_AS = {"pillow": "PIL", "scikit-learn": "sklearn"}

LIBRARY = """
import importlib.util, warnings
import torch
from torch import nn
import sortnet
from sortnet import pretrained
from sortnet.errors import LAB

present = [name for name in LAB if importlib.util.find_spec(name)]
assert present == ["filelock"], present  # which torch needs
warnings.filterwarnings("error", module="sortnet")
a, b = torch.rand(2, 2, 8, 4, 4, requires_grad=True)
torch.testing.assert_close(sortnet.sort(a, b), a + b + a * b)
sortnet.sort(a, b, "root").sum().backward()
assert sortnet.Fusion("sum+max")(a, b).shape == a.shape
assert "resnet20" in sortnet.list_models()
net = sortnet.create_model("resnet20", num_classes=10, fusion="sort")
images = torch.randn(2, 3, 32, 32)
assert net(images).shape == (2, 10)
plain = sortnet.create_model("resnet20").eval()
assert len(sortnet.sites(plain)) == 9
changed = sortnet.sortify(plain, gate="zero")
with torch.no_grad():
    assert torch.equal(changed(images), plain(images))
chain = nn.Sequential(nn.Conv2d(3, 8, 5, padding=2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))
chain(images)
assert sortnet.branch(chain)(images).shape == (2, 2)
net, config = sortnet.load("resnet20-sort-cifar10")
try:
    pretrained.save(net, config, "saved")
except ImportError as error:  # safetensors needs numpy to write
    assert "pip install numpy" in str(error), error

hint = 'pip install "sortnet[lab]"'
for use in ("sortnet.train", "sortnet.Run", "sortnet.lab", "import sortnet.lab.data"):
    try:
        exec(use)
    except ImportError as error:
        assert hint in str(error) and "numpy" in str(error), error
    else:
        raise AssertionError(use)
print(*dir(sortnet))
"""


def requirements(*names: str) -> set[str]:
    """The distributions that are installed with some others, by their own declarations."""
    found: set[str] = set()
    todo = list(names)
    while todo:
        name = re.sub(r"[-_.]+", "-", todo.pop()).lower()
        try:
            declared = distribution(name).requires or []
        except PackageNotFoundError:  # of another platform
            continue
        if name not in found:
            found.add(name)
            todo += [re.match(r"[\w.-]+", r).group() for r in declared if "extra ==" not in r]  # type: ignore[union-attr]
    return found


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with torch, safetensors, what they need, and the command."""
    home = tmp_path_factory.mktemp("install")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    (packages,) = home.glob("lib/python*/site-packages")
    for name in requirements("torch", "safetensors"):
        files = distribution(name)
        for top in {file.parts[0] for file in files.files or () if file.parts[0] != ".."}:
            target = Path(str(files.locate_file(top)))
            if target.exists() and not (packages / top).exists() and top != "__pycache__":
                (packages / top).symlink_to(target)
    (packages / "sortnet.pth").write_text(f"{CLONE}\n")
    module, _, function = PROJECT["scripts"]["sortnet"].partition(":")
    script = f"#!{home}/bin/python\nimport sys\nfrom {module} import {function}\n"
    (home / "bin" / "sortnet").write_text(f"{script}sys.exit({function}())\n")
    (home / "bin" / "sortnet").chmod(0o755)
    return home


def run(*command: str | Path, home: Path) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    return subprocess.run(command, cwd=home, env=env, capture_output=True, text=True, check=False)


@pytest.mark.skipif(os.name == "nt", reason="packages are linked")
def test_torch_and_safetensors_are_enough_for_the_library(environment: Path) -> None:
    done = run(environment / "bin" / "python", "-c", LIBRARY, home=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == sorted([*sortnet.__all__, "__version__"])


@pytest.mark.skipif(os.name == "nt", reason="packages are linked")
@pytest.mark.parametrize("arguments", [[], ["train", "lenet"]])
def test_the_command_says_how_to_install_the_rest(environment: Path, arguments: list[str]) -> None:
    for command in (
        [environment / "bin" / "sortnet"],
        [environment / "bin" / "python", "-msortnet"],
    ):
        done = run(*command, *arguments, home=environment)
        assert (done.returncode, done.stdout) == (1, "")
        assert re.fullmatch(r'sortnet: .*tyro.*pip install "sortnet\[lab\]"\n', done.stderr)


def test_the_extra_is_what_is_looked_for() -> None:
    declared = [re.match(r"[\w.-]+", r) for r in PROJECT["optional-dependencies"]["lab"]]
    names = [match.group() for match in declared if match]
    assert {IMPORTED_AS.get(name, name) for name in names} == set(errors.LAB)
    assert {re.split(r"\W", r)[0] for r in PROJECT["dependencies"]} == {"torch", "safetensors"}
