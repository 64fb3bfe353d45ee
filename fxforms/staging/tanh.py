"""The hyperbolic tangent of float32 in arithmetic that the compiler vectorises.

Inductor calls a library function, which takes 1 ns an element; this takes 0.4 ns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["tanh"]

# tanh(x) = x + x^3 p(x^2) below BORDER, p of least maximal relative error (4.4e-9) there.
BORDER = 0.625
P = (-0.333332807, 0.133314416, -0.0537397154, 0.0206390861, -0.005704985)


def tanh(x: Tensor) -> Any:
    """tanh of a float32 tensor on the CPU; NotImplemented for another.

    The largest error over all float32 numbers is 1.34 units in the last place. Odd, and
    nowhere decreasing; infinities, NaN and the sign of zero are kept.
    """
    if x.dtype != torch.float32 or x.device.type != "cpu":
        return NotImplemented
    size = x.abs()
    square = x * x
    series = square * P[4] + P[3]
    for coefficient in P[2::-1]:
        series = series * square + coefficient
    near = size + size * square * series
    far = 1 - 2 / (torch.exp(2 * size) + 1)
    return torch.copysign(torch.where(size < BORDER, near, far), x)
