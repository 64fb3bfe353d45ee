"""Calls to functions on other workers: threads, processes or machines."""

from fxforms.distributed import partial_backward as partial_backward  # watches torch's engine
from fxforms.distributed import recorder as recorder  # records calls in contexts from here on
from fxforms.distributed.api import get_worker_info, init_rpc, rpc_async, rpc_sync, shutdown
from fxforms.distributed.context import context, get_gradients
from fxforms.distributed.debug import debug_info
from fxforms.distributed.engine import backward
from fxforms.distributed.futures import Future
from fxforms.distributed.optim import DistributedOptimizer
from fxforms.distributed.registry import register
from fxforms.distributed.remote_functions import remote_function
from fxforms.distributed.requests import WorkerInfo
from fxforms.distributed.rref import RRef, remote
from fxforms.distributed.sharded import sharded_vmap

__all__ = [
    "DistributedOptimizer",
    "Future",
    "RRef",
    "WorkerInfo",
    "backward",
    "context",
    "debug_info",
    "get_gradients",
    "get_worker_info",
    "init_rpc",
    "register",
    "remote",
    "remote_function",
    "rpc_async",
    "rpc_sync",
    "sharded_vmap",
    "shutdown",
]
