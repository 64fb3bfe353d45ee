"""Which of these tests run."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The exhaustive ones run with ``-m full`` alone."""
    if "full" in config.option.markexpr:
        return
    left = [i for i in items if HERE in i.path.parents and i.get_closest_marker("full")]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]
