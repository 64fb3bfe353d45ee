"""A batch size that was not seen before, under `dynamic=True`.

Every call has another size. JAX compiles for each; fxforms and torch.compile must not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch

import fxforms
from benchmarks.eager.sides import FXFORMS, TORCH_FUNC
from benchmarks.staged import models
from benchmarks.staged.peers import JAX, TORCH_COMPILE, Build, jax, no_jax, to_jax
from benchmarks.staged.per_sample import per_sample
from benchmarks.timing import Side
from benchmarks.workload import Result, Workload

SIZES = range(2, 130)


@dataclass(frozen=True)
class NewBatch(Workload):
    """A workload that fails if its subject traced more than once."""

    traces: Callable[[], int] = lambda: 0

    def run(self, rounds: int) -> Result:
        """Time the sides, then count."""
        result = super().run(rounds)
        count = self.traces()
        assert count == 1, f"traced {count} times for {len(SIZES)} batch sizes"
        return result


def next_batch(f: Callable[..., Any], batches: list[tuple[Any, ...]], *fixed: Any) -> Side:
    """f at the next batch of `batches`, and at the first again after the last."""
    turn: Iterator[tuple[Any, ...]] = cycle(batches)
    return lambda: f(*fixed, *next(turn))


def jax_batches(build: Build, batches: list[tuple[Any, ...]], parameters: Any) -> Side:
    """The same under jax.jit."""
    if jax is None:
        return no_jax
    jitted, block = jax.jit(build(jax, jax.numpy)), jax.block_until_ready
    return next_batch(lambda *args: block(jitted(*args)), to_jax(batches), to_jax(parameters))


def workloads() -> list[Workload]:
    """Per-sample gradients of a small perceptron."""
    parameters = models.dense(16, 32, 4)
    x, label = models.data(max(SIZES), 16), models.labels(max(SIZES), 4)
    batches = [(x[:size].clone(), label[:size].clone()) for size in SIZES]
    build = per_sample(models.mlp)
    staged = fxforms.jit(build(fxforms, torch), dynamic=True, compile="wait")
    plain = build(torch.func, torch)
    compiled = torch.compile(plain, dynamic=True, fullgraph=True)
    sides = {
        FXFORMS: next_batch(staged, batches, parameters),
        JAX: jax_batches(build, batches, parameters),
        TORCH_COMPILE: next_batch(compiled, batches, parameters),
        TORCH_FUNC: next_batch(plain, batches, parameters),
    }
    name = "per-sample gradients, MLP"

    def traces() -> int:
        return int(staged.cache_info().misses)

    return [NewBatch("new batch size, dynamic=True", name, sides, tolerance=1e-4, traces=traces)]
