"""Results as tables to read and as JSON to keep."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from benchmarks.growth import Growth
from benchmarks.memory import Gain
from benchmarks.workload import Comparison, Result, Workload

WORDS = {True: "[green]yes[/]", False: "[red]no[/]", None: ""}


def caption(machine: Mapping[str, str]) -> str:
    """The machine in one line."""
    return ", ".join(f"{key} {value}" for key, value in machine.items())


def timing_tables(results: Sequence[Result]) -> list[Table]:
    """One table a family."""
    families = dict.fromkeys(result.workload.family for result in results)
    return [
        timing_table(family, [result for result in results if result.workload.family == family])
        for family in families
    ]


def timing_table(family: str, results: Sequence[Result]) -> Table:
    """Microseconds of each side; a line for each peer with its ratio, quartiles and bound."""
    labels = list(dict.fromkeys(label for result in results for label in result.workload.sides))
    narrow = [label.replace(".", ".\n") for label in labels]
    headings = ("against", "ratio", "quartiles", "bound", "reached")
    table = headed(family, "µs a call", *narrow, *headings)
    for result in results:
        table.add_row(result.workload.name, *timing_cells(result, labels))
    return table


def timing_cells(result: Result, labels: Sequence[str]) -> list[str]:
    """The row of a result after its name; empty where it failed, as `failures` gives the reason."""
    if result.timing is None:
        return ["[red]failed[/]"]
    lines = [comparison_cells(comparison) for comparison in result.comparisons]
    return [
        *(microseconds(result, label) for label in labels),
        *("\n".join(column) for column in zip(*lines)),
    ]


def comparison_cells(comparison: Comparison) -> tuple[str, ...]:
    """The peer, the ratio with its quartiles, the bound, and whether it was reached."""
    low, high = comparison.quartiles
    return (
        comparison.against,
        f"{comparison.ratio:.3f}",
        f"{low:.3f}-{high:.3f}",
        "" if comparison.bound is None else f"{comparison.bound:.2f}",
        WORDS[comparison.reached],
    )


def microseconds(result: Result, label: str) -> str:
    """The median of a side, empty for a side this workload does not have."""
    if label in result.refused:
        return "refused"
    timing = result.timing
    return f"{timing.median(label) * 1e6:.1f}" if timing and label in timing.seconds else ""


def failures(results: Sequence[Result]) -> list[str]:
    """The reason of each workload that was not timed."""
    return [f"{result.workload.title} failed: {result.error}" for result in results if result.error]


def refusals(results: Sequence[Result]) -> list[str]:
    """What each peer said that cannot do the work."""
    return [
        f"{result.workload.title}: {label} refused: {reason}"
        for result in results
        for label, reason in result.refused.items()
    ]


def summary(results: Sequence[Result]) -> str:
    """How many bounds were reached."""
    reached = [c.reached for result in results for c in result.comparisons]
    bounds = sum(len(result.workload.bounds) for result in results)
    return f"{reached.count(True)} of {bounds} bounds reached"


def headed(title: str, first: str, *others: str) -> Table:
    """An empty table: a column of names, then columns of numbers."""
    table = Table(
        title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False
    )
    table.add_column(first, no_wrap=True)
    for heading in others:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def growth_tables(found: Sequence[Growth]) -> list[Table]:
    """The line through each series; no table where there is no series."""
    table = headed(
        "Growth along a series", "series", "side", "µs a step", "worst point off the line"
    )
    for growth in found:
        slope = f"{growth.seconds_per_step * 1e6:.2f}"
        table.add_row(growth.family, growth.label, slope, f"{growth.worst_deviation:.0%}")
    return [table] if found else []


def memory_tables(gains: Sequence[tuple[Workload, str, Gain]]) -> list[Table]:
    """What each side of each workload left behind, one table a family."""
    tables: dict[str, Table] = {}
    for workload, label, gain in gains:
        family = workload.family
        if family not in tables:
            tables[family] = headed(family, "left", "side", "tensors", "objects", "resident KiB")
        numbers = (gain.tensors, gain.objects, gain.resident_bytes // 1024)
        tables[family].add_row(workload.name, label, *map(str, numbers))
    return list(tables.values())


def result_record(result: Result) -> dict[str, Any]:
    """A result as plain data."""
    workload, timing = result.workload, result.timing
    seconds = {} if timing is None else {label: timing.median(label) for label in timing.seconds}
    return {
        "family": workload.family,
        "name": workload.name,
        "seconds": seconds,
        "calls": None if timing is None else dict(timing.calls),
        "comparisons": [
            {**asdict(comparison), "reached": comparison.reached}
            for comparison in result.comparisons
        ],
        "refused": dict(result.refused),
        "error": result.error,
    }
