"""A loop over a batch whose samples give outputs or gradients of different shapes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from unary import function

import fxforms
from fxforms.errors import RuleError

IGNORED = pytest.mark.filterwarnings("ignore::fxforms.UnmappableWarning")
TWO = torch.tensor([[1.0, 2.0], [2.0, 1.0]])


@IGNORED
@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (lambda ctx, x: x[: int(x[0])], r"First returned outputs .*\(1,\), \(2,\)"),
        (lambda ctx, x: (2 * x,) * int(x[0]), r"First returned different numbers .*\(1, 2\)"),
    ],
)
def test_outputs_that_differ_between_samples(forward: Any, message: str) -> None:
    op = function("First", forward=forward, backward=lambda ctx, g: g)
    with pytest.raises(RuleError, match=message):
        fxforms.vmap(op.apply)(TWO)


@IGNORED
def test_gradients_of_different_shapes() -> None:
    op = function(
        "First",
        forward=lambda ctx, x: ctx.save_for_backward(x) or 2 * x,
        backward=lambda ctx, g: g[: int(ctx.saved_tensors[0][0])],
    )
    with pytest.raises(RuleError, match=r"rule of First .*\(1,\), \(2,\)"):
        fxforms.vmap(fxforms.grad(lambda x: op.apply(x).sum()))(TWO)
