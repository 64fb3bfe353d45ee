"""What ``cond`` refuses, and that nothing is left behind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch

import fxforms
from fxforms import _substrate, cond, errors, grad, vmap

jit = partial(fxforms.jit, backend="eager")
X = torch.tensor([1.0, 2.0])
ROWS = torch.stack([X, -X])


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    assert (
        _substrate.level_depth() == _substrate.function_modes() == _substrate.dispatch_modes() == 0
    )
    f = lambda x: cond(x.sum() > 0, torch.sin, torch.cos, x).sum()  # noqa: E731
    torch.testing.assert_close(grad(f)(X), X.cos())
    torch.testing.assert_close(jit(grad(f))(-X), X.sin())


@pytest.mark.parametrize(
    ("pred", "seen"),
    [
        (X, "a torch.float32 tensor of shape (2,), and must be a bool"),
        (X > 0, "a torch.bool tensor of shape (2,), and must be a bool"),
        (1, "the predicate is 1, and"),
        (None, "the predicate is None, and"),
    ],
)
def test_a_predicate_is_one_bool(pred: Any, seen: str) -> None:
    with pytest.raises(errors.ArgumentError, match=re.escape(seen)) as caught:
        cond(pred, torch.sin, torch.cos, X)
    assert "cond(sin, cos)" in str(caught.value)


UNLIKE = {
    "shape": (
        lambda x: {"a": x, "b": x.sum()},
        lambda x: {"a": x.sum(), "b": x.sum()},
        r"output\['a'\] is a torch.float32 tensor of shape \(2,\) in true_fn and a torch.float32 "
        r"tensor of shape \(\) in false_fn",
    ),
    "dtype": (lambda x: (x, x.int()), lambda x: (x, x), r"output\[1\] is a torch.int32 tensor"),
    "structure": (
        lambda x: {"a": x, "b": x},
        lambda x: {"a": x},
        r"different structures.*output\['b'\] is only in one",
    ),
    "number": (lambda x: (x, 1), lambda x: (x, 2), r"output\[1\] is 1 in true_fn and 2 in"),
    "no tensor": (lambda x: x, lambda x: 0.0, r"in true_fn and 0.0 in false_fn"),
}


@pytest.mark.parametrize("name", UNLIKE)
@pytest.mark.parametrize(
    "run",
    [
        lambda f: vmap(f)(ROWS),
        lambda f: jit(f)(X),
        lambda f: jit(vmap(f))(ROWS),
        lambda f: grad(lambda x: jit(f)(x)[0].sum())(X),
    ],
)
def test_branches_that_return_unlike_things(name: str, run: Any) -> None:
    true_fn, false_fn, message = UNLIKE[name]
    with pytest.raises(errors.StructureError, match=message):
        run(lambda x: cond(x.sum() > 0, true_fn, false_fn, x))


@pytest.mark.parametrize("captures", [False, True])
def test_a_change_in_place_that_samples_share(captures: bool) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return cond(x.sum() > 0, lambda y: (x if captures else y).add_(1), lambda y: 2 * y, x)

    with pytest.raises(errors.MutationError, match="the predicate is batched"):
        vmap(f)(ROWS.clone())
    with pytest.raises(errors.TraceError, match=r"changes in place a tensor of shape \(2,\)"):
        jit(f)(X.clone())


def test_a_change_in_place_of_a_tensor_of_the_branch_is_fine() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        def changed() -> torch.Tensor:
            y = 2 * x
            y.add_(1)
            y[0] = 7
            return y

        return cond(x.sum() > 0, changed, lambda: 3 * x)

    for run in (f, jit(f)):
        assert torch.equal(run(X), torch.tensor([7.0, 5.0]))
        assert torch.equal(run(-X), -3 * X)
    assert torch.equal(vmap(f)(ROWS), torch.tensor([[7.0, 5.0], [-3.0, -6.0]]))
    total = jit(grad(lambda x: f(x).sum()))
    assert torch.equal(total(X), torch.tensor([0.0, 2.0]))


@pytest.mark.parametrize(
    "run",
    [
        lambda f: f(X),
        lambda f: vmap(f)(ROWS),
        lambda f: vmap(grad(lambda x: f(x).sum()))(ROWS),
        lambda f: jit(f)(X),
        lambda f: jit(vmap(grad(lambda x: f(x).sum())))(ROWS),
    ],
)
def test_what_a_branch_raises_comes_out(run: Any) -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run(lambda x: cond(x.sum() > 0, fails, torch.sin, x))
