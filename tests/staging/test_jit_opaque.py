"""Custom Functions inside ``jit``: their rules at every order, and bodies that nothing traces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fxforms

X = torch.linspace(0.5, 1.5, 5, dtype=torch.float64)
Y = torch.linspace(-1.0, 2.0, 5, dtype=torch.float64)
pytestmark = pytest.mark.filterwarnings("ignore::fxforms.UnmappableWarning")


def jit(f: Callable[..., Any]) -> Any:
    return fxforms.jit(f, backend="eager")


def numpy_of(x: Tensor, f: Callable[[Any], Any]) -> Tensor:
    return torch.from_numpy(np.asarray(f(x.detach().numpy())))


class Sine(fxforms.Function):
    """NumPy bodies, linked so that every derivative exists."""

    calls = 0

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        Sine.calls += 1
        return numpy_of(x, np.sin)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * Cosine.apply(*ctx.saved_tensors)


class Cosine(fxforms.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return numpy_of(x, np.cos)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return -g * Sine.apply(*ctx.saved_tensors)


class Exponential(fxforms.Function):
    """``forward(ctx, ...)``, with NumPy in the backward too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = numpy_of(x, np.exp)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return torch.from_numpy(np.asarray(g.detach().numpy() * y.detach().numpy()))


def total(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: f(x).sum()


PROGRAMS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "value": (lambda x: Sine.apply(x) * 2, lambda x: 2 * x.sin()),
    "grad": (fxforms.grad(total(Sine.apply)), torch.cos),
    "grad of grad": (
        fxforms.grad(lambda x: fxforms.grad(total(Sine.apply))(x).sum()),
        lambda x: -x.sin(),
    ),
    "jvp": (lambda x: fxforms.jvp(Sine.apply, (x,), (x,))[1], lambda x: x * x.cos()),
    "vmap": (fxforms.vmap(Sine.apply), torch.sin),
    "vmap of grad": (fxforms.vmap(fxforms.grad(Sine.apply)), torch.cos),
    "grad of vmap": (fxforms.grad(total(fxforms.vmap(Sine.apply))), torch.cos),
    "grad, combined form": (fxforms.grad(total(Exponential.apply)), torch.exp),
    "vmap of grad, combined form": (fxforms.vmap(fxforms.grad(Exponential.apply)), torch.exp),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_body_in_numpy_is_run_at_every_call(name: str) -> None:
    """Never a constant: the values differ from call to call, and one trace serves them."""
    program, expected = PROGRAMS[name]
    f = jit(program)
    for x in (X, Y, 3 * Y, X):
        torch.testing.assert_close(f(x), expected(x))
    assert f.cache_info().misses == 1


def test_the_body_runs_once_a_call() -> None:
    f = jit(Sine.apply)
    f(X)
    before = Sine.calls
    f(Y)
    f(X)
    assert Sine.calls == before + 2


def test_what_a_body_reads_may_change() -> None:
    table = {"scale": 2.0}

    class Scale(fxforms.Function):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return numpy_of(x, lambda a: a * table["scale"])

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

    f = jit(Scale.apply)
    assert torch.equal(f(X), 2 * X)
    table["scale"] = 3.0
    assert torch.equal(f(X), 3 * X)


@pytest.mark.parametrize("function", [Sine, Exponential])
def test_transforms_of_a_jitted_body(function: Any) -> None:
    derivative = torch.cos if function is Sine else torch.exp
    f = jit(function.apply)
    for x in (X, Y):
        torch.testing.assert_close(fxforms.grad(total(f))(x), derivative(x))
        torch.testing.assert_close(fxforms.vmap(fxforms.grad(f))(x), derivative(x))
        torch.testing.assert_close(fxforms.grad(total(fxforms.vmap(f)))(x), derivative(x))
        y = x.clone().requires_grad_()
        f(y).sum().backward()
        torch.testing.assert_close(y.grad, derivative(x))


def test_a_body_whose_shape_depends_on_values_is_refused_at_the_call() -> None:
    class Kept(fxforms.Function):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return numpy_of(x, lambda a: a[a > 0.8])

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

    f = jit(Kept.apply)
    with pytest.raises(fxforms.errors.TraceError, match="one shape for one shape"):
        f(X)
    assert torch.equal(jit(Sine.apply)(X), X.sin())


class Straight(torch.autograd.Function):
    """A Function of plain torch, whose backward is not the derivative."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * g * x**2


class Old(torch.autograd.Function):
    """The same in the other form."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.round()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * g * x**2


@fxforms.custom_vjp
def by_vjp(x: Tensor) -> Tensor:
    return x.round()


by_vjp.defvjp(lambda x: (x.round(), x), lambda x, g: (3 * g * x**2,))


@fxforms.custom_jvp
def by_jvp(x: Tensor) -> Tensor:
    return x.round()


@by_jvp.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    return by_jvp(x), 3 * x**2 * t


OWN_RULES = {
    "custom_vjp": by_vjp,
    "custom_jvp": by_jvp,
    "adopted": fxforms.adopt(Straight).apply,
    "adopted, old form": fxforms.adopt(Old).apply,
    "plain autograd.Function": Straight.apply,
}


@pytest.mark.parametrize("name", OWN_RULES)
def test_own_rules_at_first_and_second_order(name: str) -> None:
    """The rule says the gradient is 3 x**2, and its own derivative 6 x."""
    g = total(OWN_RULES[name])
    second = lambda f: lambda x: fxforms.grad(lambda y: fxforms.grad(f)(y).sum())(x)  # noqa: E731
    for x in (X, Y):
        torch.testing.assert_close(jit(g)(x), x.round().sum())
        torch.testing.assert_close(jit(fxforms.grad(g))(x), 3 * x**2)
        torch.testing.assert_close(fxforms.grad(jit(g))(x), 3 * x**2)
        torch.testing.assert_close(jit(second(g))(x), 6 * x)
        torch.testing.assert_close(second(jit(g))(x), 6 * x)
        y = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(jit(g)(y), y, create_graph=True)
        torch.testing.assert_close(first, 3 * y**2)
        torch.testing.assert_close(torch.autograd.grad(first.sum(), y)[0], 6 * x)


def test_plain_function_of_the_old_form_in_plain_autograd() -> None:
    f = jit(total(Old.apply))
    for x in (X, Y):
        y = x.clone().requires_grad_()
        f(y).backward()
        torch.testing.assert_close(y.grad, 3 * x**2)


class Scaled(fxforms.Function):
    """NumPy in both directions, and no gradient for the factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        return torch.from_numpy(np.asarray(x.detach().numpy() * factor))

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        return torch.from_numpy(np.asarray(cotangent.detach().numpy() * 3.0)), None


def test_an_opaque_rule_that_returns_none_for_an_argument() -> None:
    x = torch.linspace(0, 1, 3)
    f = fxforms.jit(fxforms.grad(lambda x: Scaled.apply(x, 3.0).sum()), backend="eager")
    for _ in range(2):
        assert torch.equal(f(x), torch.full((3,), 3.0))


def test_a_batch_at_the_first_call_of_a_combined_form() -> None:
    class First(fxforms.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return numpy_of(x, np.sin)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * ctx.saved_tensors[0].cos()

    assert torch.allclose(jit(fxforms.vmap(First.apply))(X), X.sin())


@pytest.mark.parametrize("turn", [lambda x: x.T, lambda x: x[:, :1].expand(2, 3), lambda x: x[1]])
def test_compiled_code_takes_the_layout_that_a_body_gives(turn: Callable[[Any], Any]) -> None:
    x = turn(torch.arange(6.0).reshape(2, 3))
    f = fxforms.jit(lambda x: (Sine.apply(x), Sine.apply(2 * x) + 1), compile="wait")
    given = f(x)
    expected = numpy_of(x, np.sin), numpy_of(2 * x, np.sin) + 1
    torch.testing.assert_close(given, expected)
    assert [y.stride() for y in given] == [y.stride() for y in expected]
