"""``debug.print``: at every call, in order, whatever transforms stand around it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fxforms.debug
from fxforms import errors, grad, jit, jvp, vmap

X = torch.tensor([1.0, 2.0])


def noisy(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    fxforms.debug.print("y {} of {n}", y, n=x.dim())
    z = y.sum()
    fxforms.debug.print("z {:.1f}", z)
    return z


LINES = "y tensor([2., 4.]) of 1\nz 6.0\n"


def staged(f: Any) -> Any:
    return jit(f, backend="eager")


@pytest.mark.parametrize("wrap", [lambda f: f, staged])
def test_each_call_prints(wrap: Any, capsys: pytest.CaptureFixture[str]) -> None:
    f = wrap(noisy)
    for _ in range(3):
        f(X)
        assert capsys.readouterr().out == LINES


def test_compiled_code_prints_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    f = jit(noisy, compile="wait")
    for _ in range(2):
        assert f(X) == 6.0
        assert capsys.readouterr().out == LINES


@pytest.mark.parametrize(
    "derive",
    [
        lambda f: grad(f)(X),
        lambda f: jvp(f, (X,), (X,)),
        lambda f: staged(grad(f))(X),
        lambda f: grad(staged(f))(X),
        lambda f: jvp(staged(f), (X,), (X,)),
        lambda f: f(X.clone().requires_grad_()).backward(),
        lambda f: staged(f)(X.clone().requires_grad_()).backward(),
    ],
)
def test_a_derivative_prints_the_values_once(
    derive: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    derive(noisy)
    assert capsys.readouterr().out == LINES


@pytest.mark.parametrize(
    "mapped", [vmap(noisy), staged(vmap(noisy)), vmap(staged(noisy)), staged(vmap(grad(noisy)))]
)
def test_a_batch_prints_each_sample(mapped: Any, capsys: pytest.CaptureFixture[str]) -> None:
    mapped(torch.stack([X, 10 * X]))
    printed = capsys.readouterr().out.splitlines()
    assert printed == ["y tensor([2., 4.]) of 1", "y tensor([20., 40.]) of 1", "z 6.0", "z 60.0"]


@pytest.mark.parametrize("text", ["{}{}", "{1}", "{name}", "{name.real}"])
def test_a_missing_argument_is_told(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(errors.ArgumentError, match="no argument"):
        fxforms.debug.print(text, X)
    fxforms.debug.print("{}", 1)
    assert capsys.readouterr().out == "1\n"
