"""The pytest plugin: it registers the markers and reports the number of assertions.

It is loaded in every pytest run of an environment where the package is installed, so it imports
nothing but pytest.
"""

from __future__ import annotations

import pytest

_MARKERS = (
    "quick: the sample of the generated tests that every run takes",
    "full: every generated test",
    "shard(index): the part of the generated tests with this index, 0 to 15",
)


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers of generated tests."""
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many assertions the generated tests made, if there were any."""
    reports = terminalreporter.stats.get("passed", [])
    counts = [
        value
        for report in reports
        for name, value in report.user_properties
        if name == "opinfo_db_assertions" and report.when == "call"
    ]
    if counts:
        terminalreporter.write_line(
            f"opinfo_db: {len(counts)} generated tests passed, with {sum(counts)} assertions"
        )
