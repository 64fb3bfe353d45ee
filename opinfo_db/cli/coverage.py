"""``coverage``: torch's operators over the compositions, by fxforms and by torch.func."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from opinfo_db.cli.measure import COMPOSITIONS, SIDES, measured_ops
from opinfo_db.cli.page import coverage_page
from opinfo_db.cli.results import Record, ShardFile, read_records, write_merged
from opinfo_db.cli.shard import Shard
from opinfo_db.cli.tables import composition_table, summary_line
from opinfo_db.cli.worker import Worker

#: Seconds for one pair; the slowest that ends takes about three.
TIMEOUT = 60.0


class UnknownOperator(ValueError):
    """A name that is not among the operators that are measured."""


def run_coverage(
    folder: Path, shard: Shard, only: Sequence[str], page: Path | None, console: Console
) -> None:
    """Measure the operators of ``shard`` that ``folder`` has no record of, then report.

    The report covers every record in ``folder``. ``coverage.json``, and the page if one is given,
    are written once no operator is missing.

    Raises:
        UnknownOperator: ``only`` names an operator that is not measured.
    """
    names = _names(only)
    done = read_records(folder)
    missing = [name for name in shard.of(names) if name not in done]
    file = ShardFile(folder, shard.index, shard.total)
    with _progress(console) as progress, Worker(TIMEOUT) as worker:
        bar = progress.add_task("", total=len(missing))
        for name in missing:
            progress.update(bar, description=name)
            file.append(measure_operator(worker, name))
            progress.advance(bar)
    _report(folder, names, page, console)


def _progress(console: Console) -> Progress:
    """A bar with the count, the time and the operator it is at."""
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    return Progress(*columns, console=console, transient=True)


def _names(only: Sequence[str]) -> list[str]:
    """The operators asked for, all if none is named."""
    known = list(measured_ops())
    if unknown := sorted(set(only) - set(known)):
        raise UnknownOperator(
            f"no operator {unknown} among the {len(known)} that are measured. "
            "`python -m opinfo_db list torch` prints their names."
        )
    return [name for name in known if not only or name in only]


def measure_operator(worker: Worker, name: str) -> Record:
    """One operator under every composition, on both sides."""
    start = time.monotonic()
    outcomes = {
        composition: {side: worker.measure(name, composition, side) for side in SIDES}
        for composition in COMPOSITIONS
    }
    return Record(name, round(time.monotonic() - start, 2), outcomes)


def _report(folder: Path, names: Sequence[str], page: Path | None, console: Console) -> None:
    """Print the table, and write the files if nothing is missing."""
    records = [record for name, record in read_records(folder).items() if name in names]
    console.print(composition_table(records))
    console.print(summary_line(records))
    if len(records) < len(names):
        console.print(f"{len(names) - len(records)} of {len(names)} operators are not measured yet")
        return
    write_merged(folder / "coverage.json", records)
    if page:
        page.write_text(coverage_page(records))
