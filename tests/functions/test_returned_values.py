"""What a rule may return: its own operand or tangent, containers, and what is no tensor at all."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from oracle import vec
from torch import Tensor
from torch.testing import assert_close

import fxforms


@pytest.mark.parametrize("case", ["moved", "none", "new"])
def test_a_hand_written_rule_may_return_its_operand_with_another_out_dim(case: str) -> None:
    x = vec(3, 3)
    out_dim = {"moved": 1, "none": None, "new": 0}[case]

    class Operand(fxforms.Function):
        @staticmethod
        def forward(x: Tensor, index: Tensor) -> Tensor:
            raise AssertionError("only the rule is used")

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def vmap(info: Any, in_dims: Any, x: Tensor, index: Tensor) -> Any:
            return x, out_dim

    in_dims = (None, 0) if case == "new" else (0, 0)
    actual = fxforms.vmap(Operand.apply, in_dims)(x, torch.arange(3))
    assert_close(actual, {"moved": x.T, "none": x.expand(3, 3, 3), "new": x}[case])


class Fork(fxforms.Function):
    """Two copies of its input; the jvp returns the one tangent it was given, twice."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 1, x * 1

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor) -> Tensor:
        return g + h

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> tuple[Tensor, Tensor]:
        return t, t


@pytest.mark.parametrize("mapped", [False, True])
def test_a_later_change_in_place_stays_with_its_output(mapped: bool) -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        first, second = Fork.apply(x)
        first.mul_(5)
        return first, second, x * 1

    x, t = vec(3), vec(3)
    given = t.clone()
    if mapped:
        _, tangents = fxforms.jvp(fxforms.vmap(f), (x,), (given,))
    else:
        _, tangents = fxforms.jvp(f, (x,), (given,))
    assert_close(given, t)
    assert_close(tangents, (5 * t, t, t))


def take(out: Any) -> Tensor:
    """The one tensor of a container."""
    return out[0] if isinstance(out, list) else out["x"]


def container(make: Any) -> Any:
    """Doubles its input; returns what ``make`` puts it in."""

    class Container(fxforms.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: Tensor) -> Any:
            return make(2 * x)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return 2 * take(make(g) if isinstance(g, Tensor) else g)

    return Container.apply


@pytest.mark.parametrize("make", [lambda x: [x], lambda x: {"x": x}], ids=["list", "dict"])
@pytest.mark.parametrize("plain", [True, False], ids=["plain", "grad"])
def test_a_container_is_an_error_or_right(make: Any, plain: bool) -> None:
    f, x = container(make), vec(3)
    try:
        if plain:
            leaf = x.clone().requires_grad_()
            gradient = torch.autograd.grad(take(f(leaf)).sum() + 0 * leaf.sum(), leaf)[0]
        else:
            gradient = fxforms.grad(lambda x: take(f(x)).sum())(x)
    except fxforms.errors.FxformsError:
        return
    assert_close(gradient, torch.full((3,), 2.0).double())


def test_a_list_of_operands_is_an_error_or_right() -> None:
    class Total(fxforms.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(parts: list[Tensor]) -> Tensor:
            return sum((x * x).sum() for x in parts)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs[0])

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return [2 * x * g for x in ctx.saved_tensors]

    x, y = vec(3), vec(3)
    try:
        gradients = fxforms.grad(lambda x, y: Total.apply([x, y]), (0, 1))(x, y)
    except fxforms.errors.FxformsError:
        return
    assert_close(gradients, (2 * x, 2 * y))


class Size(fxforms.Function):
    """A number, made from a tensor."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> float:
        return float(x.shape[0])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: Any) -> None:
        return None

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> None:
        return None


def test_a_number_as_the_only_output() -> None:
    f = lambda x: x * Size.apply(x)  # noqa: E731
    x = vec(4, 3)
    assert_close(fxforms.vmap(f)(x), 3 * x)
    assert_close(fxforms.vmap(fxforms.grad(lambda x: f(x).sum()))(x), torch.full_like(x, 3.0))
    assert_close(fxforms.jvp(f, (x,), (x,)), (4 * x, 4 * x))


def test_a_function_without_tensor_operands() -> None:
    class Ones(fxforms.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(n: float) -> Tensor:
            return n * torch.ones(3, dtype=torch.float64)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

    f = lambda x: x * Ones.apply(2.0)  # noqa: E731
    x = vec(4, 3)
    assert_close(fxforms.vmap(f)(x), 2 * x)
    assert_close(fxforms.grad(lambda x: f(x).sum())(x), torch.full_like(x, 2.0))
    assert_close(fxforms.jvp(f, (x,), (x,))[1], 2 * x)


class Sigmoid(fxforms.Function):
    """Saves its output."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.sigmoid(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return g * y * (1 - y)

    jvp = backward


class AttributeSigmoid(Sigmoid):
    """Keeps its output as an attribute."""

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.y = output

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.y * (1 - ctx.y)

    jvp = backward


@pytest.mark.parametrize("function", [Sigmoid, AttributeSigmoid])
@pytest.mark.parametrize("outer", ["jacrev", "jacfwd"])
@pytest.mark.parametrize("inner", ["jacrev", "jacfwd"])
def test_an_output_that_the_rules_use(function: Any, outer: str, inner: str) -> None:
    x = vec(3)
    y = torch.sigmoid(x)
    second = y * (1 - y) * (1 - 2 * y)
    nest = lambda f: getattr(fxforms, outer)(getattr(fxforms, inner)(f))  # noqa: E731
    assert_close(nest(lambda x: function.apply(x).sum())(x), torch.diag(second))
    assert_close(nest(lambda x: fxforms.vmap(function.apply)(x).sum())(x), torch.diag(second))
    third = y * (1 - y) * (1 - 6 * y + 6 * y**2)
    scalar = lambda x: nest(function.apply)(x)  # noqa: E731
    assert_close(fxforms.vmap(fxforms.grad(scalar))(x), third)


class Flagged(fxforms.Function):
    """Returns an argument that is no tensor beside its output, in the combined form."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, flag: Any) -> tuple[Tensor, None, Any]:
        ctx.save_for_backward(x)
        return x.sin(), None, flag

    @staticmethod
    def backward(ctx: Any, g: Tensor, *_: Any) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return g * x.cos(), None


@pytest.mark.parametrize("flag", ["s", 2.0, True, [1]])
def test_the_combined_form_may_return_an_argument_that_is_no_tensor(flag: Any) -> None:
    x = vec(3)

    def f(x: Tensor) -> Tensor:
        y, none, found = Flagged.apply(x, flag)
        assert none is None
        assert found == flag
        return y.sum()

    assert_close(fxforms.grad(f)(x), x.cos())
    assert_close(fxforms.hessian(f)(x), torch.diag(-x.sin()))
    assert_close(fxforms.vmap(fxforms.grad(f))(x), x.cos())
    assert_close(fxforms.jvp(f, (x,), (x,))[1], (x * x.cos()).sum())
    assert_close(fxforms.jit(fxforms.grad(f), backend="eager")(x), x.cos())
    leaf = x.clone().requires_grad_()
    f(leaf).backward()
    assert_close(leaf.grad, x.cos())
