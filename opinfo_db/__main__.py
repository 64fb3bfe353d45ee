"""Check a Function, list what there is, or measure the coverage of torch's operators."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from rich.console import Console

from opinfo_db.cli.shard import Shard


def parser() -> argparse.ArgumentParser:
    """The arguments of the three commands."""
    whole = argparse.ArgumentParser(prog="python -m opinfo_db", description=__doc__)
    commands = whole.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="run every check on one Function")
    check.add_argument("target", metavar="module:MyFunction", help="a Function or any callable")
    check.add_argument(
        "--sample",
        action="append",
        default=[],
        metavar="EXPR",
        help="a Python expression with torch in scope, a tuple being the list of arguments; "
        "repeatable; without it the samples come from the sample_inputs of the class",
    )
    listing = commands.add_parser("list", help="what there is")
    listing.add_argument("what", choices=("checks", "entries", "torch"))
    coverage = commands.add_parser("coverage", help="torch's operators over the compositions")
    coverage.add_argument(
        "--shard", type=Shard.parse, default=Shard(1, 1), metavar="I/N", help="part I of N"
    )
    coverage.add_argument(
        "--results",
        type=Path,
        default=Path("coverage-results"),
        metavar="FOLDER",
        help="where the JSON goes; an operator that is there is not measured again",
    )
    coverage.add_argument(
        "--page", type=Path, metavar="FILE", help="write a Markdown page once nothing is missing"
    )
    coverage.add_argument(
        "--op", action="append", default=[], metavar="NAME", help="this operator only; repeatable"
    )
    return whole


def main(arguments: Sequence[str], console: Console) -> int:
    """Run one command and return its exit code."""
    given = parser().parse_args(arguments)
    command = import_module(f"opinfo_db.cli.commands.{given.command}")
    code: int = command.run(given, console)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Console()))
