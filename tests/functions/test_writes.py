"""Bodies and rules that write into a tensor of their own, in place or by ``out=``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from oracle import vec
from torch import Tensor
from torch.testing import assert_close
from unary import PROGRAMS, Op, check, function, rows

import fxforms
from fxforms.errors import GradientError

pytestmark = pytest.mark.filterwarnings("ignore::fxforms.UnmappableWarning")


def by_out(operation: Any, x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    operation(x, out=y)
    return y


def sine(forward: Any, cosine: Any) -> Op:
    def run(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return forward(x)  # type: ignore[no-any-return]

    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * cosine(ctx.saved_tensors[0])  # type: ignore[no-any-return]

    return function("Sine", forward=run, backward=backward).apply


@pytest.mark.parametrize("program", PROGRAMS)
def test_out_in_a_body(program: str) -> None:
    check(program, sine(lambda x: by_out(torch.sin, x), torch.cos), torch.sin)


@pytest.mark.parametrize("program", ["grad", "vmap_grad", "grad_vmap", "jvp", "vmap_jvp"])
def test_out_in_a_rule(program: str) -> None:
    check(program, sine(torch.sin, lambda x: by_out(torch.cos, x)), torch.sin)


def test_out_in_a_rule_has_no_second_derivative() -> None:
    op = sine(torch.sin, lambda x: by_out(torch.cos, x))
    with pytest.raises(GradientError, match=r"Sine: .* out=.*second derivative.* y = torch.cos"):
        fxforms.hessian(lambda x: op(x).sum())(vec(3))


def tail(place: Any) -> Op:
    """``x[1:] ** 2``, whose backward ``place``s the gradient of ``x[1:]`` among zeros."""

    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x[1:] ** 2

    def backward(ctx: Any, g: Tensor) -> Tensor:
        return place(2 * g * ctx.saved_tensors[0][1:])  # type: ignore[no-any-return]

    return function("Tail", forward=forward, backward=backward).apply


def test_a_rule_that_fills_a_tensor_without_a_batch() -> None:
    def hessians(op: Op) -> Any:
        return fxforms.vmap(fxforms.hessian(lambda x: op(x).sum()))(rows(vec(3)))

    def fill(g: Tensor) -> Tensor:
        result = torch.zeros(3, dtype=g.dtype)
        result[1:] = g
        return result

    expected = torch.diag(torch.tensor([0.0, 2.0, 2.0], dtype=torch.float64))
    assert_close(hessians(tail(lambda g: torch.nn.functional.pad(g, (1, 0))))[1], expected)
    with pytest.raises(GradientError, match=r"Tail: .* fills a tensor .* no batch.* torch.cat"):
        hessians(tail(fill))
