"""Dataclasses in and out of ``apply``, with fields that are no tensors."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from torch import Tensor
from torch.utils import _pytree as pytree
from unary import PROGRAMS, check, function


@dataclasses.dataclass
class Scaled:
    factor: float
    weight: Tensor


pytree.register_dataclass(Scaled)


@pytest.mark.parametrize("factor", [None, 2.0])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_dataclass_with_a_number_in_it(program: str, factor: float | None) -> None:
    """Its gradient may hold None there, as torch leaves a field of None out, or anything else."""

    def forward(ctx: Any, scaled: Scaled) -> Tensor:
        ctx.factor = scaled.factor
        ctx.save_for_backward(scaled.weight)
        return scaled.weight.sin() * scaled.factor

    def backward(ctx: Any, g: Tensor) -> Scaled:
        return Scaled(factor, g * ctx.saved_tensors[0].cos() * ctx.factor)  # type: ignore[arg-type]

    op = function("Scale", forward=forward, backward=backward)
    check(program, lambda x: op.apply(Scaled(2.0, x)), lambda x: 2 * x.sin())
