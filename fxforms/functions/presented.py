"""A tensor as the function modes around see it.

``cond`` runs a branch under a mode that puts other tensors in the place of those that it captures.
Torch's functions go through such a mode by themselves; a call of the operator asks for it here.
"""

from __future__ import annotations

import torch
from torch.overrides import handle_torch_function, has_torch_function


def presented(tensor: torch.Tensor) -> torch.Tensor:
    """What stands for ``tensor`` here."""
    if has_torch_function((tensor,)):
        stand_in: torch.Tensor = handle_torch_function(presented, (tensor,), tensor)
        return stand_in
    return tensor
