"""The state of a thread that a transform changes for a while."""

from __future__ import annotations

import torch
from torch.autograd import forward_ad

from fxforms import _substrate as substrate


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
