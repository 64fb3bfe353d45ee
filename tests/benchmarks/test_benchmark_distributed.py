"""The distributed workloads: their titles, and that both sides give the same."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

from benchmarks import distributed
from benchmarks.distributed.rpc import workload
from benchmarks.distributed.world import world
from benchmarks.workload import check

WORKLOADS = distributed.workloads()


@pytest.fixture(scope="module")
def two_processes() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch.distributed.rpc
        world.enter("process_group")
        yield
        world.leave()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("key", ["operator", "function", "echo", "flight"])
def test_both_sides_agree(key: str, two_processes: None) -> None:
    check(workload("process_group", key))


def test_titles_are_unique() -> None:
    titles = [workload.title for workload in WORKLOADS]
    assert len(set(titles)) == len(titles)
