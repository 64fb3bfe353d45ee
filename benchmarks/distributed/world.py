"""Two processes that both speak torch.distributed.rpc and fxforms.distributed."""

import atexit
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
    """The world that is there, if any. The other process is the same for all.

    torch can be a worker once in the life of a process, so only fxforms changes.
    """

    def __init__(self) -> None:
        self.name = ""
        self.peer: subprocess.Popen[bytes] | None = None
        self.folder = tempfile.TemporaryDirectory()
        atexit.register(self.leave)

    def enter(self, name: str) -> None:
        """Be in the world called ``name``, a key of `OPTIONS`."""
        if self.name == name:
            return
        if self.peer is None:
            port = _free_port()
            self.peer = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.distributed.peer", str(port)]
            )
            join_torch(0, port)
        options = dict(OPTIONS[name])
        if options["agent"] == "grpc":
            options |= authority(Path(self.folder.name), "ca").issue("worker")
        port = _free_port()
        other = torch_rpc.rpc_async(NAMES[1], join, args=(1, port, options))
        join(0, port, options)
        other.wait()
        self.name = name

    def leave(self) -> None:
        """End the world that is there, and the other process."""
        if self.peer is None:
            return
        try:
            other = torch_rpc.rpc_async(NAMES[1], distributed.shutdown)
            distributed.shutdown()
            other.wait()
            torch_rpc.shutdown()
            self.peer.wait(_WAIT)
        finally:
            self.peer.kill()
            self.peer = None
            self.name = ""


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def join_torch(rank: int, port: int) -> None:
    """Make this process worker ``rank`` of torch."""
    torch.set_num_threads(1)
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(port)
    torch_rpc.init_rpc(NAMES[rank], rank=rank, world_size=len(NAMES))


def join(rank: int, port: int, options: dict[str, Any]) -> None:
    """Leave the world of fxforms that is there, and be worker ``rank`` of a new one."""
    distributed.shutdown()
    os.environ["MASTER_PORT"] = str(port)
    given = dict(options)
    distributed.init_rpc(
        NAMES[rank], rank=rank, world_size=len(NAMES), agent=given.pop("agent"), options=given
    )


world = _World()
