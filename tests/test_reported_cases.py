"""Kinds of program that were reported wrong against other libraries, with their right values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from custom import Cube, Product, Triple
from oracle import vec
from torch import Tensor
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import fxforms

BOTH = pytest.mark.parametrize("jacobian", [fxforms.jacrev, fxforms.jacfwd])


def test_forward_over_forward_keeps_what_the_rule_saved() -> None:
    p = vec(2)
    f = lambda v: Cube.apply(v).sum()  # noqa: E731
    assert_close(fxforms.jacfwd(fxforms.jacfwd(f))(p), torch.diag(6 * p))


@BOTH
def test_roll_of_a_number(jacobian: Any) -> None:
    x = torch.tensor(2.0)
    assert_close(jacobian(lambda u: torch.roll(u, 1))(x), torch.tensor(1.0))


def test_second_derivative_through_masked_assignment() -> None:
    def huber(u: Tensor) -> Tensor:
        out = torch.zeros_like(u)
        small = u.abs() < 1
        out[small] = 0.5 * u[small] ** 2
        out[~small] = u[~small].abs() - 0.5
        return out.sum()

    x = torch.tensor([0.3, -2.0, 0.9])
    expected = torch.diag(torch.tensor([1.0, 0.0, 1.0]))
    assert_close(fxforms.jacrev(fxforms.jacrev(huber))(x), expected)


def test_bytes_seen_as_another_dtype_under_vmap() -> None:
    x = torch.tensor([[1.5, 2.0], [-3.0, 0.0]])
    assert_close(fxforms.vmap(lambda r: r.view(torch.int32))(x), x.view(torch.int32))


@pytest.mark.parametrize("count", [0, 1, 2])
def test_repeat_of_a_sample_without_dims(count: int) -> None:
    x = torch.tensor([4.0, 5.0, 6.0])
    assert_close(fxforms.vmap(lambda s: s.repeat(count))(x), x[:, None].repeat(1, count))


def test_hooks_on_saved_tensors_around_a_transform() -> None:
    x = vec(3)
    with torch.autograd.graph.save_on_cpu():
        gradient = fxforms.grad(lambda u: u.sin().sin().sum())(x)
        assert_close(gradient, x.sin().cos() * x.cos())
        assert_close(fxforms.grad(lambda u: Cube.apply(u).sum())(x), 3 * x**2)


class LogAddExp(fxforms.Function):
    """Logarithm of a sum of exponentials, its output among what is saved."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        return torch.logaddexp(a, b)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        a, b, out = ctx.saved_tensors
        return g * (a - out).exp(), g * (b - out).exp()


def test_gradient_of_a_number_shared_by_all_samples() -> None:
    rows, shared = vec(3, 2), torch.tensor(0.1).double()
    f = lambda s: fxforms.vmap(lambda r: LogAddExp.apply(s, r.sum() + s))(rows).sum()  # noqa: E731
    gradient = fxforms.grad(f)(shared)
    assert_close(gradient, torch.tensor(3.0).double())


class Ramp(fxforms.Function):
    """``max(x, 0)`` with a chosen slope at zero."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, at_zero: float) -> Tensor:
        return x.clamp(min=0)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, at_zero = inputs
        slope = torch.where(x > 0, 1.0, torch.where(x < 0, 0.0, at_zero)).to(x.dtype)
        ctx.save_for_backward(slope)
        ctx.save_for_forward(slope)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.saved_tensors[0], None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, _: Any) -> Tensor:
        return t * ctx.saved_tensors[0]


@BOTH
def test_a_chosen_slope_at_a_kink(jacobian: Any) -> None:
    x = torch.tensor([-1.0, 0.0, 2.0])
    expected = torch.diag(torch.tensor([0.0, 0.25, 1.0]))
    assert_close(jacobian(lambda u: Ramp.apply(u, 0.25))(x), expected)


@pytest.mark.parametrize("mapped", [False, True])
def test_mark_dirty_whose_result_is_not_used(mapped: bool) -> None:
    def f(u: Tensor) -> Tensor:
        v = u.clone()
        Triple.apply(v)
        return (v * v).sum()

    x = vec(2)
    gradient = fxforms.vmap(fxforms.grad(f)) if mapped else fxforms.grad(f)
    assert_close(gradient(x), 18 * x)


def test_one_tensor_as_both_operands() -> None:
    x = vec(2)
    f = lambda u: Product.apply(u, Product.apply(u, u)).sum()  # noqa: E731
    assert_close(fxforms.grad(f)(x), 3 * x**2)


class Straight(fxforms.Function):
    """Rounds, and passes three times the gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 3 * g


@pytest.mark.parametrize("mapped", [False, True])
def test_torch_compile_keeps_a_custom_backward(mapped: bool) -> None:
    x = torch.tensor([0.2, 1.7])
    apply = fxforms.vmap(Straight.apply) if mapped else Straight.apply
    f = fxforms.grad(lambda u: apply(u).sum())
    assert_close(torch.compile(f, backend="eager")(x), torch.full_like(x, 3.0))


def test_a_leaf_made_inside_the_function() -> None:
    def f(u: Tensor) -> Tensor:
        weight = torch.ones(2, dtype=torch.float64).requires_grad_()
        return (u * u * weight).sum()

    x = vec(2)
    assert_close(fxforms.jvp(f, (x,), (torch.ones_like(x),))[1], (2 * x).sum())
    assert_close(fxforms.grad(f)(x), 2 * x)


def test_pullback_through_a_copy_into_a_diagonal() -> None:
    def f(u: Tensor) -> Tensor:
        m = torch.zeros(3, 4, dtype=torch.float64)
        m.diagonal(1).copy_(u)
        return m

    u, cotangent = vec(3), vec(3, 4)
    assert_close(fxforms.vjp(f, u)[1](cotangent)[0], torch.diag(cotangent, 1))


def test_jacobian_through_a_checkpointed_block() -> None:
    x = vec(3)
    block = lambda u: (u.sin() * u).cumsum(0)  # noqa: E731
    actual = fxforms.jacrev(lambda u: checkpoint(block, u, use_reentrant=False))(x)
    assert_close(actual, torch.ones(3, 3).double().tril() * (x.sin() + x * x.cos()))


def test_hessian_product_through_a_checkpointed_block() -> None:
    x, v = vec(3), vec(3)
    f = lambda u: checkpoint(lambda q: Cube.apply(q).sum(), u, use_reentrant=False)  # noqa: E731
    assert_close(fxforms.grad(lambda u: fxforms.grad(f)(u) @ v)(x), 6 * x * v)


class Intermediate(fxforms.Function):
    """``4 x**2``, with ``2 x`` as a second output that its rules use."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        m = 2 * x
        return m * m, m

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> Tensor:
        (m,) = ctx.saved_tensors
        return 4 * m * g


def test_a_second_derivative_through_a_saved_intermediate() -> None:
    x = vec(3)
    f = lambda u: Intermediate.apply(u)[0]  # noqa: E731
    assert_close(fxforms.vmap(fxforms.grad(f))(x), 8 * x)
    assert_close(fxforms.vmap(fxforms.grad(fxforms.grad(f)))(x), torch.full_like(x, 8.0))


class BackwardOnly(fxforms.Function):
    """A sigmoid without a jvp."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.sigmoid(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return g * y * (1 - y)


class JvpOnly(BackwardOnly):
    """A sigmoid without a backward."""

    backward = torch.autograd.Function.backward

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_forward(output)
        ctx.save_for_backward(output)

    jvp = BackwardOnly.backward


@BOTH
@pytest.mark.parametrize("function", [BackwardOnly, JvpOnly])
def test_a_mode_without_a_rule_of_its_own(jacobian: Any, function: Any) -> None:
    x = vec(3)
    y = torch.sigmoid(x)
    assert_close(jacobian(function.apply)(x), torch.diag(y * (1 - y)))
    batch = torch.stack([x, 2 * x])
    z = torch.sigmoid(batch)
    assert_close(fxforms.vmap(jacobian(function.apply))(batch), torch.diag_embed(z * (1 - z)))


class Combined(fxforms.Function):
    """``cos``, written with ctx in forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.cos()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return -x.sin() * g


def test_ctx_in_forward() -> None:
    x = vec(3)
    assert_close(fxforms.grad(lambda u: Combined.apply(u).sum())(x), -x.sin())
    assert_close(fxforms.vmap(fxforms.grad(Combined.apply))(x), -x.sin())
    assert_close(fxforms.vmap(fxforms.grad(fxforms.grad(Combined.apply)))(x), -x.cos())
