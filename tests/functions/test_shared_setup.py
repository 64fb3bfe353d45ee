"""``setup_context`` of a derived vmap: run once for all levels, where that changes no value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import fxforms
from fxforms.functions import mapped

X = torch.linspace(0.2, 1.4, 6, dtype=torch.float64).reshape(2, 3)
Y = torch.linspace(-1.0, 2.0, 6, dtype=torch.float64).reshape(2, 3)


class Scaled(fxforms.Function):
    """x**2 y, times a number; the subclasses save what it needs in different ways."""

    setups = 0

    @staticmethod
    def forward(x: Tensor, y: Tensor, factor: float) -> Tensor:
        return factor * x**2 * y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, y = ctx.saved_tensors
        return 2 * ctx.factor * x * y * g, ctx.factor * x**2 * g, None

    @staticmethod
    def jvp(ctx: Any, s: Tensor, t: Tensor, _: None) -> Tensor:
        x, y = ctx.saved_tensors
        return 2 * ctx.factor * x * y * s + ctx.factor * x**2 * t


def saves_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.save_for_forward(inputs[0], inputs[1])
    ctx.factor = inputs[2]


def saves_a_residual(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0] * 1, inputs[1])
    ctx.save_for_forward(inputs[0] * 1, inputs[1])
    ctx.factor = inputs[2]


def asks_what_is_needed(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    saves_inputs(ctx, inputs, output)
    ctx.first = ctx.needs_input_grad[0]


def keeps_a_tensor(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    saves_inputs(ctx, inputs, output)
    ctx.kept = {"x": inputs[0]}


def keeps_an_object(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    saves_inputs(ctx, inputs, output)
    ctx.kept = object()


def scaled(setup: Callable[..., None]) -> Any:
    """Scaled with this ``setup_context``, which counts its calls."""

    class Counted(Scaled):
        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            Counted.setups += 1
            setup(ctx, inputs, output)

    return Counted


SHARED = [saves_inputs]
EACH = [saves_a_residual, asks_what_is_needed, keeps_a_tensor, keeps_an_object]


def total(op: Any, factor: float = 3.0) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, y: fxforms.vmap(lambda a, b: op.apply(a, b, factor))(x, y).sum()


def derivatives(f: Callable[[Tensor, Tensor], Tensor]) -> list[Any]:
    """First, second and mixed derivatives of ``f`` at X and Y, by several nestings."""

    def slope(x: Tensor, y: Tensor) -> Tensor:
        return fxforms.grad(f)(x, y).sum()

    return [
        fxforms.grad(f, (0, 1))(X, Y),
        fxforms.grad(slope, (0, 1))(X, Y),
        fxforms.grad(lambda y: slope(X, y))(Y),
        fxforms.jvp(slope, (X, Y), (Y, X))[1],
        fxforms.grad(lambda x: fxforms.jvp(f, (x, Y), (Y, X))[1])(X),
    ]


EXPECTED: list[Any] = [
    (6 * X * Y, 3 * X**2),
    (6 * Y, 6 * X),
    6 * X,
    (6 * Y * Y + 6 * X * X).sum(),
    6 * Y * Y + 6 * X * X,
]


@pytest.mark.parametrize("setup", [*SHARED, *EACH])
def test_values_are_the_same_once_the_class_is_known(setup: Callable[..., None]) -> None:
    op = scaled(setup)
    for _ in range(3):
        assert_close(derivatives(total(op)), EXPECTED)


@pytest.mark.parametrize("setup", [*SHARED, *EACH])
def test_which_classes_share_their_setup(
    setup: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under grad(grad(vmap)) a setup that saves inputs runs once, any other once a level."""
    op = scaled(setup)
    for _ in range(2):
        fxforms.grad(total(op))(X, Y)  # the first call with no containers shows what is saved
    seen = []
    share = mapped.share_setup
    monkeypatch.setattr(mapped, "share_setup", lambda *args: seen.append(share(*args)) or seen[-1])
    op.setups = 0
    fxforms.grad(lambda x: fxforms.grad(total(op))(x, Y).sum())(X)
    shared = setup in SHARED
    assert op.setups == (1 if shared else 2)
    assert [found is not None for found in seen] == ([True] if shared else [])


def test_each_level_saves_its_own_tensors() -> None:
    """Two operands that are one tensor under both levels, of which each level follows one."""
    op = scaled(saves_inputs)

    def f(x: Tensor, y: Tensor) -> Tensor:
        return fxforms.vmap(lambda a: op.apply(x, y, 2.0) * a)(torch.ones(4).double()).sum()

    for _ in range(3):
        inner = fxforms.grad(lambda x: fxforms.grad(lambda y: f(x, y).sum())(X).sum())(X)
        assert_close(inner, 4 * 2 * 2 * X)


def test_a_class_that_changes_what_it_saves() -> None:
    setup = {"now": saves_inputs}
    op = scaled(lambda *args: setup["now"](*args))
    for name in (saves_inputs, saves_inputs, *EACH, saves_inputs):
        setup["now"] = name
        assert_close(derivatives(total(op)), EXPECTED)


def swapped(ctx: Any, x: Tensor, y: Tensor) -> None:
    ctx.save_for_backward(y, x)
    ctx.swapped = True


def without_forward(ctx: Any, x: Tensor, y: Tensor) -> None:
    ctx.save_for_backward(x, y)


def forward_apart(ctx: Any, x: Tensor, y: Tensor) -> None:
    ctx.save_for_backward(x, y)
    ctx.save_for_forward(y, x)


def turned(ctx: Any, x: Tensor, y: Tensor) -> None:
    ctx.save_for_backward(y, x)


def none_between(ctx: Any, x: Tensor, y: Tensor) -> None:
    ctx.save_for_backward(x, None, y)


def only_an_attribute(ctx: Any, x: Tensor, y: Tensor) -> None:
    ctx.pair = x, y


SAVES = (without_forward, forward_apart, turned, swapped, turned, none_between, only_an_attribute)


@pytest.mark.parametrize("first", SAVES)
def test_what_the_last_call_left_is_taken_only_for_the_same(first: Callable[..., None]) -> None:
    class Product(fxforms.Function):
        saves = staticmethod(first)

        @staticmethod
        def forward(x: Tensor, y: Tensor) -> Tensor:
            return x * y

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
            Product.saves(ctx, *inputs)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            found = [t for t in ctx.saved_tensors if t is not None] or ctx.pair
            x, y = found[::-1] if hasattr(ctx, "swapped") or Product.saves is turned else found
            return g * y, g * x

    def check_both() -> None:
        both = fxforms.grad(lambda x, y: fxforms.vmap(Product.apply)(x, y).sum(), (0, 1))(X, Y)
        assert_close(both, (Y, X))

    for _ in range(3):
        check_both()
    row = fxforms.grad(lambda y: fxforms.vmap(Product.apply, (0, None))(X, y).sum())(Y[0])
    assert_close(row, X.sum(0))
    for then in (*SAVES, first):
        Product.saves = staticmethod(then)
        check_both()
    twice = fxforms.grad(lambda x: fxforms.vmap(lambda a: Product.apply(a, a))(x).sum())
    assert_close(twice(X), 2 * X)


def test_an_output_that_is_an_input_keeps_its_own_derivative() -> None:
    """What is saved is the output, whose derivative the rule says, not that of the input."""

    class Reversed(fxforms.Function):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x.view_as(x)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
            ctx.save_for_backward(output)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return -g * ctx.saved_tensors[0]

    gradient = fxforms.grad(lambda x: fxforms.vmap(Reversed.apply)(x).sum())
    for _ in range(3):
        assert_close(gradient(X), -X)
        # d(-y)/dx, and dy/dx is -y by the rule
        assert_close(fxforms.grad(lambda x: gradient(x).sum())(X), X)


def test_an_error_in_setup_context_is_raised_as_it_is() -> None:
    fails = []

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        if fails:
            raise ValueError("no")
        saves_inputs(ctx, inputs, output)

    op = scaled(setup)
    for _ in range(3):
        fxforms.grad(total(op))(X, Y)
    fails.append(True)
    with pytest.raises(ValueError, match="no"):
        fxforms.grad(total(op))(X, Y)


def test_shared_and_unbatched_operands() -> None:
    """The gradient of an operand without batch dim is summed over the batch."""
    op = scaled(saves_inputs)

    def f(x: Tensor, y: Tensor) -> Tensor:
        return fxforms.vmap(lambda a, b: op.apply(a, b, 3.0), (1, None), 1)(x, y).sum()

    y = Y[:, 0]
    for _ in range(3):
        found = fxforms.grad(f, (0, 1))(X, y)
        assert_close(found, (6 * X * y[:, None], 3 * (X**2).sum(1)))
