"""Eager work: fxforms beside torch.func, one file a family of workloads."""

from benchmarks.eager import custom_functions, depth, derived_rules, large, op_count, transforms
from benchmarks.workload import Workload

FAMILIES = (transforms, custom_functions, derived_rules, depth, op_count, large)


def workloads() -> list[Workload]:
    """All eager workloads, in the order they are shown."""
    return [workload for family in FAMILIES for workload in family.workloads()]
