"""The command line: `python -m benchmarks eager`, `staged`, `distributed` and `memory`."""

import json
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from benchmarks import machine, report
from benchmarks.eager import custom_functions, transforms
from benchmarks.growth import growths
from benchmarks.memory import gain
from benchmarks.workload import Result, Workload, run

WIDTH = 150


def suite(name: str) -> list[Workload]:
    """The workloads of a suite, which alone is imported: the staged one imports JAX."""
    found: list[Workload] = import_module(f"benchmarks.{name}").workloads()
    return found


SUITES = {name: partial(suite, name) for name in ("eager", "staged", "distributed")}


def parser() -> ArgumentParser:
    """The options."""
    result = ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = result.add_subparsers(dest="command", required=True)
    for name in SUITES:
        timed = commands.add_parser(name, help=f"time the {name} workloads")
        timed.add_argument(
            "--rounds", type=positive, default=50, help="interleaved rounds a workload"
        )
        timed.set_defaults(report=time_suite)
    kept = commands.add_parser("memory", help="what many calls of the transforms leave behind")
    kept.add_argument("--calls", type=positive, default=10_000, help="calls of each side")
    kept.set_defaults(report=memory)
    for command in commands.choices.values():
        command.add_argument("--only", default="", help="workloads whose 'family: name' has this")
        command.add_argument("--json", type=Path, help="write the results to this file too")
    return result


def positive(text: str) -> int:
    """A number of rounds or calls."""
    number = int(text)
    if number < 1:
        raise ArgumentTypeError(f"{text} is not a positive number")
    return number


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit status is 1 where a workload failed or none was selected."""
    options = parser().parse_args(arguments)
    torch.set_num_threads(1)
    description = machine.describe()
    record, status = options.report(options, Console(width=None if sys.stdout.isatty() else WIDTH))
    print(report.caption(description))
    if options.json:
        text = json.dumps({"machine": description, **record}, indent=1)
        options.json.write_text(text + "\n")
    return status


def selected(workloads: Sequence[Workload], only: str) -> list[Workload]:
    """The workloads whose title contains `only`; ends the program where there is none."""
    chosen = [workload for workload in workloads if only in workload.title]
    if not chosen:
        titles = "\n  ".join(workload.title for workload in workloads)
        sys.exit(f"--only {only!r} selects nothing. There are:\n  {titles}")
    return chosen


def progress(workloads: Sequence[Workload]) -> Iterator[Workload]:
    """The workloads, with a progress bar on the error stream that is drawn only between them."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, auto_refresh=False) as bar:
        yield from bar.track(workloads)


def time_suite(options: Namespace, console: Console) -> tuple[dict[str, Any], int]:
    """Time a suite and print its tables."""
    machine.keep_freed_memory()
    workloads = selected(SUITES[options.command](), options.only)
    results = [timed(workload, options.rounds) for workload in progress(workloads)]
    found = growths(results)
    console.print(*report.timing_tables(results), *report.growth_tables(found), sep="\n")
    failures = report.failures(results)
    print(*report.refusals(results), *failures, report.summary(results), sep="\n")
    record = {
        "rounds": options.rounds,
        "results": [report.result_record(result) for result in results],
        "growth": [asdict(growth) for growth in found],
    }
    return record, int(bool(failures))


def timed(workload: Workload, rounds: int) -> Result:
    """Run a workload; functions that torch compiled for the one before share no cache with it."""
    torch.compiler.reset()
    return run(workload, rounds)


def memory(options: Namespace, console: Console) -> tuple[dict[str, Any], int]:
    """Count what the calls of each side leave behind and print it."""
    workloads = selected([*transforms.workloads(), *custom_functions.workloads()], options.only)
    gains = [
        (workload, label, gain(side, options.calls))
        for workload in progress(workloads)
        for label, side in workload.sides.items()
    ]
    console.print(*report.memory_tables(gains), sep="\n")
    print(f"left by {options.calls:,} calls with the garbage collector off")
    records = [
        {"workload": workload.title, "side": label, **asdict(found)}
        for workload, label, found in gains
    ]
    return {"gains": records}, 0


if __name__ == "__main__":
    sys.exit(main())
