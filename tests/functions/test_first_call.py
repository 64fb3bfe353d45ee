"""The first call of a class outside of transforms, whose output shows a container."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from oracle import vec
from torch import Tensor
from torch.testing import assert_close
from unary import function


def adding(form: str) -> tuple[Any, list[int]]:
    """Adds y to x in place, a Function with a container as output; and a count of its runs."""
    runs: list[int] = []

    def add(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        runs.append(1)
        return {"sum": x.add_(y), "noise": y * 2 + torch.randn(3, dtype=y.dtype)}

    def combined(ctx: Any, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        ctx.mark_dirty(x)
        ctx.set_materialize_grads(False)
        ctx.factor = 2
        return add(x, y)

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_dirty(inputs[0])
        ctx.set_materialize_grads(False)
        ctx.factor = 2

    def backward(ctx: Any, g: Any) -> Any:
        to_sum, to_noise = g["sum"], g["noise"]
        return to_sum, to_sum if to_noise is None else to_sum + ctx.factor * to_noise

    methods = {"forward": combined} if form == "combined" else {"forward": add}
    if form == "functional":
        methods["setup_context"] = setup_context
    return function("Add", backward=backward, **methods), runs


@pytest.mark.parametrize("form", ["combined", "functional"])
@pytest.mark.parametrize("tracked", [True, False])
def test_the_first_call_outside_of_transforms_runs_the_body_once(form: str, tracked: bool) -> None:
    op, runs = adding(form)
    x, y = vec(3), vec(3).requires_grad_(tracked)
    state = torch.get_rng_state()
    for count in (1, 2):
        given = x * 1
        torch.set_rng_state(state)
        output = op.apply(given, y)
        torch.set_rng_state(state)
        assert len(runs) == count
        assert output["sum"] is given
        assert_close(output["sum"], x + y)
        assert_close(output["noise"], 2 * y + vec(3))
        if tracked:
            (slope,) = torch.autograd.grad(output["sum"].sum(), y, retain_graph=True)
            assert_close(slope, torch.ones_like(y))
            (slope,) = torch.autograd.grad(output["sum"].sum() + output["noise"].sum(), y)
            assert_close(slope, torch.full_like(y, 3.0))
