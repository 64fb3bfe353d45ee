"""Worlds for the tests: worker 0 is the test, the others are threads or processes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.distributed.certificates import authority
from fxforms import distributed as fd

ROOT = Path(__file__).parents[2]
START = 60.0  # seconds in which a world must be there, and gone
TLS_ALONE = "grpc, TLS alone"  # an agent of the tests: nothing goes past gRPC
PROCESSES = ("process_group", "grpc", TLS_ALONE)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def environment(port: int) -> dict[str, str]:
    """Where the workers of a world meet."""
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def spawn(rank: int, size: int, agent: str, options: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start worker ``rank`` as a process."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests"), *sys.path])
    arguments = json.dumps([f"w{rank}", rank, size, agent, options])
    return subprocess.Popen(
        [sys.executable, "-m", "distributed.worker", arguments],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )


def _serve(rank: int, size: int) -> None:
    fd.init_rpc(f"w{rank}", rank=rank, world_size=size, agent="local")
    fd.shutdown()


@contextmanager
def _threads(size: int) -> Iterator[dict[str, Any]]:
    threads = [threading.Thread(target=_serve, args=(rank, size)) for rank in range(1, size)]
    for thread in threads:
        thread.start()
    try:
        yield {}
    finally:
        for thread in threads:
            thread.join(START)
            assert not thread.is_alive()


@contextmanager
def _processes(
    size: int, agent: str, options: dict[str, Any]
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    started = {f"w{rank}": spawn(rank, size, agent, options) for rank in range(1, size)}
    try:
        yield started
        for process in started.values():
            process.wait(START)
    finally:
        for process in started.values():
            process.kill()
            process.wait(START)


@contextmanager
def world(
    agent: str, size: int, folder: Path, **options: Any
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """A world in which this thread is worker ``w0``; the processes of the others, by name."""
    if agent == TLS_ALONE:
        agent = "grpc"
        options["shared_memory"] = False
    if agent == "grpc":
        options |= authority(folder, "ca").issue("worker")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(free_port()).items():
            patch.setenv(name, value)
        others = _threads(size) if agent == "local" else _processes(size, agent, options)
        with others as processes:
            fd.init_rpc("w0", rank=0, world_size=size, agent=agent, options=options)
            try:
                yield processes
            finally:
                fd.shutdown(timeout=START)
    assert_nothing_held()


def held(counts: dict[str, int]) -> dict[str, int]:
    """The counts that are not zero."""
    return {name: count for name, count in counts.items() if count}


def assert_nothing_held() -> None:
    """Nothing is left of any world in this process."""
    assert until(lambda: not held(fd.debug_info())), held(fd.debug_info())


def until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """True if ``condition()`` is within ``seconds``."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return condition()
