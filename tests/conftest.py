"""What every test must leave behind as it found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from state import modes

from fxforms import _substrate as substrate

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """No level, grad mode or default dtype is left changed, and each test draws its own numbers."""
    before = modes()
    torch.manual_seed(0)
    yield
    after = modes()
    substrate.undo_levels_to_depth(0)  # so that one leak fails one test
    assert after == before
    assert after["levels"] == 0
