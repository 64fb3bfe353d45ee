"""Calls to another process, beside torch.distributed.rpc in the same two processes."""

from benchmarks.distributed import autograd, rpc
from benchmarks.workload import Workload

FAMILIES = (rpc, autograd)


def workloads() -> list[Workload]:
    """All distributed workloads, in the order they are shown: one world after the other."""
    return [workload for family in FAMILIES for workload in family.workloads()]
