"""A body in the combined form that draws random numbers and saves them, differentiated twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from unary import function

import fxforms
from fxforms.errors import ArgumentError

X = torch.tensor([0.5, -1.0, 2.0, 1.5]).double()
Op = Callable[[Tensor], Tensor]


def dropped() -> Op:
    """``x**2`` on half of the elements, of a class that has not run yet."""

    def forward(ctx: Any, x: Tensor) -> Tensor:
        mask = 2 * (torch.rand_like(x) > 0.5).to(x)
        ctx.save_for_backward(mask, x)
        return x**2 * mask

    def backward(ctx: Any, g: Tensor) -> Tensor:
        mask, x = ctx.saved_tensors
        return g * mask * 2 * x

    op: Any = function("Drop", forward=forward, backward=backward)
    return lambda x: op.apply(x).sum()  # type: ignore[no-any-return]


def hessian_of(x: Tensor) -> Tensor:
    """The Hessian with the first draw after the seed."""
    torch.manual_seed(2)
    mask = 2 * (torch.rand_like(x) > 0.5).to(x)
    assert 0 < mask.count_nonzero() < mask.numel()
    return torch.diag_embed(2 * mask)


SECOND: dict[str, Callable[[Op], Any]] = {
    "hessian": lambda f: fxforms.hessian(f)(X),
    "jacrev(jacrev)": lambda f: fxforms.jacrev(fxforms.jacrev(f))(X),
    "jacrev(grad)": lambda f: fxforms.jacrev(fxforms.grad(f), chunk_size=3)(X),
    "jacfwd(grad)": lambda f: fxforms.jacfwd(fxforms.grad(f), randomness="same")(X),
}


@pytest.mark.parametrize("program", SECOND)
def test_a_jacobian_of_a_gradient_draws_once(program: str) -> None:
    """The vmap is that of the rows: no random number depends on a row."""
    f, expected = dropped(), hessian_of(X)
    for _ in range(2):
        torch.manual_seed(2)
        assert_close(SECOND[program](f), expected)
    after = torch.rand(1)
    torch.manual_seed(2)
    torch.rand_like(X)
    assert_close(after, torch.rand(1))


def test_each_sample_of_a_batch_has_its_own_numbers() -> None:
    rows, f = torch.stack([X, X + 1]), dropped()
    expected = hessian_of(rows)
    torch.manual_seed(2)
    assert_close(fxforms.vmap(fxforms.hessian(f), randomness="different")(rows), expected)
    with pytest.raises(ArgumentError, match="randomness"):
        fxforms.vmap(fxforms.hessian(f))(rows)


def test_third_derivatives() -> None:
    f = dropped()
    torch.manual_seed(2)
    third = fxforms.jacrev(fxforms.hessian(lambda x: f(x) * x.sum()))(X)
    torch.manual_seed(2)
    mask = 2 * (torch.rand_like(X) > 0.5).to(X)
    g = lambda x: (x**2 * mask).sum() * x.sum()  # noqa: E731
    slope = lambda x: torch.autograd.functional.hessian(g, x, create_graph=True)  # noqa: E731
    assert_close(third, torch.autograd.functional.jacobian(slope, X))
