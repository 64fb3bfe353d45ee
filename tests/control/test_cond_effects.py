"""Random numbers and printing in the branches of ``cond`` under ``jit``."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fxforms
import fxforms.debug
from fxforms import cond, errors, grad, jit

X = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
BACKENDS = pytest.mark.parametrize(
    "options", [{"backend": "eager"}, {"compile": "wait"}], ids=["eager", "inductor"]
)


def test_random_numbers_are_those_of_eager() -> None:
    f = lambda x: cond(x.sum() > 0, lambda x: torch.rand_like(x) * x, lambda x: x, x)  # noqa: E731
    staged = jit(f, compile="wait")
    torch.manual_seed(3)
    expected = f(X)
    torch.manual_seed(3)
    assert torch.equal(staged(X), expected)
    assert not torch.equal(staged(X), expected)


def test_a_draw_that_would_run_twice_is_refused() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return cond(x.sum() > 0, lambda: torch.rand_like(x) * x, lambda: x).sum()

    x = X.clone().requires_grad_()
    for run in (lambda: jit(grad(f))(X), lambda: grad(jit(f))(X), lambda: jit(f)(x).backward()):
        with pytest.raises(errors.TraceError, match="Draw them before cond"):
            run()
    assert grad(f)(X).lt(1).all()


@BACKENDS
def test_printing_keeps_its_order(options: Any, capsys: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        fxforms.debug.print("before")

        def branch(x: torch.Tensor) -> torch.Tensor:
            fxforms.debug.print("taken {}", x)
            return 2 * x

        y = cond(x > 0, branch, lambda x: 3 * x, x)
        fxforms.debug.print("after {}", y)
        return y

    for staged in (jit(f, **options), jit(grad(f), **options)):
        for x, lines in ((1.0, "before\ntaken 1.0\nafter 2.0\n"), (-1.0, "before\nafter -3.0\n")):
            staged(torch.tensor(x))
            capsys.readouterr()
            staged(torch.tensor(x))
            assert capsys.readouterr().out == lines


def test_branches_for_their_effect_alone(capsys: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        cond(x > 0, lambda: fxforms.debug.print("yes"), lambda: fxforms.debug.print("no"))
        return x**2

    for staged in (jit(f, backend="eager"), jit(grad(f), backend="eager")):
        staged(torch.tensor(1.0))
        staged(torch.tensor(-1.0))
        assert capsys.readouterr().out == "yes\nno\n"
