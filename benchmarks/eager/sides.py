"""The sides of the eager workloads."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import fxforms

FXFORMS = "fxforms"
TORCH_FUNC = "torch.func"
AUTOGRAD = "torch.autograd"

APIS: dict[str, Any] = {FXFORMS: fxforms, TORCH_FUNC: torch.func}

TensorFunction = Callable[[Tensor], Tensor]


def tiny(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Fixed values between 0.1 and 1.1."""
    return torch.linspace(0.1, 1.1, torch.Size(shape).numel(), dtype=dtype).reshape(shape)
