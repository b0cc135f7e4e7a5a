"""Several processes for one run: where does each stand, and how do they meet?

Processes (ranks) are started outside, one per device, by `jobs/ranks.py`; each finds its place in its environment.
Nothing of Lightning's starts, counts or requeues them. What they know together is `model/ranks.py`, how weights are
cut over them `sharding.py`, which sequences each trains on `data.Share`.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.pytorch.strategies import DDPStrategy, Strategy
from torch import distributed

from k3ablate.config import InputError
from k3ablate.kernels import dispatch
from k3ablate.training.data import Share
from k3ablate.training.sharding import Sharded
from k3ablate.training.spec import Execution

ADDRESS, PORT = "MASTER_ADDR", "MASTER_PORT"  # of the store that the launcher keeps, at which ranks meet
RANK, NUM_RANKS, LOCAL_RANK, NODE = "RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK"
# The same four as srun numbers its tasks.
SLURM = {RANK: "SLURM_PROCID", NUM_RANKS: "SLURM_NTASKS", LOCAL_RANK: "SLURM_LOCALID", NODE: "SLURM_NODEID"}


@dataclass(frozen=True)
class Place:
    """Where a process stands among those of its run; by default it is the only one."""

    rank: int = 0
    num_ranks: int = 1
    local_rank: int = 0  # among those of its node: which device is its own
    node: int = 0
    address: str = "localhost"
    port: int = 0

    @property
    def is_first(self) -> bool:
        """Whether it writes what the run leaves behind."""
        return self.rank == 0

    @property
    def share(self) -> Share:
        """What it trains on and evaluates."""
        return Share(self.rank, self.num_ranks)


def place(execution: Execution, environment: Mapping[str, str]) -> Place:
    """By the variables of the launcher, or of srun inside a job step; InputError if they do not fit `execution`."""
    names = {name: name if RANK in environment else slurm for name, slurm in SLURM.items()}
    try:
        numbers = {name: int(environment[names[name]]) for name in SLURM}
        found = Place(
            numbers[RANK],
            numbers[NUM_RANKS],
            numbers[LOCAL_RANK],
            numbers[NODE],
            environment[ADDRESS],
            int(environment[PORT]),
        )
    except KeyError as missing:
        raise InputError(
            f"execution.strategy {execution.strategy!r} wants one process per device, and {missing} is not set in the "
            "environment of this one; start the run by `k3ablate run` or `k3ablate submit`"
        ) from None
    if found.num_ranks != execution.num_ranks:
        raise InputError(
            f"execution asks for {execution.num_ranks} ranks (num_devices {execution.num_devices} x num_nodes "
            f"{execution.num_nodes}), and {found.num_ranks} were started; write num_devices and num_nodes as started"
        )
    return found


@contextmanager
def meeting(execution: Execution) -> Iterator[Place]:
    """All ranks of a run are connected inside the block; a run of strategy single has one process and meets nobody.

    After an exception they stay connected: the others may wait for this one, and their launcher ends them.
    """
    if execution.strategy == "single":
        yield Place()
        return
    found = place(execution, os.environ)
    _require_kernels(execution)
    store = distributed.TCPStore(found.address, found.port, is_master=False)  # type: ignore[attr-defined]
    if torch.cuda.is_available():
        device = torch.device("cuda", found.local_rank)
        torch.cuda.set_device(device)
        distributed.init_process_group(
            "nccl", store=store, rank=found.rank, world_size=found.num_ranks, device_id=device
        )
    else:
        distributed.init_process_group("gloo", store=store, rank=found.rank, world_size=found.num_ranks)
    yield found
    distributed.barrier()
    distributed.destroy_process_group()


def _require_kernels(execution: Execution) -> None:
    """FSDP frees the memory of gathered weights, which torch refuses for a tensor that numpy has looked at."""
    if execution.strategy == "fsdp" and not torch.cuda.is_available() and os.environ.get(dispatch.VARIABLE) != "torch":
        raise InputError(
            "execution.strategy: 'fsdp' does not go together with the numba kernels of CPUs; set "
            f"{dispatch.VARIABLE}=torch, or write ddp"
        )


def strategy(execution: Execution) -> Strategy | str:
    """What a Trainer takes for it.

    DDP changes the order of its sums after the first step of a process, unless it looks for unused parameters; from
    three ranks on, an order is a rounding, and a run that goes on has to end with the bits of one that was whole.
    """
    if execution.strategy == "single":
        return "auto"
    if execution.strategy == "fsdp":
        return Sharded(execution.num_ranks)
    return DDPStrategy(gradient_as_bucket_view=True, find_unused_parameters=execution.num_ranks > 2)


class Ranks(ClusterEnvironment):
    """Tells Lightning what `Place` says: processes are there already, and connected."""

    def __init__(self, found: Place) -> None:
        super().__init__()
        self._place = found

    @property
    def creates_processes_externally(self) -> bool:
        """So that Lightning starts none."""
        return True

    @property
    def main_address(self) -> str:
        """Where ranks met."""
        return self._place.address

    @property
    def main_port(self) -> int:
        """Where ranks met."""
        return self._place.port

    @staticmethod
    def detect() -> bool:
        """Never by itself: it is handed to the Trainer."""
        return False

    def world_size(self) -> int:
        """Ranks of the run."""
        return self._place.num_ranks

    def set_world_size(self, size: int) -> None:
        """It is known; Lightning has to agree."""
        assert size == self._place.num_ranks, f"{size} ranks by the Trainer, {self._place.num_ranks} were started"

    def global_rank(self) -> int:
        """Of this process."""
        return self._place.rank

    def set_global_rank(self, rank: int) -> None:
        """It is known; Lightning has to agree."""
        assert rank == self._place.rank, f"rank {rank} by the Trainer, started as {self._place.rank}"

    def local_rank(self) -> int:
        """Of this process on its node."""
        return self._place.local_rank

    def node_rank(self) -> int:
        """Of its node."""
        return self._place.node
