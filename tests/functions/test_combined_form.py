"""``forward(ctx, ...)``: what it saves keeps its place, whichever tensors are given."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from oracle import vec
from torch import Tensor
from torch.testing import assert_close

import fxforms


class CombinedProduct(fxforms.Function):
    """``x * y``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        x, y = ctx.saved_tensors
        return g * y, g * x


@pytest.mark.parametrize("same", [False, True])
def test_second_derivatives_at_a_point_with_equal_arguments(same: bool) -> None:
    x = vec(3)
    y = x if same else x.clone()
    (xx, xy), (yx, yy) = fxforms.hessian(lambda x, y: CombinedProduct.apply(x, y).sum(), (0, 1))(
        x, y
    )
    zero, eye = torch.zeros(3, 3).double(), torch.eye(3).double()
    assert_close((xx, xy, yx, yy), (zero, eye, eye, zero))
