"""Which of these tests run, and the worlds that several files share."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed.worlds import until, world

from fxforms import distributed as fd
from fxforms.distributed.context import current_context

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The exhaustive ones run with ``-m full`` alone."""
    if "full" in config.option.markexpr:
        return
    left = [i for i in items if HERE in i.path.parents and i.get_closest_marker("full")]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]


@pytest.fixture(scope="module")
def local_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Four workers as threads; the test is the first."""
    with world("local", 4, tmp_path_factory.mktemp("world")):
        yield


@pytest.fixture
def nothing_recorded() -> Iterator[None]:
    """No test leaves a context, or a graph on a worker."""
    yield
    gc.collect()
    assert current_context() is None
    assert until(lambda: not fd.debug_info()["contexts"])
    assert until(lambda: not fd.debug_info()["residuals"])
