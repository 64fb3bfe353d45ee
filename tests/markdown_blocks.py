"""Fenced code blocks of Markdown pages: found, and run so that a failure names page and line."""

from __future__ import annotations

import doctest
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
_FENCE = re.compile(
    r"^(?P<ticks>`{3,})(?P<language>\S*)[^\n]*\n(?P<code>.*?)^(?P=ticks)\s*$", re.M | re.S
)
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    """One fenced block, with the line of its first line of code."""

    page: Path
    line: int
    language: str
    code: str


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of ``page``, in order."""
    text = page.read_text()
    return [
        Block(page, text.count("\n", 0, m.start("code")) + 1, m["language"], m["code"])
        for m in _FENCE.finditer(text)
    ]


def run(block: Block, namespace: dict[str, Any]) -> None:
    """Run a ``python`` block as a program, or a ``pycon`` block as a doctest."""
    if block.language == "pycon":
        _run_session(block, namespace)
    else:
        padded = "\n" * (block.line - 1) + block.code  # a traceback then shows the page's line
        exec(compile(padded, str(block.page), "exec"), namespace)


def _run_session(block: Block, namespace: dict[str, Any]) -> None:
    """Run a console session, whose printed results and errors must be as shown."""
    test = doctest.DocTestParser().get_doctest(
        block.code, namespace, block.page.name, str(block.page), block.line - 1
    )
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=_FLAGS)
    runner.run(test, out=report.append, clear_globs=False)
    namespace.update(test.globs)
    assert test.examples, f"{block.page}:{block.line}: a session without an example"
    assert not report, "".join(report)
