"""``explain``, ``trace``, ``lower``, ``eval_shape`` and the logger: what was traced, and why."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

import fxforms
from fxforms import grad, jit, vmap

X = torch.linspace(0, 1, 3)


class Config:
    scale = 2.0


def test_each_trace_has_its_reason() -> None:
    config = Config()
    f = jit(lambda x, n: x * n * config.scale, backend="eager")
    f(X, 1)
    f(X[:2], 1)
    f(X[:2], 2)
    f(X[:2], 2)
    config.scale = 3.0
    f(X[:2], 2)
    with torch.no_grad():
        f(X[:2], 2)
    reasons = [trace.reason for trace in fxforms.explain(f, X[:2], 2).traces]
    assert reasons[:3] == [
        "the first call",
        "tensor 0: shape (3,) -> (2,)",
        "static value: 1 -> 2",
    ]
    assert reasons[3] == "a captured variable changed: config.scale"
    assert reasons[4:] == ["grad mode: True -> False"]


def test_operators_are_counted_before_and_after() -> None:
    told = fxforms.explain(grad(lambda x: (x**2).sum()), X)
    assert told.operators == {"ones": 1, "expand": 1, "pow": 1, "mul": 2}
    assert told.recorded >= 5
    assert told.compile_seconds is None
    assert told.call_seconds > 0


def test_a_compiled_function_tells_how_long_that_took() -> None:
    f = jit(lambda x: x.sin() + 1, compile="wait")
    told = fxforms.explain(f, X)
    assert told.compile_seconds is not None
    assert told.compile_seconds > 0
    assert "compiled in" in str(told)


def test_the_logger_tells_of_a_trace(caplog: pytest.LogCaptureFixture) -> None:
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    with caplog.at_level(logging.INFO, logger="fxforms.jit"):
        f = jit(doubled, backend="eager")
        f(X)
        f(X)
    messages = [r.getMessage() for r in caplog.records if r.name == "fxforms.jit"]
    assert len(messages) == 1
    assert messages[0].startswith("doubled: traced in")
    assert messages[0].endswith("the first call")


def test_a_program_runs_on_its_own() -> None:
    weight = torch.eye(3) * 2
    program = fxforms.trace(vmap(grad(lambda x: (weight @ x).sum())))(torch.stack([X, X]))
    (result,) = program(torch.stack([X, X]), weight)
    assert torch.equal(result, torch.full((2, 3), 2.0))


def test_a_traced_program_and_a_lowered_one_compute_the_same() -> None:
    f = jit(grad(lambda x: torch.nn.functional.softplus(x).sum()))
    assert torch.allclose(f.trace(X)(X)[0], torch.sigmoid(X))
    assert torch.allclose(f.lower(X)(X)[0], torch.sigmoid(X))


@pytest.mark.parametrize(
    ("f", "args"),
    [
        (torch.outer, (torch.ones(3), torch.ones(4))),
        (lambda d: {"y": d["x"].sum(0), "n": 3}, ({"x": torch.ones(2, 5, dtype=torch.float64)},)),
        (grad(lambda x: x.sin().sum()), (X,)),
    ],
)
def test_shapes_are_those_of_the_result(f: Any, args: Any) -> None:
    wanted, got = f(*args), fxforms.eval_shape(f, *args)
    for x, like in zip(
        torch.utils._pytree.tree_leaves(wanted), torch.utils._pytree.tree_leaves(got)
    ):
        if isinstance(x, torch.Tensor):
            assert (x.shape, x.dtype, like.device.type) == (like.shape, like.dtype, "meta")
        else:
            assert x == like
