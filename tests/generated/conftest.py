"""Which of the generated tests run."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without ``-m``, ``-k`` or a test id, only the quick sample of the generated tests runs."""
    if config.option.markexpr or config.option.keyword or any("::" in a for a in config.args):
        return
    generated = [i for i in items if HERE in i.path.parents and i.get_closest_marker("full")]
    left = [i for i in generated if not i.get_closest_marker("quick")]
    if left:
        config.hook.pytest_deselected(items=left)
        gone = set(left)
        items[:] = [item for item in items if item not in gone]
