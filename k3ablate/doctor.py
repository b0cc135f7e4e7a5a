"""What does this machine have, and what does that allow? Quick facts, one measured product, no training.

Every line states a fact and what follows from it. Nothing is changed: the store is looked at, not prepared.
"""

import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from k3ablate import storage
from k3ablate.jobs.local import default_workers
from k3ablate.tracking import tracking_uri

if TYPE_CHECKING:
    import torch

PRODUCT_SIZE = 1024
MEASURE_SECONDS = 0.3
SMALL_SHARE = 0.15  # of the fp32 rate of large products, which small models with their small products reach
DEMO_BYTES = 2 * 1024**3
LIBRARIES_BYTES = 1 * 1024**3  # of memory, per worker with torch, lightning and mlflow loaded


@dataclass(frozen=True)
class Machine:
    """`doctor`: facts first, then what they allow."""

    python: str
    libraries: Mapping[str, str]  # name -> version, or 'missing'
    num_cores: int
    torch_threads: int
    memory_bytes: int | None  # None where the system does not say
    runs: str
    disk_free_bytes: int
    gpu: str | None
    fp32_gflops: float  # measured, one thread
    bf16_gflops: float
    kernels: str
    numba_cache: str
    tracking: str
    allows: tuple[str, ...]
    problems: tuple[str, ...]

    def text(self) -> str:
        """One line each."""
        libraries = ", ".join(f"{name} {version}" for name, version in self.libraries.items())
        memory = "unknown" if self.memory_bytes is None else _gigabytes(self.memory_bytes)
        facts = {
            "python": self.python,
            "libraries": libraries,
            "cores": f"{self.num_cores} for this process; torch uses {self.torch_threads} threads by default",
            "memory": memory,
            "runs": f"{self.runs}, {_gigabytes(self.disk_free_bytes)} free",
            "gpu": self.gpu or "none; everything runs on the CPU",
            "fp32": f"{self.fp32_gflops:.1f} GFLOP/s on one CPU thread (product of {PRODUCT_SIZE} x {PRODUCT_SIZE})",
            "bfloat16": f"{self.bf16_gflops:.1f} GFLOP/s on one CPU thread",
            "kernels": self.kernels,
            "numba cache": self.numba_cache,
            "tracking": self.tracking,
        }
        lines = [f"{name:<12} {value}" for name, value in facts.items()]
        allows = [f"{'allows':<12} {line}" for line in self.allows]
        return "\n".join([*lines, *allows, *(f"{'problem':<12} {line}" for line in self.problems)])


def examine(root: Path) -> Machine:
    """Look at everything that a run depends on; takes a few seconds, most of them imports."""
    import torch

    fp32, bf16 = measure_gflops(torch.float32), measure_gflops(torch.bfloat16)
    num_cores, gpu = default_workers(), _gpu()
    return Machine(
        python=platform.python_version(),
        libraries={name: _version(name) for name in ("torch", "lightning", "mlflow", "datasets", "numba")},
        num_cores=num_cores,
        torch_threads=torch.get_num_threads(),
        memory_bytes=memory_bytes(),
        runs=str(root.resolve()),
        disk_free_bytes=shutil.disk_usage(_nearest(root)).free,
        gpu=gpu,
        fp32_gflops=fp32,
        bf16_gflops=bf16,
        kernels=_kernels(gpu),
        numba_cache=_numba_cache(),
        tracking=_tracking(root),
        allows=tuple(_allows(num_cores, fp32, bf16, gpu)),
        problems=tuple(_problems(root, num_cores)),
    )


def measure_gflops(dtype: "torch.dtype") -> float:
    """GFLOP/s of matrix products on one CPU thread, the best of those that fit into a moment."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        matrix = torch.ones(PRODUCT_SIZE, PRODUCT_SIZE, dtype=dtype)
        best, end = float("inf"), time.perf_counter() + MEASURE_SECONDS
        while best == float("inf") or time.perf_counter() < end:
            start = time.perf_counter()
            torch.mm(matrix, matrix)
            best = min(best, time.perf_counter() - start)
    finally:
        torch.set_num_threads(threads)
    return 2 * PRODUCT_SIZE**3 / best / 1e9


def memory_bytes() -> int | None:
    """Memory of this machine in bytes, or of the control group that this process is confined to."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.exists() else "max"
    return total if text == "max" else min(total, int(text))


def _version(name: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def _gpu() -> str | None:
    import torch

    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(0)
    return f"{properties.name}, {_gigabytes(properties.total_memory)}"


def _kernels(gpu: str | None) -> str:
    if gpu:
        return "torch: no kernel of k3ablate runs on a GPU yet"
    numba = _version("numba")
    return "torch only; numba is missing" if numba == "missing" else f"numba {numba}, torch where it does not fit"


def _numba_cache() -> str:
    """Where compiled kernels are kept: beside their source, or where NUMBA_CACHE_DIR says."""
    from k3ablate import kernels

    folder = Path(os.environ.get("NUMBA_CACHE_DIR") or Path(kernels.__file__).parent / "__pycache__")
    state = (
        "writable" if _is_writable(folder) else "not writable: numba tries the user's cache folder; set NUMBA_CACHE_DIR"
    )
    return f"{folder}, {state}"


def _tracking(root: Path) -> str:
    uri = tracking_uri(root)
    path = Path(uri.removeprefix("sqlite:///"))
    if not uri.startswith("sqlite:///"):
        return f"{uri} (from MLFLOW_TRACKING_URI; runs go on if it is out of reach)"
    return f"{uri}, {'there' if path.exists() else 'made by the first run'}"


def _allows(num_cores: int, fp32: float, bf16: float, gpu: str | None) -> Iterator[str]:
    yield f"{num_cores} runs at a time (--workers), one thread each"
    if gpu:
        yield "precision: bfloat16, native on this GPU"
        return
    if bf16 < fp32:
        yield f"precision: float32; bfloat16 is emulated here, {fp32 / bf16:.0f} times slower"
    else:
        yield f"precision: float32; bfloat16 only for large products, which it makes {bf16 / fp32:.1f} times faster"
    per_hour = SMALL_SHARE * fp32 * num_cores * 3600 * 1e9
    yield f"about {per_hour:.1e} training FLOPs an hour on small models, taking {SMALL_SHARE:.0%} of the fp32 rate"


def _problems(root: Path, num_cores: int) -> Iterator[str]:
    if not _is_writable(root):
        yield f"{root}: cannot be written; set {storage.ROOT_VARIABLE} to a folder that can"
    elif shutil.disk_usage(_nearest(root)).free < DEMO_BYTES:
        yield f"{root}: less than {_gigabytes(DEMO_BYTES)} free; the demo may not fit"
    memory = memory_bytes()
    if memory is not None and memory < num_cores * LIBRARIES_BYTES:
        fitting = max(1, memory // LIBRARIES_BYTES)
        yield f"{_gigabytes(memory)} of memory for {num_cores} workers; use --workers {fitting}"


def _is_writable(folder: Path) -> bool:
    """Tried, not asked: permissions do not tell of read-only file systems."""
    try:
        with tempfile.TemporaryFile(dir=_nearest(folder)):
            return True
    except OSError:
        return False


def _nearest(path: Path) -> Path:
    """The path, or the first one above it that exists."""
    path = path.resolve()
    while not path.exists():
        path = path.parent
    return path


def _gigabytes(value: int) -> str:
    return f"{value / 1024**3:.1f} GiB"
