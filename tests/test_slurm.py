"""Grids of runs on a real SLURM of two nodes."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cluster import NODES, Cluster, cluster, missing, until
from components import absent

from sortnet import files
from sortnet.cli import main
from sortnet.cli.engines import Grid
from sortnet.lab import runs
from sortnet.lab.compare import FILE
from sortnet.lab.experiments.definitions import Cell, Experiment
from sortnet.lab.recipes import LENET, Section
from sortnet.lab.runs import Run
from sortnet.lab.sweep import process
from sortnet.lab.sweep import slurm as engine
from sortnet.lab.sweep.job import Job
from sortnet.lab.training import checkpoint

COMMAND = """
import sys
from test_slurm import GRIDS
from sortnet.cli import main
from sortnet.lab.experiments.definitions import EXPERIMENTS
EXPERIMENTS |= GRIDS
sys.exit(main(sys.argv[1:]))
"""
SHORT, LONG = (replace(LENET, sections=(Section(1e-2, n),), batch=4) for n in (300, 100_000))
SIX = tuple(Cell(str(i), "a", Run("lenet", SHORT, name=f"run{i}")) for i in range(6))
ONE = (Cell("a", "a", Run("lenet", LONG)),)
GRIDS = {"six": Experiment("six", "Six", SIX), "one": Experiment("one", "One", ONE)}


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    if programs := missing():
        absent(f"{', '.join(programs)} not found (Debian: apt install slurm-wlm munge)")
    with cluster() as started:
        yield started


def start(experiment: str, out: Path, *more: str, slurm: Cluster) -> "subprocess.Popen[str]":
    """Start `sortnet reproduce` on the cluster."""
    command = [sys.executable, "-c", COMMAND, "reproduce", experiment, "--out", str(out)]
    command += ["--size", "paper", "--seeds", "1", "--device", "cpu", "--precision", "float32"]
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    return subprocess.Popen(
        [*command, "--on", "slurm", *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=slurm.variables | {"PYTHONPATH": path, "COLUMNS": "200"},
    )


def ended(command: "subprocess.Popen[str]") -> tuple[int, list[str]]:
    """Wait for a command; return its exit code and its messages."""
    _, said = command.communicate(timeout=400)
    return command.returncode, said.splitlines()


def outcome(directory: Path) -> dict[str, str]:
    """Return everything that must not depend on where and in how many starts a run was trained."""
    result = json.loads((directory / "result.json").read_bytes())
    plain = {name: result[name] for name in result if name not in ("seconds", "sha256")}
    names = ("model.safetensors", "metrics.jsonl")
    return {name: files.digest((directory / name).read_bytes()) for name in names} | {
        "result": json.dumps(plain)
    }


def queue(slurm: Cluster) -> dict[str, tuple[str, str]]:
    """Return the state and the node of every element in the queue."""
    lines = slurm.run("squeue", "-h", "-r", "-o", "%i|%T|%N").splitlines()
    return {element: (state, node) for element, state, node in (x.split("|") for x in lines)}


def state(slurm: Cluster, element: str) -> str:
    """Return the state of an element that is in the queue."""
    until(lambda: element in queue(slurm))
    return queue(slurm).get(element, ("?", ""))[0]


def hold(*directories: Path) -> None:
    """Stop the processes that train some runs in the middle of them."""
    waiting = set(directories)

    def held() -> bool:
        for directory in list(waiting):
            if any(row["step"] >= 3 for row in runs.rows(directory)):
                os.kill(trainer(directory), signal.SIGSTOP)
                assert not (directory / "result.json").exists()
                waiting.remove(directory)
        return not waiting

    until(held)


def trainer(directory: Path) -> int:
    """Return the process that trains a run."""
    return int(json.loads((directory / "lock").read_text())["process"])


def lives(directory: Path) -> list[str]:
    return [str(event["event"]) for event in runs.events(directory)]


def test_a_disturbed_grid_on_two_nodes_is_the_one_at_home(tmp_path: Path, slurm: Cluster) -> None:
    """The command ends, a node dies, an element reaches its time limit, another is preempted."""
    out = tmp_path / "cluster"
    killed, timed, preempted, *_ = (out / cell.run.id for cell in SIX)
    options = ["--cpus", "2", "--memory", "1GB", "--setup", f"echo >> {tmp_path}/lives"]
    command = start("six", out, *options, slurm=slurm)
    until(lambda: sum(state == "RUNNING" for state, _ in queue(slurm).values()) == 2)
    command.send_signal(signal.SIGINT)
    hold(killed, timed)
    code, said = ended(command)
    assert code == 130
    assert said[-1].startswith("sortnet: left with 0 of 6 runs ended, SLURM trains the others; ")
    placed = json.loads((out / ".slurm/jobs.json").read_text())
    first, second, third, *_ = placed.values()
    job = first.partition("_")[0]
    assert list(placed.items()) == [(cell.run.id, f"{job}_{i}") for i, cell in enumerate(SIX)]
    assert said[0] == f"submitted 6 runs as job {job}"

    on = {node: element for element, (state, node) in queue(slurm).items() if state == "RUNNING"}
    assert on == {NODES[0]: first, NODES[1]: second}
    slurm.kill_node(NODES[0])
    until(lambda: state(slurm, first) not in ("RUNNING", "COMPLETING"))

    log = out / f".slurm/{second}_0_log.err"
    with slurm.signaling(second, "USR2"):  # as SLURM does before the time is up
        until(lambda: "Caught signal SIGUSR2" in log.read_text())
    os.kill(trainer(timed), signal.SIGCONT)
    until(lambda: state(slurm, second) == "PENDING")
    assert lives(timed) == ["start", "stop"]

    hold(preempted)
    urgent = ["--partition=urgent", "--cpus-per-task=2", "--wrap=true"]
    slurm.run("sbatch", *urgent, f"--output={tmp_path}/urgent")
    until(lambda: state(slurm, third) in ("COMPLETING", "PENDING"))
    slurm.start_node(NODES[0])

    code, said = ended(start("six", out, *options, slurm=slurm))
    assert code == 0, said
    assert re.fullmatch(rf"attached to \d runs as job {job}", said[0])
    assert not any("submitted" in line for line in said)
    assert lives(killed).count("start") + lives(killed).count("resume") == 2
    for directory in (timed, preempted):
        assert lives(directory) == ["start", "stop", "resume", "finish"]

    assert (tmp_path / "lives").read_text() == "\n" * (6 + 3)  # every life was set up
    for cell in SIX:
        run = cell.run
        process.work(Job(run.id, run.as_json(), str(tmp_path / "home"), "data", "cpu"))
        assert outcome(out / run.id) == outcome(tmp_path / "home" / run.id)


def test_canceling_two_processes_of_a_run_keeps_its_checkpoint(
    tmp_path: Path,
    slurm: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two GPUs, which are none, train it under torchrun; every process gets the signal twice."""
    run = ONE[0].run
    directory = tmp_path / run.id
    command = start("one", tmp_path, "--gpus", "2", slurm=slurm)
    until(lambda: any(row["step"] >= 20 for row in runs.rows(directory)))
    monkeypatch.setenv("SLURM_CONF", str(slurm.configuration))
    assert Grid("slurm", cancel=True).canceled([run], tmp_path)
    assert capsys.readouterr().out.startswith("canceled 1 of 1 runs; ")
    assert queue(slurm) == {}
    assert lives(directory) == ["start", "stop"]
    newest, damaged = checkpoint.latest(directory / "checkpoints")
    assert newest is not None
    assert not damaged
    assert newest.step == runs.events(directory)[-1]["step"] >= 20
    assert newest.environment["processes"] == 2
    code, said = ended(command)
    assert code == 1
    assert said[-1].startswith(f"sortnet: 1 of 1 runs could not be trained, first {run.id}: ")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--partition", "none"], "SLURM refuses the job: invalid partition specified: none; "),
        (["--memory", "much"], "SLURM refuses the job: Invalid --mem specification"),
    ],
)
def test_a_refused_job_is_one_line(
    options: list[str],
    says: str,
    tmp_path: Path,
    slurm: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(slurm.configuration))
    given = ["--only", "digits/lenet-*", "--out", str(tmp_path), "--on", "slurm"]
    assert main(["reproduce", "table1", *given, *options]) == 2
    (line,) = [x for x in capsys.readouterr().err.splitlines() if x.strip()]
    assert line.startswith(f"sortnet: {says}")
    assert not list((tmp_path / ".slurm").glob("*.pkl"))


def test_what_is_missing_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", "table1", "--out", str(tmp_path)]
    assert main([*command, "--partition", "gpu"]) == 2
    assert capsys.readouterr().err == "sortnet: --partition is for --on slurm\n"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main([*command, "--on", "slurm"]) == 2
    assert "there is no SLURM here: sbatch is not on the PATH" in capsys.readouterr().err
    monkeypatch.setattr(engine, "find_spec", lambda name: None)
    assert main([*command, "--on", "slurm", "--cancel"]) == 2
    said = capsys.readouterr().err
    assert said == "sortnet: --on slurm needs submitit: pip install 'sortnet[slurm]'\n"
    assert not list(tmp_path.iterdir())


def test_a_comparison_on_slurm_is_the_one_at_home(tmp_path: Path, slurm: Cluster) -> None:
    flags = ["lenet", "--branched", "--data", "digits", "--recipe", "lenet", "--steps", "4"]
    flags += ["--batch", "8", "--seeds", "2", "--no-cost", "--precision", "float32"]

    def errors(name: str, *more: str) -> object:
        out = tmp_path / name
        command = [sys.executable, "-m", "sortnet", "compare", *flags, "--out", str(out), *more]
        subprocess.run(command, check=True, capture_output=True, env=slurm.variables, timeout=300)
        assert len(list(out.glob("digits/*/*/result.json"))) == 4
        return [outcome["errors"] for outcome in files.read_json(out / FILE)["outcomes"]]

    assert errors("slurm", "--on", "slurm") == errors("home", "--processes", "2")
