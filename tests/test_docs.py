"""Every code block in the documentation runs, page by page, the blocks of a page in order."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from markdown_blocks import ROOT, Block, blocks, run

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
RUN = ("python", "pycon")


def test_there_are_pages() -> None:
    assert DOCS / "index.md" in PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_the_blocks_of_a_page_run(page: Path) -> None:
    namespace: dict[str, Any] = {"__name__": "page"}
    for block in blocks(page):
        if block.language in RUN:
            run(block, namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_a_page_shows_code_only_in_languages_that_are_run(page: Path) -> None:
    directives_apart = [b.language for b in blocks(page) if not b.language.startswith("{")]
    assert set(directives_apart) <= {*RUN, "sh", "text"}


@pytest.mark.parametrize(
    "room",
    [
        "interpreters",
        "functions",
        "staging",
        "staging/backward",
        "distributed",
        "distributed/agents",
    ],
)
def test_the_page_on_internals_names_every_file(room: str) -> None:
    listed = (DOCS / "internals.md").read_text().split(f"`fxforms/{room}`:")[1].split("\n\n")[1]
    files = {path.name for path in (ROOT / "fxforms" / room).glob("[!_]*.py")}
    assert set(re.findall(r"`(\w+\.py)`", listed)) == files


def block(language: str, code: str) -> Block:
    return Block(Path("page.md"), 5, language, code)


def test_a_failing_block_names_its_line() -> None:
    with pytest.raises(AssertionError) as caught:
        run(block("python", "x = 1\nassert x == 2\n"), {})
    assert caught.traceback[-1].lineno == 5  # counted from 0: line 6 of the page


def test_a_wrong_session_fails() -> None:
    with pytest.raises(AssertionError, match="Expected"):
        run(block("pycon", ">>> 1 + 1\n3\n"), {})


def test_a_session_sees_and_extends_the_namespace() -> None:
    namespace: dict[str, Any] = {"x": 2}
    run(block("pycon", ">>> y = x + 1\n>>> y\n3\n"), namespace)
    assert namespace["y"] == 3
