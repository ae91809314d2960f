"""A real SLURM of two nodes on this machine, without systemd and accounting, on loopback only.

Debian's packages `slurm-wlm` and `munge` have the programs. Everything lives in one temporary
directory and ends with the `with` block.
"""

import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

PATIENCE = 300.0
"""Timeout in seconds."""
NODES = ("node1", "node2")
CONFIGURATION = """
ClusterName=sortnet
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
# a requeued job waits until its credential has expired
AuthInfo=socket={root}/munge.socket,cred_expire=5
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/%n
SlurmctldPidFile={root}/controller.pid
SlurmdPidFile={root}/%n.pid
SlurmctldLogFile={root}/controller.log
SlurmdLogFile={root}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0
SlurmdTimeout=5
SlurmctldTimeout=5
KillWait=60
ReturnToService=2
SlurmdParameters=config_overrides
{nodes}
PartitionName=work Nodes=ALL Default=YES PriorityTier=1
PartitionName=urgent Nodes=ALL PriorityTier=2
"""


def missing() -> list[str]:
    """Return the programs that are not installed."""
    names = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol")
    return [name for name in names if _program(name) is None]


def _program(name: str) -> str | None:
    """Find a program; daemons are not on every user's PATH."""
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


class Cluster:
    """A running SLURM.

    Attributes:
        configuration: Its slurm.conf, for the variable SLURM_CONF of its clients.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.configuration = root, root / "slurm.conf"
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start munge, the controller and the nodes, and wait until the nodes are idle."""
        ports = _free_ports(1 + len(NODES))
        nodes = "\n".join(
            f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=2"
            " RealMemory=4000 Gres=gpu:2"
            for name, port in zip(NODES, ports[1:], strict=True)
        )
        (self.root / "state").mkdir()
        (self.root / "gres.conf").write_text("Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n")
        self.configuration.write_text(
            CONFIGURATION.format(
                root=self.root, user=getpass.getuser(), controller=ports[0], nodes=nodes
            )
        )
        key = self.root / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        files = [
            f"--{name}-file={self.root}/munge.{name}" for name in ("key", "pid", "log", "seed")
        ]
        self._daemon(
            "munged", "--foreground", "--force", f"--socket={self.root}/munge.socket", *files
        )
        until(lambda: (self.root / "munge.socket").exists())
        self._daemon("slurmctld", "-D", "-c", "-f", str(self.configuration))
        for name in NODES:
            self.start_node(name)

    def start_node(self, name: str) -> None:
        """Start a node and wait until it takes jobs."""
        (self.root / name).mkdir(exist_ok=True)
        stepd = _program("slurmstepd") or _program("slurmstepd-wlm")
        given = ["-D", "-N", name, "-f", str(self.configuration), "-d", str(stepd)]
        self._daemon("slurmd", *given, as_=name)
        asked = ["sinfo", "-h", "-N", "-n", name, "-p", "work", "-o", "%T"]
        until(lambda: self.run(*asked).strip() in ("idle", "mixed", "allocated"))

    def _daemon(self, program: str, *arguments: str, as_: str | None = None) -> None:
        name = as_ or program
        with (self.root / f"{name}.out").open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                [str(_program(program)), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.variables | {"SLURMD_NODENAME": name},
            )

    @property
    def variables(self) -> dict[str, str]:
        """The environment of its clients."""
        return os.environ | {"SLURM_CONF": str(self.configuration)}

    def run(self, *command: str) -> str:
        """Run a command of SLURM and return what it prints."""
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=self.variables
        )
        return done.stdout

    @contextmanager
    def signaling(self, element: str, name: str) -> Iterator[None]:
        """Send a signal to the processes of a job; scancel may repeat it until the block ends."""
        self._daemon("scancel", f"--signal={name}", element)
        try:
            yield
        finally:
            self.daemons["scancel"].kill()
            self.daemons.pop("scancel").wait()

    def kill_node(self, name: str) -> None:
        """End all processes of a node at once, as a power failure does."""
        for process in self._processes(name):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.daemons[name].wait()

    def _processes(self, node: str | None = None) -> list[int]:
        """Return all processes of the cluster or of one of its nodes."""
        wanted = {f"SLURM_CONF={self.configuration}".encode()}
        wanted |= set() if node is None else {f"SLURMD_NODENAME={node}".encode()}
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if wanted <= set(path.read_bytes().split(b"\0")):
                    found.append(int(path.parent.name))
        return [process for process in found if process != os.getpid()]

    def stop(self) -> None:
        """End every process that the cluster started."""
        while processes := self._processes():
            for process in processes:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            for daemon in self.daemons.values():
                daemon.wait()


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def until(condition: Callable[[], bool]) -> None:
    """Wait for something to happen."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.1)


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Run a cluster."""
    # not pytest's directory: the path of a socket has at most 107 bytes
    with tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as root:
        started = Cluster(Path(root))
        try:
            started.start()
            yield started
        finally:
            started.stop()
