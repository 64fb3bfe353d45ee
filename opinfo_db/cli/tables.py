"""The table of a coverage run, for a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.box import ASCII2
from rich.table import Table

from opinfo_db.cli.measure import COMPOSITIONS, SIDES
from opinfo_db.cli.results import STATUSES, Record, assertions, count, pairs


def composition_rows(records: Iterable[Record]) -> list[list[str]]:
    """By composition and in total: right, failed and skipped on each side."""
    found = list(pairs(records))
    rows = [
        [name, *(str(count(found, side, s, name)) for side in SIDES for s in STATUSES)]
        for name in COMPOSITIONS
    ]
    totals = [str(count(found, side, s)) for side in SIDES for s in STATUSES]
    return [*rows, ["all", *totals]]


def composition_head() -> list[str]:
    """The head of :func:`composition_rows`."""
    return ["composition", *(f"{side} {status}" for side in SIDES for status in STATUSES)]


def composition_table(records: Iterable[Record]) -> Table:
    """:func:`composition_rows` as a table."""
    table = Table(box=ASCII2)
    for index, head in enumerate(composition_head()):
        table.add_column(
            head.replace(" ", "\n"), justify="right" if index else "left", no_wrap=True
        )
    *rows, total = composition_rows(records)
    for row in rows:
        table.add_row(*row, end_section=row is rows[-1])
    table.add_row(*total)
    return table


def summary_line(records: Iterable[Record]) -> str:
    """How many operators and assertions there were, and how long they took."""
    records = list(records)
    minutes = sum(record.seconds for record in records) / 60
    return (
        f"{len(records)} operators, {assertions(records)} assertions, "
        f"{minutes:.1f} minutes over all shards"
    )
