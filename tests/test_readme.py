"""The README's blocks run, and its commands are those that the checks run."""

from __future__ import annotations

import re

import pytest
from markdown_blocks import ROOT, Block, blocks, run

from benchmarks.eager import transforms

README = ROOT / "README.md"
BLOCKS = blocks(README)
COMMANDS = (
    "pip install -e '.[demo]' && python -m fxforms demo",
    "pip install -e '.[test]' && pytest",
)


def of_language(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]


@pytest.mark.parametrize("block", of_language("python"), ids=lambda b: f"line{b.line}")
def test_a_python_block_runs_alone(block: Block) -> None:
    assert "assert " in block.code
    run(block, {})


def test_every_block_is_python_or_shell() -> None:
    assert {block.language for block in BLOCKS} == {"python", "sh"}


def test_the_shell_blocks_are_the_two_commands() -> None:
    lines = [line for block in of_language("sh") for line in block.code.splitlines()]
    assert lines == list(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_part_of_a_command_is_a_line_of_the_checks(command: str) -> None:
    script = (ROOT / ".ci" / "run").read_text().splitlines()
    for part in command.split(" && "):
        assert part in script


def test_the_rows_of_the_time_table_are_workloads() -> None:
    section = README.read_text().split("## Time")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(.+?)` \|", section, re.MULTILINE)
    assert rows == [workload.name for workload in transforms.workloads()]
