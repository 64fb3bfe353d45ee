"""The command line: ``python -m fxforms info`` and ``python -m fxforms demo``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import torch

from fxforms import demo, info


def at_least(least: int) -> Callable[[str], int]:
    """A reader of command-line numbers from ``least`` to the largest that torch takes as a seed."""

    def integer(text: str) -> int:
        value = int(text)
        if not least <= value < 2**63:
            raise argparse.ArgumentTypeError(f"expected {least} to 2**63 - 1, got {value}")
        return value

    return integer


def make_parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    parser = argparse.ArgumentParser(
        prog="python -m fxforms", description="Composable function transforms for PyTorch."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="print versions, devices and what is active")
    train = commands.add_parser(
        "demo",
        help="train a classifier of digits with clipped per-sample gradients",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    train.add_argument("--epochs", type=at_least(1), default=40, help="passes over the data")
    train.add_argument("--batch-size", type=at_least(1), default=64, help="samples in a step")
    train.add_argument(
        "--seed", type=at_least(0), default=0, help="of the split, weights and order"
    )
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command; the exit status is 1 if it could not."""
    args = make_parser().parse_args(argv)
    if args.command == "info":
        print(info.report())
        return 0
    torch.set_num_threads(1)  # the steps are small: threads would mostly wait for each other
    try:
        result = demo.run(args.epochs, args.batch_size, args.seed)
    except demo.MissingExtraError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
