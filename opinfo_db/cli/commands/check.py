"""``check``: every check on one Function."""

from __future__ import annotations

import argparse

from rich.console import Console

from opinfo_db.cli.check import check_entry
from opinfo_db.cli.render import print_report
from opinfo_db.cli.target import TargetError, load_entry


def run(given: argparse.Namespace, console: Console) -> int:
    """0 if nothing failed, 1 if something did, 2 if there is nothing to check."""
    try:
        report = check_entry(load_entry(given.target, given.sample))
    except TargetError as error:
        console.print(str(error), markup=False, highlight=False, soft_wrap=True)
        return 2
    print_report(report, console)
    return int(report.failed)
