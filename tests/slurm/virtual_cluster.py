"""A Slurm of our own on 127.0.0.1: munged, slurmctld and several slurmd on one host, everything in one folder.

Needs root and Debian's packages (`missing` says what is not there); `start` takes a second, `stop` ends every process
that was started. Partitions: `main` on nodes 1 to 3, and `closed`, where tasks wait for ever; on node 4 alone
`yielding` and `cancelling`, which `urgent` preempts: the first with PreemptMode REQUEUE, the second with CANCEL.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

DAEMONS = ("munged", "slurmctld", "slurmd")
CLIENTS = ("sbatch", "srun", "scontrol", "squeue", "scancel", "sinfo", "munge")
REQUIRING = ("CI", "K3ABLATE_REQUIRE_SLURM")  # set to anything but 0: a skipped test is a failure
PACKAGES = "munge slurmctld slurmd slurm-client"
NODES = ("node1", "node2", "node3", "node4")
MAX_ARRAY_SIZE = 21
PATIENCE_SECONDS = 60.0
GOODBYE_SECONDS = 5.0  # of a daemon; slurmctld has saved its state by then

CONFIGURATION = """
ClusterName=virtual
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# cred_expire: how long a requeued job waits before it starts again, least 5
AuthInfo=socket={folder}/run/munge.sock,cred_expire=5
SlurmctldPort={controller_port}
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
{addresses}
MailProg=/bin/true
MpiDefault=none
SwitchType=switch/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
PropagateResourceLimits=NONE
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
MinJobAge=600
MaxArraySize={max_array_size}
MaxJobCount={max_jobs}
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
{nodes}
PartitionName=main Nodes=node[1-3] Default=YES MaxTime=INFINITE State=UP
PartitionName=yielding Nodes=node4 MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=20
PartitionName=cancelling Nodes=node4 MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=20 PreemptMode=CANCEL
PartitionName=closed Nodes=node[1-3] MaxTime=INFINITE State=DOWN
PartitionName=urgent Nodes=node4 MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""


def missing() -> str | None:
    """Why no Slurm can be started here, or None."""
    absent = [name for name in (*DAEMONS, *CLIENTS) if shutil.which(name, path=_search_path()) is None]
    if absent:
        return f"no {', '.join(absent)} here; apt-get install {PACKAGES}"
    return None if os.geteuid() == 0 else "a Slurm of our own needs root"


def skip_without(reason: str | None) -> None:
    """Skip the test for `reason`, if there is one; where these tests must run, that is a failure."""
    required = [name for name in REQUIRING if os.environ.get(name, "") not in ("", "0")]
    assert reason is None or not required, f"{required[0]} is set, so the tests marked slurm must run: {reason}"
    if reason is not None:
        pytest.skip(reason)


class VirtualCluster:
    """One started Slurm; `environment` is what a process needs to find it."""

    def __init__(self, max_jobs: int = 1000) -> None:
        # Short, and open to all: munged refuses a socket whose folders are closed to others.
        self.folder = Path(tempfile.mkdtemp(prefix="k3slurm-"))
        self.folder.chmod(0o755)
        for name in ("etc", "run", "log", "state", *(f"spool/{node}" for node in NODES)):
            (self.folder / name).mkdir(parents=True)
        self._max_jobs = max_jobs
        self.configuration = self.folder / "etc" / "slurm.conf"
        self._controller_port, *self._node_ports = _free_ports(1 + len(NODES))

    @property
    def environment(self) -> dict[str, str]:
        """Ours, and where Slurm is."""
        return {**os.environ, "PATH": _search_path(), "SLURM_CONF": str(self.configuration)}

    def start(self) -> None:
        """Start every daemon and wait until all nodes are idle."""
        self._write_configuration()
        key = self.folder / "etc" / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        run = self.folder / "run"
        self._daemon(
            "munged", f"--key-file={key}", f"--socket={run / 'munge.sock'}", f"--pid-file={run / 'munged.pid'}",
            f"--log-file={self.folder / 'log' / 'munged.log'}", f"--seed-file={self.folder / 'state' / 'munged.seed'}",
        )  # fmt: skip
        self.wait_for("munged", lambda: self._succeeds("munge", "-n", "-S", str(run / "munge.sock")))
        self.start_controller()
        for node in NODES:
            self.start_node(node)
        self.wait_for("all nodes", lambda: len(self._idle_nodes()) == len(NODES))

    def start_controller(self) -> None:
        """Start slurmctld, also after `stop_daemon("slurmctld")`: it goes on from its state."""
        self._daemon("slurmctld", "-f", str(self.configuration))
        self.wait_for("slurmctld", lambda: "is UP" in self.command("scontrol", "ping", check=False))

    def start_node(self, node: str) -> None:
        """Start the slurmd of `node`."""
        self._daemon("slurmd", "-f", str(self.configuration), "-N", node)

    def fail_node(self, node: str) -> None:
        """As in a power cut: its slurmd and all processes of jobs die at once. No other node may run any."""
        ours = [process for process in Path("/proc").iterdir() if process.name.isdigit() and self._is_of_a_job(process)]
        self.stop_daemon(f"slurmd-{node}", signal.SIGKILL)
        for process in ours:
            with suppress(ProcessLookupError):
                os.kill(int(process.name), signal.SIGKILL)
        self.command("scontrol", "update", f"nodename={node}", "state=down", "reason=power cut")

    def _is_of_a_job(self, process: Path) -> bool:
        try:
            variables = (process / "environ").read_bytes().split(b"\0")
            name = (process / "comm").read_text().strip()
        except OSError:  # it has ended, or is none of our business
            return False
        is_ours = f"SLURM_CONF={self.configuration}".encode() in variables
        return is_ours and name not in DAEMONS

    def stop_daemon(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop the daemon of pid file `name`: munged, slurmctld, slurmd-node1 ..."""
        file = self.folder / "run" / f"{name}.pid"
        if not file.exists():
            return
        process_id = int(file.read_text())
        deadline = time.monotonic() + GOODBYE_SECONDS
        with suppress(ProcessLookupError):
            os.kill(process_id, number)
        while _is_alive(process_id):
            if time.monotonic() > deadline:  # now and then slurmctld waits for an answer that nobody gives any more
                os.kill(process_id, signal.SIGKILL)
            time.sleep(0.05)
        file.unlink(missing_ok=True)

    def stop(self) -> None:
        """End all jobs and daemons, and remove the folder."""
        with ExitStack() as stack:  # each step, whatever became of the one before
            stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            stack.callback(self.stop_daemon, "munged")
            for node in NODES:
                stack.callback(self.stop_daemon, f"slurmd-{node}")
            stack.callback(self.stop_daemon, "slurmctld")
            stack.callback(self.end_all_jobs)

    def end_all_jobs(self) -> None:
        """Cancel what is in the queue, at once, and wait until it is empty."""
        self.command("scancel", "--full", "--signal=KILL", "--user=root", check=False)
        self.command("scancel", "--user=root", check=False)
        self.wait_for("an empty queue", lambda: not self.command("squeue", "-h"))

    def command(self, *arguments: str, check: bool = True) -> str:
        """What a command of Slurm's prints."""
        done = subprocess.run(
            arguments, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
        )
        assert not check or done.returncode == 0, f"{arguments}: {done.stderr}\n{self.logs()}"
        return done.stdout.strip()

    def queue(self) -> list[str]:
        """Every task that is not over as 'id state'."""
        return self.command("squeue", "-h", "-r", "-o", "%i %T").splitlines()

    def logs(self) -> str:
        """The ends of the daemons' logs, for a failure."""
        paths = sorted((self.folder / "log").glob("*.log"))
        ends = {path.name: path.read_text(errors="replace").splitlines()[-10:] for path in paths}
        return "\n".join(line for name, end in ends.items() for line in (f"--- {name}", *end))

    def _idle_nodes(self) -> set[str]:
        return set(self.command("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").split())

    def _write_configuration(self) -> None:
        # Loopback only, where the host's name allows it: the daemons bind to what that name resolves to.
        loopback = _resolves_to_loopback(socket.gethostname())
        here = "NodeHostname=localhost NodeAddr=127.0.0.1 CPUs=4 RealMemory=8000 State=UNKNOWN"
        nodes = [f"NodeName={node} Port={port} {here}" for node, port in zip(NODES, self._node_ports, strict=True)]
        text = CONFIGURATION.format(
            folder=self.folder,
            controller_port=self._controller_port,
            max_array_size=MAX_ARRAY_SIZE,
            max_jobs=self._max_jobs,
            addresses="CommunicationParameters=NoInAddrAny,NoCtldInAddrAny" if loopback else "",
            nodes="\n".join(nodes),
        )
        self.configuration.write_text(text)

    def _daemon(self, *arguments: str) -> None:
        """Start one; it goes to the background by itself. A closed standard input would become its log's descriptor."""
        _run_quietly(arguments, self.environment)

    def _succeeds(self, *arguments: str) -> bool:
        done = subprocess.run(arguments, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True)
        return done.returncode == 0

    def wait_for(self, what: str, condition: Callable[[], object]) -> None:
        """Until `condition` holds; it is asserted to."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"no {what} in time\n{self.logs()}"
            time.sleep(0.05)


def _run_quietly(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    subprocess.run(
        arguments, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        check=True, timeout=PATIENCE_SECONDS,
    )  # fmt: skip


def _search_path() -> str:
    return f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


def _free_ports(number: int) -> list[int]:
    """Distinct ports that nobody listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for opened in sockets:
            opened.bind(("127.0.0.1", 0))
        return [opened.getsockname()[1] for opened in sockets]


def _resolves_to_loopback(name: str) -> bool:
    try:
        return socket.gethostbyname(name) == "127.0.0.1"
    except OSError:
        return False


def _is_alive(process_id: int) -> bool:
    """A zombie is not."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
