"""``pure_callback``: called with real tensors from wherever it stands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fxforms
from fxforms import errors, grad, jit, jvp, pure_callback, vmap

X = torch.linspace(-1, 1, 4)
ROWS = torch.linspace(-2, 2, 12).reshape(3, 4)
METHODS = ("sequential", "expand_dims", "broadcast_all")


def sine(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.asarray(np.sin(x.numpy())))


SINES = sine(X)
ROW_SINES = sine(ROWS)


def called(x: torch.Tensor, method: str | None = None) -> Any:
    return pure_callback(sine, x, x, vmap_method=method)


def staged(f: Any) -> Any:
    return jit(f, backend="eager")


def test_it_is_called_at_once_outside_of_a_trace() -> None:
    assert torch.equal(called(X), SINES)


def test_a_graph_calls_it_anew_each_time() -> None:
    f = staged(lambda x: 2 * called(x))
    assert torch.equal(f(X), 2 * SINES)
    assert torch.equal(f(3 * X), 2 * sine(3 * X))
    assert f.cache_info().misses == 1


def test_compiled_code_calls_it() -> None:
    f = jit(lambda x: 2 * called(x).exp(), compile="wait")
    for x in (X, 3 * X):
        torch.testing.assert_close(f(x), 2 * sine(x).exp())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("wrap", [lambda f: f, staged])
def test_a_batch_is_taken_as_the_method_says(method: str, wrap: Any) -> None:
    mapped = vmap(lambda x: called(x, method))
    assert torch.equal(wrap(mapped)(X), SINES)
    assert torch.equal(wrap(vmap(mapped))(ROWS), ROW_SINES)
    assert torch.equal(vmap(staged(lambda x: called(x, method)))(X), SINES)


@pytest.mark.parametrize(
    ("method", "calls", "shapes"),
    [
        ("sequential", 3, [(4,), (4,)]),
        ("expand_dims", 1, [(3, 4), (1, 4)]),
        ("broadcast_all", 1, [(3, 4), (3, 4)]),
    ],
)
def test_what_the_callback_sees(method: str, calls: int, shapes: list[tuple[int, ...]]) -> None:
    seen = []

    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        seen.append([tuple(x.shape), tuple(y.shape)])
        return x + y

    result = vmap(lambda x: pure_callback(add, X, x, X, vmap_method=method))(ROWS)
    assert torch.equal(result, ROWS + X)
    assert seen == [shapes] * calls


def test_trees_and_keywords_go_in_and_out() -> None:
    def swap(d: dict[str, torch.Tensor], *, by: float) -> dict[str, torch.Tensor]:
        return {"a": d["b"] * by, "b": d["a"] * by}

    given = {"a": X, "b": 2 * X}
    f = staged(lambda d: pure_callback(swap, d, d, by=3.0))
    result = f(given)
    assert torch.equal(result["a"], 6 * X)
    assert torch.equal(result["b"], 3 * X)


def test_a_rule_around_it_gives_it_a_derivative() -> None:
    @fxforms.custom_vjp
    def f(x: torch.Tensor) -> Any:
        return called(x, "expand_dims")

    f.defvjp(lambda x: (f(x), x), lambda x, g: (g * x.cos(),))
    assert torch.allclose(staged(vmap(grad(f)))(X), X.cos())


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: vmap(called)(X), errors.RuleError),
        (lambda: grad(lambda x: called(x).sum())(X), errors.RuleError),
        (lambda: jvp(called, (X,), (X,)), errors.RuleError),
        (lambda: called(X.clone().requires_grad_()), errors.RuleError),
        (lambda: pure_callback(sine, ROWS, X), errors.OutputError),
        (lambda: pure_callback(sine, (X, X), X), errors.OutputError),
        (lambda: called(X, "all"), errors.ArgumentError),
        (lambda: staged(lambda x: pure_callback(sine, ROWS, x))(X), errors.TraceError),
    ],
)
def test_a_wrong_use_is_told_and_the_next_call_works(call: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="sine"):
        call()
    assert torch.equal(vmap(lambda x: called(x, "sequential"))(X), SINES)
