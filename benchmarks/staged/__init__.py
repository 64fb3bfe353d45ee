"""Staged work: fxforms.jit beside jax.jit and torch.compile, one file a family of workloads."""

from benchmarks.staged import (
    custom_functions,
    depth,
    derivatives,
    first_call,
    maml,
    new_batch,
    per_sample,
    tiny,
)
from benchmarks.workload import Workload

FAMILIES = (
    tiny,
    custom_functions,
    per_sample,
    derivatives,
    maml,
    depth,
    first_call,
    new_batch,
)


def workloads() -> list[Workload]:
    """All staged workloads, in the order they are shown."""
    return [workload for family in FAMILIES for workload in family.workloads()]
