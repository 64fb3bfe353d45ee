"""Two processes that both speak torch.distributed.rpc and fxforms.distributed."""

import atexit
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.rpc as torch_rpc

from benchmarks.distributed.certificates import authority
from fxforms import distributed

NAMES = ("here", "there")
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "process_group": {"agent": "process_group"},
    "process_group, no shared memory": {"agent": "process_group", "shared_memory": False},
    "grpc": {"agent": "grpc"},
    "grpc, no shared memory": {"agent": "grpc", "shared_memory": False},
}
_WAIT = 60.0


class _World:
    """The world that is there, if any; one at a time."""

    def __init__(self) -> None:
        self.name = ""
        self.peer: subprocess.Popen[bytes] | None = None
        self.folder = tempfile.TemporaryDirectory()
        atexit.register(self.leave)

    def enter(self, name: str) -> None:
        """Be in the world called ``name``, a key of `OPTIONS`."""
        if self.name == name:
            return
        self.leave()
        options = dict(OPTIONS[name])
        if options["agent"] == "grpc":
            options |= authority(Path(self.folder.name), "ca").issue("worker")
        ports = [_free_port(), _free_port()]
        self.peer = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.distributed.peer", json.dumps([ports, options])]
        )
        join(0, ports, options)
        self.name = name

    def leave(self) -> None:
        """End the world that is there."""
        if self.peer is None:
            return
        part()
        try:
            self.peer.wait(_WAIT)
        finally:
            self.peer.kill()
            self.peer = None
            self.name = ""


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def join(rank: int, ports: list[int], options: dict[str, Any]) -> None:
    """Make this process worker ``rank``, of torch and of fxforms."""
    torch.set_num_threads(1)
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(ports[0])
    torch_rpc.init_rpc(NAMES[rank], rank=rank, world_size=2)
    os.environ["MASTER_PORT"] = str(ports[1])
    given = dict(options)
    agent = given.pop("agent")
    distributed.init_rpc(NAMES[rank], rank=rank, world_size=2, agent=agent, options=given)


def part() -> None:
    """Leave both worlds, when the other process does."""
    distributed.shutdown(timeout=None)
    torch_rpc.shutdown()


world = _World()
