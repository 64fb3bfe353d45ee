"""What a measurement ran on."""

import ctypes
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

# glibc's mallopt: never map a buffer of its own, and keep this much freed memory.
M_TRIM_THRESHOLD = -1
M_MMAP_MAX = -4
KEPT_BYTES = 2**30


def describe() -> dict[str, str]:
    """Machine and versions, as a table's caption and a JSON file show them."""
    return {
        "processor": processor(),
        "cores": str(os.cpu_count()),
        "system": platform.platform(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "fxforms": installed("fxforms"),
        "jax": installed("jax"),
        "threads": str(torch.get_num_threads()),
    }


def installed(package: str) -> str:
    """The installed version; a checkout that is only on the path has none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def processor() -> str:
    """The processor's name where Linux tells it, else the architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def keep_freed_memory() -> None:
    """Have glibc reuse freed memory instead of giving it back to the system.

    Page faults after a buffer was given back come in bursts, and at a million elements they are
    larger than the differences to be seen. A C library without `mallopt` is left as it is.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
