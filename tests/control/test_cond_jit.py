"""``cond`` under ``jit``: one trace, both branches in the graph, the one that is taken runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fxforms
from fxforms import cond, grad, hessian, jacfwd, jacrev, jit, jvp, vmap

X = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
W = torch.tensor(1.5, dtype=torch.float64)
SIDES = pytest.mark.parametrize("x", [X, -X])
BACKENDS = pytest.mark.parametrize(
    "options", [{"backend": "eager"}, {"compile": "wait"}], ids=["eager", "inductor"]
)


def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """sum(w x**3) or sum(exp(w x)); ``w`` is captured by both branches."""
    return cond(x.sum() > 0, lambda x: (w * x**3).sum(), lambda x: (w * x).exp().sum(), x)


def value(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (w * x**3).sum() if x.sum() > 0 else (w * x).exp().sum()


def by_x(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return 3 * w * x**2 if x.sum() > 0 else w * (w * x).exp()


def by_w(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x**3).sum() if x.sum() > 0 else (x * (w * x).exp()).sum()


def by_x_twice(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.diag(6 * w * x if x.sum() > 0 else w**2 * (w * x).exp())


def by_w_and_x(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return 3 * x**2 if x.sum() > 0 else (1 + w * x) * (w * x).exp()


@BACKENDS
def test_one_trace_serves_both_sides(options: Any) -> None:
    f = jit(loss, **options)
    for x in (X, -X, X):
        torch.testing.assert_close(f(x, W), value(x, W))
    assert f.cache_info()[:3] == (2, 1, 1)
    targets = [str(node.target) for node in f.trace(X, W).graph.nodes]
    assert targets.count("cond") == 1
    assert not any("exp" in name or "pow" in name for name in targets)  # those are in its branches


@BACKENDS
@SIDES
def test_derivatives_inside(x: torch.Tensor, options: Any) -> None:
    first = jit(grad(loss, argnums=(0, 1)), **options)(x, W)
    torch.testing.assert_close(first, (by_x(x, W), by_w(x, W)))
    torch.testing.assert_close(jit(hessian(loss), **options)(x, W), by_x_twice(x, W))


@SIDES
@pytest.mark.parametrize("a", [jacrev, jacfwd])
@pytest.mark.parametrize("b", [jacrev, jacfwd])
def test_mixed_derivatives_inside(x: torch.Tensor, a: Any, b: Any) -> None:
    found = jit(a(b(loss, argnums=1), argnums=0), backend="eager")(x, W)
    torch.testing.assert_close(found, by_w_and_x(x, W))


@SIDES
@pytest.mark.parametrize("inner", [jacrev, jacfwd])
def test_a_batch_that_shares_the_predicate(x: torch.Tensor, inner: Any) -> None:
    found = jit(vmap(jacrev(inner(loss)), in_dims=(None, 0)), backend="eager")(
        x, torch.stack([W, 2 * W])
    )
    torch.testing.assert_close(found, torch.stack([by_x_twice(x, W), by_x_twice(x, 2 * W)]))


@BACKENDS
@SIDES
def test_derivatives_outside(x: torch.Tensor, options: Any) -> None:
    f = jit(loss, **options)
    torch.testing.assert_close(grad(f)(x, W), by_x(x, W))
    torch.testing.assert_close(jvp(lambda x: f(x, W), (x,), (X,))[1], by_x(x, W) @ X)
    rows = torch.stack([x, -x])
    expected = torch.stack([by_x(row, W) for row in rows])
    torch.testing.assert_close(vmap(grad(f), in_dims=(0, None))(rows, W), expected)
    torch.testing.assert_close(hessian(f)(x, W), by_x_twice(x, W))


@BACKENDS
@SIDES
def test_plain_autograd_twice(x: torch.Tensor, options: Any) -> None:
    x, w = x.clone().requires_grad_(), W.clone().requires_grad_()
    (first,) = torch.autograd.grad(jit(loss, **options)(x, w), x, create_graph=True)
    torch.testing.assert_close(first, by_x(x, W).detach())
    (first**2).sum().backward()
    slopes = 2 * by_x(x.detach(), W)
    torch.testing.assert_close(x.grad, by_x_twice(x.detach(), W) @ slopes)
    torch.testing.assert_close(w.grad, by_w_and_x(x.detach(), W) @ slopes)


def test_parameters_stay_references() -> None:
    """An optimiser step is seen, and both layers have a gradient from plain autograd."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(3, 3).double() for _ in range(2)]
    parameters = [p for layer in layers for p in layer.parameters()]
    f = jit(lambda x: cond(x.sum() > 0, layers[0], layers[1], x).sum(), backend="eager")
    for _ in range(2):
        for x in (X, -X):
            for parameter in parameters:
                parameter.grad = None
            f(x).backward()
            taken, other = layers if x.sum() > 0 else layers[::-1]
            torch.testing.assert_close(taken.weight.grad, x.expand(3, 3))
            assert not other.weight.grad.any()
        with torch.no_grad():
            for parameter in parameters:
                parameter.sub_(0.1 * torch.ones_like(parameter))
        torch.testing.assert_close(f(X), layers[0](X).sum())
    assert f.cache_info().misses == 1


@BACKENDS
def test_only_the_branch_that_is_taken_runs(options: Any) -> None:
    ran: list[str] = []

    def branch(name: str) -> Any:
        def body(x: torch.Tensor) -> torch.Tensor:
            ran.append(name)
            return x.sin()

        return lambda x: fxforms.pure_callback(body, x, x)

    f = jit(lambda x: cond(x.sum() > 0, branch("true"), branch("false"), x), **options)
    for x, name in ((X, "true"), (-X, "false")):
        f(x)
        ran.clear()
        torch.testing.assert_close(f(x), x.sin())
        assert set(ran) == {name}


class Sine(fxforms.Function):
    """In NumPy; ten times its derivative shows that the rule was used."""

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.asarray(np.sin(x.numpy())))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 10 * cotangent * x.cos()


@BACKENDS
@pytest.mark.parametrize("captures", [False, True])
def test_rules_of_custom_functions_hold(captures: bool, options: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return cond(x[0] > 0, lambda y: Sine.apply(x if captures else y).sum(), torch.sum, x)

    assert torch.equal(jit(f, **options)(X), X.sin().sum())
    for staged in (jit(grad(f), **options), grad(jit(f, **options))):
        torch.testing.assert_close(staged(X), 10 * X.cos())
        torch.testing.assert_close(staged(-X), torch.ones_like(X))


@BACKENDS
def test_branches_in_branches(options: Any) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return cond(
            x > 0,
            lambda: cond(y > 0, lambda: x * y, lambda: x - y**2),
            lambda: cond(y > x, lambda z: (z * y).sin(), lambda z: y.exp() * z, x),
        )

    both = jit(grad(f, argnums=(0, 1)), **options)
    for a, b in ((1.0, 2.0), (1.0, -2.0), (-1.0, 2.0), (-1.0, -2.0)):
        x, y = torch.tensor(a, requires_grad=True), torch.tensor(b, requires_grad=True)
        by_hand = (
            (x * y if b > 0 else x - y**2) if a > 0 else ((x * y).sin() if b > a else y.exp() * x)
        )
        expected = torch.autograd.grad(by_hand, (x, y))
        torch.testing.assert_close(both(x.detach(), y.detach()), expected)


@BACKENDS
def test_symbolic_sizes(options: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        n = x.shape[0]
        return cond(x.sum() > 0, lambda: x * n + torch.ones(n), lambda: x.mean() * x)

    staged = jit(f, dynamic=True, **options)
    for size in (3, 5, 4):
        assert torch.equal(staged(torch.ones(size)), torch.full((size,), size + 1.0))
        assert torch.equal(staged(-torch.ones(size)), torch.ones(size))
    assert staged.cache_info().misses == 1


def test_operands_and_views_that_are_returned() -> None:
    f = jit(
        lambda x: cond(x.sum() > 0, lambda x: (x, x[0], x.T), lambda x: (-x, x[1], x), x),
        backend="eager",
    )
    matrix = torch.arange(4.0).reshape(2, 2)
    for x in (matrix, -matrix):
        expected = (x, x[0], x.T) if x.sum() > 0 else (-x, x[1], x)
        for found, wanted in zip(f(x), expected):
            assert torch.equal(found, wanted)


def test_integers_beside_what_is_differentiated() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return cond(x.sum() > 0, lambda: (x.sin().sum(), x.argmax()), lambda: (x[0], x.argmin()))

    slope, index = jit(grad(f, has_aux=True), backend="eager")(X)
    torch.testing.assert_close(slope, X.cos())
    assert index == 2
    assert jit(vmap(lambda x: cond(torch.tensor(True), torch.argmax, torch.argmin, x)))(
        torch.stack([X, -X])
    ).tolist() == [2, 1]


def test_a_captured_python_value_that_changes_is_seen() -> None:
    scale = 2.0
    f = jit(lambda x: cond(x.sum() > 0, lambda: scale * x, lambda: x), backend="eager")
    assert torch.equal(f(X), 2 * X)
    scale = 3.0
    assert torch.equal(f(X), 3 * X)


def test_the_tools_see_it() -> None:
    told = fxforms.explain(jit(loss, backend="eager"), X, W)
    assert told.operators["cond"] == 1
    assert fxforms.eval_shape(grad(loss), X, W).shape == (3,)
    program = fxforms.trace(grad(loss))(X, W)
    for x in (X, -X):
        torch.testing.assert_close(program(x, W)[0], by_x(x, W))


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_it_is_saved_and_loaded(tmp_path: Any) -> None:
    path = str(tmp_path / "slope.pt2")
    fxforms.save(grad(loss), path, X, W)
    loaded = fxforms.load(path)
    for x in (X, -X):
        torch.testing.assert_close(loaded(x, W), by_x(x, W))


def test_a_captured_backward_pass_of_it() -> None:
    x = X.clone().requires_grad_()
    captured = fxforms.capture_backward(jit(loss, backend="eager")(x, W), x)
    torch.testing.assert_close(captured(torch.tensor(2.0).double()), 2 * by_x(X, W))


def test_a_function_without_arguments() -> None:
    w = torch.tensor([0.5, -0.25])
    f = jit(lambda: cond(w.sum() > 0, lambda: w.sin(), lambda: w * 2), backend="eager")
    torch.testing.assert_close(f(), w.sin())
    w.neg_()
    torch.testing.assert_close(f(), w * 2)
