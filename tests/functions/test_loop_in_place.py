"""A body that changes its input in place and cannot be mapped: right at each call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from oracle import vec
from torch import Tensor
from torch.testing import assert_close
from unary import FIRST_ORDER, PROGRAMS, Op, all_of, check, function

import fxforms
from fxforms.errors import MutationError, TraceError

pytestmark = pytest.mark.filterwarnings("ignore::fxforms.UnmappableWarning")


def before_the_change(x: Tensor) -> Tensor:
    return x.copy_(torch.from_numpy(np.exp(x.detach().numpy())))


def after_the_change(x: Tensor) -> Tensor:
    x.exp_().detach().numpy()
    return x


BODIES = {"before": before_the_change, "after": after_the_change}


def in_place(body: Op, form: str) -> Op:
    """``x.exp()`` of a copy, by a ``body`` that leaves torch and changes its argument."""

    def combined(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(body(x))
        ctx.save_for_backward(x)
        return x

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_dirty(inputs[0])
        ctx.save_for_backward(output)

    forms = {
        "combined": {"forward": combined},
        "functional": {"forward": body, "setup_context": setup_context},
    }
    backward = lambda ctx, g: g * ctx.saved_tensors[0]  # noqa: E731
    op = function("InPlace", backward=backward, **forms[form])

    def run(x: Tensor) -> Tensor:
        y = x * 1
        z = op.apply(y)
        assert z is y
        return z  # type: ignore[no-any-return]

    return run


@pytest.mark.parametrize("form", ["combined", "functional"])
@pytest.mark.parametrize(("case", "program"), all_of(BODIES))
def test_every_call(case: str, program: str, form: str) -> None:
    op = in_place(BODIES[case], form)
    for _ in range(2):
        check(program, op, torch.exp)


@pytest.mark.parametrize("in_dim", [0, 1, 2])
def test_the_argument_itself_is_changed(in_dim: int) -> None:
    def f(x: Tensor) -> Tensor:
        op.apply(x)
        return x

    op = function("Change", forward=before_the_change)
    op.setup_context = staticmethod(lambda ctx, inputs, output: ctx.mark_dirty(inputs[0]))
    x = vec(2, 3, 4)
    expected = x.exp()
    assert_close(fxforms.vmap(f, in_dims=in_dim, out_dims=in_dim)(x), expected)
    assert_close(x, expected)


def test_an_argument_without_batch_is_refused() -> None:
    """It would be changed once a sample."""
    op = function(
        "Add",
        forward=lambda x, y: x.add_(float(y)),
        setup_context=lambda ctx, inputs, output: ctx.mark_dirty(inputs[0]),
        vmap_method="loop",
    )
    for _ in range(2):
        with pytest.raises(MutationError, match="Add changed in place a tensor without a batch"):
            fxforms.vmap(op.apply, in_dims=(None, 0))(vec(2), vec(3))


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch maps copy by a loop
@pytest.mark.parametrize("form", ["combined", "functional"])
@pytest.mark.parametrize("program", FIRST_ORDER)
def test_under_jit(program: str, form: str) -> None:
    """One call node that leaves its operands alone, and a change of them in the graph."""
    op = in_place(before_the_change, form)
    jitted = fxforms.jit(op, backend="eager")
    for _ in range(2):
        check(program, jitted, torch.exp)
    x = vec(3)
    whole = fxforms.jit(lambda x: PROGRAMS[program](fxforms, op, x), backend="eager")
    torch.testing.assert_close(whole(x), PROGRAMS[program](fxforms, torch.exp, x))


@pytest.mark.parametrize("form", ["combined", "functional"])
def test_under_jit_a_change_before_leaving_torch_is_refused(form: str) -> None:
    """The graph would hold the change, and the call node make it again."""
    op = fxforms.jit(in_place(after_the_change, form), backend="eager")
    for program in ("vmap", "grad", "grad_vmap"):
        for _ in range(2):
            with pytest.raises(TraceError, match="changed its input in place and then left torch"):
                PROGRAMS[program](fxforms, op, vec(3))
