"""What every test must leave behind as it found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.autograd import forward_ad

from fxforms import _substrate as substrate

torch.set_num_threads(1)


def modes() -> dict[str, object]:
    """The state of the thread that a transform changes and must restore."""
    return {
        "levels": substrate.level_depth(),
        "grad": torch.is_grad_enabled(),
        "forward grad": substrate.forward_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "requires_grad_ allowed": substrate.requires_grad_allowed(),
        "single-level Functions allowed": substrate.single_level_allowed(),
        "jvp levels": substrate.eager_transforms.JVP_NESTING,
        "dual level": forward_ad._current_level,
        "autocast": torch.is_autocast_enabled("cpu"),
        "dtype": torch.get_default_dtype(),
    }


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
