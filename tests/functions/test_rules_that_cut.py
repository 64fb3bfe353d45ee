"""Rules that turn recording off, or detach what they are given: their derivatives all the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from oracle import vec
from torch import Tensor
from torch.testing import assert_close
from unary import FIRST_ORDER, Op, all_of, check, function

import fxforms
from fxforms.errors import GradientError

pytestmark = pytest.mark.filterwarnings("ignore::fxforms.UnmappableWarning")  # .data has no batch


def slope(ctx: Any, t: Tensor) -> Tensor:
    return t * ctx.saved_tensors[0].cos()


def in_no_grad(ctx: Any, t: Tensor) -> Tensor:
    with torch.no_grad():
        return slope(ctx, t)


def in_inference_mode(ctx: Any, t: Tensor) -> Tensor:
    with torch.inference_mode():
        return slope(ctx, t)


def in_set_grad_enabled(ctx: Any, t: Tensor) -> Tensor:
    with torch.set_grad_enabled(False):
        return slope(ctx, t)


def detached(ctx: Any, t: Tensor) -> Tensor:
    return slope(ctx, t.detach())


def by_data(ctx: Any, t: Tensor) -> Tensor:
    return slope(ctx, t.data.clone())


def forward(ctx: Any, x: Tensor) -> Tensor:
    ctx.save_for_backward(x)
    ctx.save_for_forward(x)
    return x.sin()


def sine(rule: Any, name: str) -> Op:
    return function("Sine", forward=forward, **{name: rule}).apply  # type: ignore[no-any-return]


UNRECORDED = [torch.no_grad()(slope), in_no_grad, in_inference_mode, in_set_grad_enabled]


@pytest.mark.parametrize("name", ["backward", "jvp"])
@pytest.mark.parametrize(("rule", "program"), all_of(UNRECORDED))
def test_recording_turned_off_changes_no_derivative(rule: Any, program: str, name: str) -> None:
    op = sine(rule, name)
    for _ in range(2):
        check(program, op, torch.sin)


FORWARD = (*FIRST_ORDER, "jvp_jvp")


@pytest.mark.parametrize(("rule", "program"), all_of([detached, by_data], FORWARD))
def test_a_cotangent_that_is_detached_is_still_transposed(rule: Any, program: str) -> None:
    op = sine(rule, "backward")
    for _ in range(2):
        check(program, op, torch.sin)


def test_what_else_is_detached_stays_a_constant() -> None:
    op = sine(lambda ctx, g: g.detach() * ctx.saved_tensors[0].detach().cos(), "backward")
    x, ones = vec(3), torch.ones(3, dtype=torch.float64)
    first = lambda x: fxforms.jvp(op, (x,), (ones,))[1]  # noqa: E731
    for _ in range(2):
        assert_close(first(x), x.cos())
        assert_close(fxforms.jvp(first, (x,), (ones,))[1], torch.zeros_like(x))


def test_a_cotangent_that_leaves_torch_is_refused() -> None:
    def rule(ctx: Any, g: Tensor) -> Tensor:
        return torch.as_tensor(g.detach().numpy() * np.cos(ctx.saved_tensors[0].numpy()))

    op, x = sine(rule, "backward"), vec(3)
    for _ in range(2):
        with pytest.raises(GradientError, match="leaves torch"):
            fxforms.jvp(op, (x,), (x,))
