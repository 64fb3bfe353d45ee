"""Random graphs of nested calls, most results of which are not used, against one process."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from distributed import autograd_functions as af

from fxforms import distributed as fd

Tensor = torch.Tensor
pytestmark = pytest.mark.usefixtures("local_workers", "nothing_recorded")


def through_here(path: list[str], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """What `bent_through` computes, in this process."""
    a, b = af.bent(x, y)
    if path:
        c, d = through_here(path[1:], a, b)
        a, b = c + x, d - a
    return a, b


def here(to: str, fn: Any, args: tuple[Any, ...]) -> Any:
    return through_here(*args)


def keep(call: Any, to: str, x: Tensor, y: Tensor) -> Any:
    """A value that stays on a worker."""
    return x - y if call is here else fd.remote(to, torch.sub, (x, y))


def use(call: Any, to: str, kept: Any, y: Tensor) -> Tensor:
    """What a worker makes of a value that is kept."""
    return kept - y if call is here else fd.rpc_sync(to, af.rref_minus, (kept, y))


def loss(call: Any, seed: int, leaves: list[Tensor]) -> Tensor:
    """Twelve steps, each from two of what is there, and the sum of two of the results.

    Whole numbers and factors 1, -1 and 2, so that gradients are exact in any order.
    """
    choose = random.Random(seed)
    pool = list(leaves)
    for _ in range(12):
        x, y = choose.choice(pool), choose.choice(pool)
        if choose.random() < 0.3:
            pool.append(x * 2 - y)
            continue
        if choose.random() < 0.3:
            kept = keep(call, f"w{choose.randrange(4)}", x, y)
            pool += [use(call, f"w{choose.randrange(4)}", kept, x) for _ in range(2)]
            pool.append(kept if call is here else kept.to_here())
            continue
        path = [f"w{choose.randrange(4)}" for _ in range(choose.randrange(4))]
        pool += call(f"w{choose.randrange(4)}", af.bent_through, (path, x, y))
    return choose.choice(pool[3:]).sum() + choose.choice(pool).sum()


@pytest.mark.parametrize(
    "seeds", [range(25), pytest.param(range(25, 1000), marks=pytest.mark.full)], ids=["few", "many"]
)
def test_random_graphs_are_exact(seeds: range) -> None:
    for seed in seeds:
        leaves = [torch.randint(-8, 9, (2,)).double().requires_grad_() for _ in range(3)]
        expected = torch.autograd.grad(loss(here, seed, leaves), leaves, materialize_grads=True)
        with fd.context() as context_id:
            fd.backward(context_id, [loss(fd.rpc_sync, seed, leaves)])
            found = fd.get_gradients(context_id)
        for x, grad in zip(leaves, expected):
            assert torch.equal(found.get(x, torch.zeros_like(x)), grad), seed
