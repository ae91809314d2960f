"""The command line as a user sees it."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from PIL import Image

import sortnet
from sortnet.cli import COMMANDS, main
from sortnet.cli.flags import Device
from sortnet.lab import runs
from sortnet.lab.experiments import benchmark
from sortnet.lab.runs.execute import first_weights
from sortnet.lab.sweep import process
from sortnet.lab.sweep.job import Job
from sortnet.lab.training import DEVICES, checkpoint


def run(*arguments: str, imports: bool = False) -> subprocess.CompletedProcess[str]:
    flags = ["-X", "importtime"] if imports else []
    command = [sys.executable, *flags, "-m", "sortnet", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["info", "--help"], ["--version"]])
def test_help_answers_without_torch(arguments: list[str]) -> None:
    result = run(*arguments, imports=True)
    assert result.returncode == 0
    assert "sortnet" in result.stdout
    loaded = {line.split("|")[-1].strip() for line in result.stderr.splitlines()}
    assert "tyro" in loaded
    assert not loaded & {"torch", "torchvision", "sklearn", "matplotlib"}


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"sortnet {sortnet.__version__}\n"


def test_list_names_every_network(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    for name in (*sortnet.networks.NETWORKS, "prod", "bilinear"):
        assert name in out


def test_info_shows_what_the_fusion_adds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "resnet56", "--fusion", "sort"]) == 0
    out = capsys.readouterr().out
    assert "853,018" in out
    assert "0 parameters" in out
    assert "258,048" in out
    assert main(["info", "lenet", "--branched", "--fusion", "sum+prod", "--gate", "zero"]) == 0
    assert "128 parameters, 3 state-dict entries" in capsys.readouterr().out


def test_the_first_screen_fits_a_terminal() -> None:
    assert max(map(len, run().stdout.splitlines())) <= 80


def flags(command: str) -> set[str]:
    shown = run(command, "--help").stdout.replace("│", " ").replace(",", " ").split()
    return {word.removeprefix("--") for word in shown if word.startswith("--")} - {
        "help",
        "nproc-per-node=8",
    }


def test_flags_are_those_we_mean() -> None:
    """A flag is added or removed only on purpose."""
    commands = (
        "demo compare list info train eval predict data doctor sortify export transfer reproduce"
    )
    assert list(COMMANDS) == [*commands.split(), "claims", "bench", "report"]
    network = (
        "fusion num-classes branched norm style width gate head size where weights pretrained"
    )
    assert flags("info") == set(network.split())
    schedule = "recipe scale steps epochs rate batch decay warm-up clip precision"
    keeping = "out root save-every keep on-nonfinite allow-mismatch resume-from compile device"
    of_train = "data seed validation evaluations preprocess freeze name"
    assert flags("train") == set(
        f"{network} {schedule} {keeping} threads tensorboard {of_train}".split()
    )
    of_compare = "data fusion gate where seeds until max-seeds recipe steps epochs optimizer rate"
    of_compare += " batch weights pretrained size branched validation no-cost out root json"
    of_grid = "on processes partition gpus cpus memory time account setup cancel"
    assert flags("compare") == set(f"{of_compare} precision device threads {of_grid}".split())
    assert flags("eval") == {"data", "root", "split", "device"}
    assert flags("predict") == {"top", "device"}
    of_transfer = "data layer root per-class splits probe weights pretrained size device"
    assert flags("transfer") == set(of_transfer.split())
    of_bench = "rounds compiled against no-parts json figure precision device"
    assert flags("bench") == set(of_bench.split())
    of_reproduce = "size seeds data out only results precision device"
    assert flags("reproduce") == set(f"{of_reproduce} {of_grid}".split())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["info", "resnet57"], "unknown network 'resnet57'; did you mean"),
        (["info", "resnet20", "--fusion", "sum+sum"], "twice"),
        (["info", "resnet20", "--branched"], "belongs to lenet, bignet, alexnet"),
        (["info", "lenet", "--fusion", "sort"], "branched=True"),
        (["bench", "resnet21"], "resnet20"),
        (["train", "lenet", "--steps", "5", "--epochs", "1"], "exclude each other"),
        (["train", "lenet", "--freeze", "conv1[.](weight", "--steps", "1"], "matches none"),
        (["predict", "."], "is neither a run nor a folder with images"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("sortnet: ")
    assert says in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    "command",
    [
        "train lenet",
        "train lenet --precision float32",
        "eval",
        "predict a.png",
        "transfer runs",
        "bench",
        "bench --precision float32",
        "reproduce table1",
        "reproduce table1 --precision float32",
        "reproduce cost",
    ],
)
def test_a_device_that_is_not_there_is_a_mistake(
    command: str, pretend: Callable[[str | None], None], capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(None)
    assert main([*command.split(), "--device", "xpu"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "sortnet: no device 'xpu' here; there are auto, cpu\n"


def test_the_device_reaches_what_runs_a_network(
    tmp_path: Path,
    pretend: Callable[[str | None], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """PyTorch reports an accelerator that is not there: whatever used it would fail."""
    pretend("xpu")
    monkeypatch.setattr(torch.xpu, "get_device_name", lambda: "of air")
    image = tmp_path / "image.png"
    Image.new("RGB", (32, 32)).save(image)
    out, cpu = ["--out", str(tmp_path)], ["--device", "cpu"]
    short = ["--scale", "0.0001", "--batch", "4", "--precision", "float32"]
    assert main(["train", "lenet", *short, *out, *cpu]) == 0
    (run,) = runs.find(tmp_path)
    assert json.loads((run / "run.json").read_text())["machine"]["gpu"] == "of air"
    newest, _ = checkpoint.latest(run / "checkpoints")
    assert newest is not None
    assert newest.environment["device"] == "cpu"
    assert main(["eval", str(run), *cpu]) == 0
    assert main(["predict", str(run), str(image), *cpu]) == 0
    assert main(["transfer", str(run), "--data", "digits", "--probe", *cpu]) == 0
    figures = tmp_path / "benchmark.json"
    monkeypatch.setattr(
        benchmark.BenchmarkPlan, "tasks", lambda *_: {"the machine's peak alone": list}
    )
    assert main(["bench", "lenet", "--json", str(figures), *cpu]) == 0
    assert json.loads(figures.read_text())["plan"]["device"] == "cpu"
    capsys.readouterr()
    with pytest.raises((RuntimeError, AssertionError), match=r"(?i)xpu"):
        main(["eval", str(run)])
    given = runs.read(run)
    process.work(Job(given.id, given.as_json(), str(tmp_path / "sweep"), "data", "cpu"))
    assert len(runs.find(tmp_path / "sweep")) == 1


def test_the_devices_of_the_flag_are_those_of_the_library() -> None:
    assert get_args(Device) == DEVICES  # written twice: a flag must not import torch


def test_unknown_flag_and_command_exit_with_2() -> None:
    assert run("info", "resnet20", "--fusio", "sort").returncode == 2
    assert run("inform").returncode == 2


def test_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m sortnet list | head -n 1"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert "network" in result.stdout
    assert result.stderr == ""


def test_sortify_shows_places_and_writes_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sortify", "resnet20", "--dry-run"]) == 0
    assert capsys.readouterr().out.endswith("9 of 9 sites\n")
    output = tmp_path / "start.safetensors"
    where = ["--where", "layer3.*", "-o", str(output)]
    assert main(["sortify", "resnet20", *where]) == 0
    assert "in 3 of 9 sites" in capsys.readouterr().out
    assert (
        first_weights(str(output)).keys() == sortnet.create_model("resnet20").state_dict().keys()
    )
    assert main(["sortify", "resnet20", "--where", "layer9.*"]) == 2
    assert "layer1.0" in capsys.readouterr().err


def test_ctrl_c_is_confirmed_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def press() -> None:
        """Press Ctrl-C."""
        raise KeyboardInterrupt

    monkeypatch.setitem(COMMANDS, "claims", press)
    assert main(["claims"]) == 130
    assert capsys.readouterr().err == "sortnet: interrupted\n"


def test_a_defect_shows_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error of numpy inside a command is not a usage error, whatever its type."""

    def broken(*_: object) -> None:
        np.zeros(3).reshape(2, 2)

    monkeypatch.setattr(runs, "examine", broken)
    with pytest.raises(ValueError, match="cannot reshape"):
        main(["doctor", str(tmp_path)])
    assert capsys.readouterr().err == ""
