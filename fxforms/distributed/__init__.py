"""Calls to functions on other workers: threads, processes or machines."""

from fxforms.distributed import autograd_commands as autograd_commands  # known from here on
from fxforms.distributed.agent import WorkerInfo
from fxforms.distributed.api import get_worker_info, init_rpc, rpc_async, rpc_sync, shutdown
from fxforms.distributed.futures import Future
from fxforms.distributed.registry import register

__all__ = [
    "Future",
    "WorkerInfo",
    "get_worker_info",
    "init_rpc",
    "register",
    "rpc_async",
    "rpc_sync",
    "shutdown",
]
