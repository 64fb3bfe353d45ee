"""Calls: how long one takes, how fast many go, and what a large tensor costs."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed.rpc as torch_rpc
from torch import Tensor

from benchmarks.distributed.functions import add, echo
from benchmarks.distributed.world import NAMES, OPTIONS, world
from benchmarks.workload import Workload
from fxforms import distributed

MEBIBYTES = 16
IN_FLIGHT = 64
BOUNDS = {
    "process_group": {"operator": 1.0, "function": 1.0, "echo": 1.2, "flight": 1.0},
    "grpc": {"operator": 1.5, "function": 1.5, "echo": 3.0},
}
NETWORK_ALONE = ("process_group, no shared memory", "grpc, no shared memory")


def small_operator(api: Any, x: Tensor) -> Tensor:
    """The built-in ``torch.add`` on two numbers."""
    result: Tensor = api.rpc_sync(NAMES[1], torch.add, args=(x, x))
    return result


def small_function(api: Any, x: Tensor) -> Tensor:
    """The same as a Python function."""
    result: Tensor = api.rpc_sync(NAMES[1], add, args=(x, x))
    return result


def large_echo(api: Any, x: Tensor) -> Tensor:
    """A large tensor there and back."""
    result: Tensor = api.rpc_sync(NAMES[1], echo, args=(x,))
    return result


def in_flight(api: Any, x: Tensor) -> Tensor:
    """Many small calls at once."""
    futures = [api.rpc_async(NAMES[1], torch.add, args=(x, x)) for _ in range(IN_FLIGHT)]
    return torch.stack([future.wait() for future in futures])


def doubled(x: Tensor) -> Tensor:
    """What the small calls give."""
    return 2 * x


def itself(x: Tensor) -> Tensor:
    """What the echo gives."""
    return x


def doubled_often(x: Tensor) -> Tensor:
    """What the calls in flight give together."""
    return (2 * x).expand(IN_FLIGHT, 2)


# Title, call, argument, and what it gives.
CALLS = {
    "operator": ("rpc_sync of torch.add", small_operator, torch.ones(2), doubled),
    "function": ("rpc_sync of a function", small_function, torch.ones(2), doubled),
    "echo": (f"{MEBIBYTES} MiB and back", large_echo, torch.ones(MEBIBYTES << 18), itself),
    "flight": (f"{IN_FLIGHT} calls in flight", in_flight, torch.ones(2), doubled_often),
}


def in_world(name: str, call: Callable[[], Tensor]) -> Tensor:
    """``call()``, in the world ``name``."""
    world.enter(name)
    return call()


def workload(name: str, key: str) -> Workload:
    """One row: fxforms beside torch in the world ``name``."""
    title, call, x, closed = CALLS[key]
    sides = {"fxforms": distributed, "torch.distributed": torch_rpc}
    bound = BOUNDS.get(name, {}).get(key)
    return Workload(
        name,
        title,
        {label: partial(in_world, name, partial(call, api, x)) for label, api in sides.items()},
        bounds={"torch.distributed": bound} if bound else {},
        expected=closed(x),
        clock=time.perf_counter,
    )


def workloads() -> list[Workload]:
    """The rows, world by world."""
    return [
        workload(name, key)
        for name in OPTIONS
        for key in (["operator", "echo"] if name in NETWORK_ALONE else CALLS)
    ]
