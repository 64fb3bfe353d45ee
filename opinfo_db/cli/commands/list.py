"""``list``: the checks, the entries, or torch's operators."""

from __future__ import annotations

import argparse

from rich.console import Console

from opinfo_db.cli.render import print_checks, print_entries
from opinfo_db.entries import ENTRIES
from opinfo_db.torch_ops import torch_ops


def run(given: argparse.Namespace, console: Console) -> int:
    """Print what was asked for."""
    if given.what == "checks":
        print_checks(console)
    else:
        print_entries(ENTRIES if given.what == "entries" else torch_ops(), console)
    return 0
