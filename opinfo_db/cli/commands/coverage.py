"""``coverage``: torch's operators over the compositions."""

from __future__ import annotations

import argparse

from rich.console import Console

from opinfo_db.cli.coverage import UnknownOperator, run_coverage


def run(given: argparse.Namespace, console: Console) -> int:
    """0 if the run went through, whatever it found; 2 if it was asked for an unknown operator."""
    try:
        run_coverage(given.results, given.shard, given.op, given.page, console)
    except UnknownOperator as error:
        console.print(str(error), markup=False, highlight=False, soft_wrap=True)
        return 2
    return 0
