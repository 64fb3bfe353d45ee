"""Derivatives across processes: a context with its passes, and a batch in one message."""

import time
from functools import partial
from typing import Any

import torch
import torch.distributed.autograd as torch_autograd
import torch.distributed.rpc as torch_rpc
from torch import Tensor

import fxforms
from benchmarks.distributed.rpc import in_world
from benchmarks.distributed.world import NAMES
from benchmarks.workload import Workload
from fxforms import distributed

SAMPLES = 256
BATCHES = 8  # in a row, as one call alone is timed with cold caches, and a loop is not
BOUNDS = {"process_group": 1.0, "grpc": 3.0}


def passes(rpc: Any, autograd: Any, x: Tensor) -> Tensor:
    """The gradient of a sum of one remote add, by forward and backward in a context."""
    with autograd.context() as context_id:
        loss = rpc.rpc_sync(NAMES[1], torch.add, args=(x, x)).sum()
        autograd.backward(context_id, [loss])
        gradient: Tensor = autograd.get_gradients(context_id)[x]
    return gradient


def mapped(x: Tensor) -> Tensor:
    """``vmap`` of a remote function."""
    function = fxforms.vmap(distributed.remote_function(NAMES[1], torch.sin))
    return torch.stack([function(x) for _ in range(BATCHES)])


def looped(x: Tensor) -> Tensor:
    """The same by a call for each sample."""
    rows = [distributed.rpc_sync(NAMES[1], torch.sin, (row,)) for _ in range(BATCHES) for row in x]
    return torch.stack(rows).reshape(BATCHES, *x.shape)


def one_add(name: str) -> Workload:
    """The row of a context."""
    x = torch.ones(2, requires_grad=True)
    sides = {
        "fxforms": partial(passes, distributed, distributed, x),
        "torch.distributed": partial(passes, torch_rpc, torch_autograd, x),
    }
    return Workload(
        name,
        "context, forward and backward of a remote add",
        {label: partial(in_world, name, side) for label, side in sides.items()},
        bounds={"torch.distributed": BOUNDS[name]},
        expected=torch.full((2,), 2.0),
        clock=time.perf_counter,
    )


def batch(name: str) -> Workload:
    """The row of a batch; the bound is a fiftieth of a loop."""
    x = torch.arange(2.0 * SAMPLES).reshape(SAMPLES, 2)
    sides = {"vmap": partial(mapped, x), "loop": partial(looped, x)}
    return Workload(
        name,
        f"vmap of a remote call, {SAMPLES} samples, {BATCHES} times",
        {label: partial(in_world, name, side) for label, side in sides.items()},
        bounds={"loop": 1 / 50},
        expected=x.sin().expand(BATCHES, *x.shape),
        clock=time.perf_counter,
    )


def workloads() -> list[Workload]:
    """The rows, world by world."""
    return [row(name) for name in BOUNDS for row in (one_add, batch)]
