"""Files that were changed, by accident or on purpose: one line, and never a wrong answer."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

from sortnet import files, pretrained
from sortnet.errors import Damaged, UsageError
from sortnet.lab import runs
from sortnet.lab.recipes import LENET, Section
from sortnet.lab.runs import Run, train
from sortnet.lab.training import checkpoint

REFUSED = (UsageError, Damaged)
"""What the command line shows as one line."""
SEALS = {"run.json": "sha256", "config.json": pretrained.SEAL, "result.json": "sha256"}
NAN, INF = float("nan"), float("inf")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)


RUN = Run("lenet", replace(LENET, sections=(Section(0.02, 2),), batch=4))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(RUN, tmp_path_factory.mktemp("runs")).directory


@pytest.fixture(scope="module")
def interrupted(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All runs, the one of which has a single checkpoint and no result."""
    out = tmp_path_factory.mktemp("interrupted") / "runs"
    directory = shutil.copytree(finished, out / RUN.id)
    (directory / "result.json").unlink()
    shutil.rmtree(directory / "checkpoints" / "step-0000002")
    return out


def read_all(directory: Path) -> None:
    """Everything that reads a run's directory."""
    runs.read(directory)
    runs.result(directory)
    runs.rows(directory)
    runs.events(directory)
    runs.load(directory)


def one_line(act: Callable[[], object]) -> None:
    with pytest.raises(REFUSED) as caught:
        act()
    assert "\n" not in str(caught.value)


def edit(path: Path, *keys: str, to: object) -> None:
    """Change an entry, as an editor would do it."""
    content = json.loads(path.read_text())
    inner = content
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = to
    path.write_text(json.dumps(content))


def unsealed(path: Path) -> None:
    """Make the file one from before there were checksums."""
    content = json.loads(path.read_text())
    content.pop(SEALS[path.name])
    path.write_text(json.dumps(content))


CHANGES: list[tuple[str, object]] = [
    ("mean", [0.1, 0.2, 0.3]),
    ("std", [1.0, 1.0, 1.0]),
    ("classes", list("9876543210")),
    ("size", 31),
]


@pytest.mark.parametrize("name", ["run.json", "config.json"])
@pytest.mark.parametrize(("key", "value"), CHANGES)
def test_what_gives_weights_their_meaning_cannot_change(
    finished: Path, tmp_path: Path, name: str, key: str, value: object
) -> None:
    directory = shutil.copytree(finished, tmp_path / "run")
    if name == "run.json":
        (directory / "config.json").unlink()  # so that the last checkpoint is loaded
    edit(directory / name, *(("data", key) if name == "run.json" else (key,)), to=value)
    with pytest.raises(Damaged, match="was changed"):
        runs.load(directory)


@pytest.mark.parametrize("name", SEALS)
def test_a_letter_of_the_seal_cannot_change_either(
    finished: Path, tmp_path: Path, name: str
) -> None:
    directory = shutil.copytree(finished, tmp_path / "run")
    text = (directory / name).read_text()
    for word in (SEALS[name], "steps"):
        (directory / name).write_text(text.replace(f'"{word}"', f'"{word}x"', 1))
        one_line(lambda: read_all(directory))


IMPOSSIBLE: list[tuple[str, list[Any]]] = [
    ("mean", [[NAN, 0, 0], [0, INF, 0], [0, 0], [0, 0, 0, 0], ["0"] * 3, None, 1]),
    ("std", [[1, 1, 0], [-1, 1, 1], [NAN, 1, 1], [True] * 3, [], "abc"]),
    ("size", [-1, 0, 32.0, 10**9, NAN, "32", None, True]),
    ("classes", [[], [1] * 10, [None] * 10, list("012345678"), "", 3, None]),
]


@pytest.mark.parametrize("name", ["run.json", "config.json"])
@pytest.mark.parametrize(("key", "values"), IMPOSSIBLE)
def test_impossible_values_are_refused_without_a_checksum(
    finished: Path, tmp_path: Path, name: str, key: str, values: list[Any]
) -> None:
    directory = shutil.copytree(finished, tmp_path / "run")
    if name == "run.json":
        (directory / "config.json").unlink()
    unsealed(directory / name)
    runs.load(directory)  # old directories are still read
    text = (directory / name).read_text()
    for value in values:
        (directory / name).write_text(text)
        edit(directory / name, *(("data", key) if name == "run.json" else (key,)), to=value)
        one_line(lambda: runs.load(directory))


def test_an_immense_network_is_refused_before_it_is_built(tmp_path: Path) -> None:
    small = pretrained.Config("alexnet", ("a", "b"), options={"size": 64}, size=64)
    directory = pretrained.save(
        pretrained.Config("lenet", ("a", "b")).create_model(), small, tmp_path
    )
    content = files.read_sealed(directory / "config.json", pretrained.SEAL)
    content |= {"size": 4096, "options": {"size": 4096}}  # 280 GB of weights
    files.write_sealed(directory / "config.json", content, pretrained.SEAL)
    with pytest.raises(UsageError, match="do not fit"):
        pretrained.load(directory)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(["run.json", "config.json", "result.json"]),
    path=st.lists(st.integers(0, 40), max_size=4),
    value=JSON,
)
def test_any_json_is_read_or_refused(
    finished: Path, tmp_path: Path, name: str, path: list[int], value: object
) -> None:
    """Any entry of any file that says what a run is, replaced by anything."""
    directory = tmp_path / "run"
    if not directory.is_dir():
        shutil.copytree(finished, directory)
        for file in SEALS:
            unsealed(directory / file)
    original = (directory / name).read_bytes()
    content = {"": json.loads(original)}
    place: Any = content
    key: Any = ""
    for step in path:
        if isinstance(place[key], dict | list) and place[key]:
            place = place[key]
            key = list(place)[step % len(place)] if isinstance(place, dict) else step % len(place)
    place[key] = value
    (directory / name).write_text(json.dumps(content[""]))
    try:
        read_all(directory)
    except REFUSED as error:
        assert "\n" not in str(error)  # noqa: PT017
    finally:
        (directory / name).write_bytes(original)


DEEP = ["[" * 200_000, '{"a":' * 200_000, "1" * 5000, "[]", "3", "null", '"', "\x00", "\ud800"]


@pytest.mark.parametrize("name", ["run.json", "config.json", "metrics.jsonl", "result.json"])
def test_hostile_texts_are_one_line(finished: Path, tmp_path: Path, name: str) -> None:
    directory = shutil.copytree(finished, tmp_path / "run")
    for text in DEEP:
        (directory / name).write_bytes(text.encode(errors="surrogatepass") + b"\n")
        one_line(lambda: read_all(directory))


def resealed(manifest: dict[str, Any]) -> str:
    manifest.pop("sha256", None)
    text = json.dumps(manifest, sort_keys=True).encode()
    return json.dumps({**manifest, "sha256": files.digest(text)})


def test_a_hostile_checkpoint_does_not_block_the_others(finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished / "checkpoints", tmp_path / "checkpoints")
    good = checkpoint.paths(folder)[0]
    manifest = json.loads((good / "manifest.json").read_text())
    texts = [*DEEP, resealed({})]
    others: list[Any] = [None, [], "x", 1.5]
    for key in ("format", "step", "files", "state", "environment"):
        texts += [resealed({**manifest, key: value}) for value in others]
    entries: list[tuple[str, Any]] = [("../x", {"bytes": 1, "sha256": ""}), ("x", 3), ("x", {})]
    texts += [resealed({**manifest, "files": {name: value}}) for name, value in entries]
    for i, text in enumerate(texts):
        bad = folder / f"step-{900 + i:07d}"
        bad.mkdir()
        (bad / "manifest.json").write_bytes(text.encode(errors="surrogatepass"))
    (folder / "step-²").mkdir()
    found, damaged = checkpoint.latest(folder)
    assert found is not None
    assert found.path == good
    assert len(damaged) == len(texts)


STATES: dict[str, list[Any]] = {
    "surprise": [1],
    "step": [7, "1", None, -1, NAN, 10**30, True],
    "seconds": [NAN, -1.0, "1", None],
    "metrics": [0, -1, 1.5, 10**30],
    "rollbacks": [-1, 1.5, 10**6],
    "best": ["1", [], NAN],
    "best_step": ["../x", -1, 1.5],
    "scaler": [None, [1], {"scale": NAN}, {"scale": "1"}, {"surprise": 1}],
    "sums": [None, [], [1], [[1]], ["a"] * 4, [NAN] * 4, {"a": 1}],
}


@pytest.mark.parametrize("entry", STATES)
def test_a_hostile_state_is_one_line(interrupted: Path, tmp_path: Path, entry: str) -> None:
    """Its checksums are right: anyone who can write to the directory can write them, too."""
    shutil.copytree(interrupted, tmp_path / "runs")
    path = checkpoint.paths(tmp_path / "runs" / RUN.id / "checkpoints")[0] / "manifest.json"
    manifest = json.loads(path.read_text())
    for value in STATES[entry]:
        state = manifest["state"] | {entry: value}
        path.write_text(resealed({**manifest, "state": state}))
        one_line(lambda: train(RUN, tmp_path / "runs"))


@pytest.mark.parametrize("part", ["model", "optimizer"])
def test_hostile_tensors_are_one_line(interrupted: Path, tmp_path: Path, part: str) -> None:
    shutil.copytree(interrupted, tmp_path / "runs")
    path = checkpoint.paths(tmp_path / "runs" / RUN.id / "checkpoints")[0]
    manifest = json.loads((path / "manifest.json").read_text())
    right = load((path / f"{part}.safetensors").read_bytes())
    name = next(iter(right))
    wrong = [b"not tensors", save({**right, "x": torch.zeros(3)})]
    wrong.append(save({**right, name: torch.zeros(3)}))
    wrong.append(save({**right, name: right[name].to(torch.complex64)}))
    wrong.append(save({**right, name: torch.full_like(right[name], NAN)}))
    for content in wrong:
        (path / f"{part}.safetensors").write_bytes(content)
        about = {"bytes": len(content), "sha256": files.digest(content)}
        manifest["files"][f"{part}.safetensors"] = about
        (path / "manifest.json").write_text(resealed(manifest))
        one_line(lambda: train(RUN, tmp_path / "runs"))
