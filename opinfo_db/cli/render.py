"""What ``check`` and ``list`` print."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import ASCII2
from rich.console import Console
from rich.table import Table

from opinfo_db.checks import CHECKS
from opinfo_db.checks.compare import show
from opinfo_db.cli.check import Failure, Report, Row
from opinfo_db.core import ALL_CAPABILITIES, OpInfo

_MOST_LINES = 3


def print_report(report: Report, console: Console) -> None:
    """The table of rules and checks, the failures, and the number of assertions."""
    table = Table(
        "kind", "name", "result", "assertions", "first failing sample", "difference", box=ASCII2
    )
    table.columns[1].no_wrap = True
    table.columns[3].justify = "right"
    table.columns[4].overflow = "fold"
    for title, rows in (("rule", report.rules), ("check", report.checks)):
        for row in rows:
            table.add_row(title, row.name, row.result, *_details(row), end_section=row is rows[-1])
    console.print(table)
    for row in report.checks:
        if row.failure:
            _print_failure(row.name, row.failure, console)
    results = [row.result for row in report.checks]
    kinds = ("pass", "derived", "fail", "missing", "none")
    counts = ", ".join(f"{results.count(k)} {k}" for k in kinds if k in results)
    console.print(f"{report.entry}: {counts}; {report.assertions} assertions")


def _details(row: Row) -> tuple[str, str, str]:
    """The last three cells of a row."""
    if row.failure is None:
        return str(row.assertions), "", ""
    difference = row.failure.difference
    return str(row.assertions), row.failure.case, f"{difference.amount:.3g}" if difference else ""


def _print_failure(name: str, failure: Failure, console: Console) -> None:
    """Where it failed, and both values if there are any."""
    difference = failure.difference
    where = difference.where if difference else _shortened(failure.message)
    lines = [f"{name}[{failure.case}]: {where}"]
    if difference:
        lines += [
            f"  expected {show(difference.expected)}",
            f"  got      {show(difference.actual)}",
            f"  the largest difference is {difference.amount:.3g}, allowed {difference.limit:.3g}",
        ]
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def _shortened(message: str) -> str:
    """The first lines of a message; gradcheck prints whole Jacobians."""
    return "\n".join(message.splitlines()[:_MOST_LINES])


def print_checks(console: Console) -> None:
    """The checks, what they compare and what an entry must support for them."""
    _print_table(
        ("check", "what it compares", "needs"),
        ((c.name, c.description, ", ".join(sorted(c.needs))) for c in CHECKS),
        console,
    )


def print_entries(entries: Sequence[OpInfo], console: Console) -> None:
    """The entries with their rules, what they do not support, and their dtypes."""
    _print_table(
        ("entry", "rules", "does not support", "dtypes"),
        (
            (
                entry.name,
                ", ".join(sorted(entry.rules or ())),
                ", ".join(sorted(ALL_CAPABILITIES - entry.supports)),
                ", ".join(str(dtype).removeprefix("torch.") for dtype in entry.dtypes),
            )
            for entry in entries
        ),
        console,
    )
    console.print(f"{len(entries)} entries")


def _print_table(head: Sequence[str], rows: Iterable[Sequence[str]], console: Console) -> None:
    """A plain table."""
    table = Table(*head, box=ASCII2)
    for row in rows:
        table.add_row(*row)
    console.print(table)
