"""Rules, derived and by hand: shared inputs, broadcasting, views, dirty inputs, nested calls."""

from __future__ import annotations

from typing import Any

import oracle
import pytest
import torch
from custom import Cube, Product, Triple, TripleByHand
from oracle import assert_trees_close, vec
from torch import Tensor
from torch.testing import assert_close

import fxforms
from fxforms import _substrate as substrate

# Shapes of x and y as the vmap sees them, and in_dims; each needs a reduction somewhere.
BROADCAST = [
    ((4, 2, 3), (3,), (0, None)),
    ((4, 2, 3), (4,), (0, 0)),
    ((2, 3), (4,), (None, 0)),
    ((4, 2, 3), (), (0, None)),
    ((4, 2, 3), (4, 1, 3), (0, 0)),
    ((4, 2, 1), (4, 3), (0, 0)),
    ((3,), (4, 2, 3), (None, 0)),
    ((1, 3, 4), (4, 2, 3), (2, 0)),
    ((1, 1, 1), (4, 2, 3), (None, 0)),
    ((2, 4), (1, 4), (1, 1)),
]


@pytest.mark.parametrize("case", BROADCAST, ids=str)
@pytest.mark.parametrize("order", ["vmap grad", "grad vmap", "grad grad vmap", "jvp vmap"])
def test_gradients_that_broadcast(case: Any, order: str) -> None:
    """The rule returns them in the shape of the output; they are reduced to that of the input."""
    x_shape, y_shape, dims = case
    x, y = vec(*x_shape), vec(*y_shape)

    def run(T: Any, f: Any) -> Any:
        loss = lambda x, y: f(x, y).pow(2).sum()  # noqa: E731
        if order == "vmap grad":
            return T.vmap(T.grad(loss, (0, 1)), dims)(x, y)
        mapped = lambda x, y: T.vmap(f, dims)(x, y).pow(2).sum()  # noqa: E731
        if order == "jvp vmap":
            return T.jvp(mapped, (x, y), (x.cos(), y.cos()))
        if order == "grad vmap":
            return T.grad(mapped, (0, 1))(x, y)
        inner = lambda x, y: sum(g.pow(2).sum() for g in T.grad(mapped, (0, 1))(x, y))  # noqa: E731
        return T.grad(inner, (0, 1))(x, y)

    assert_trees_close(run(fxforms, Product.apply), run(oracle, torch.mul))


class Slices(fxforms.Function):
    """Returns views of its input, which overlap."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        return x[1:], x[:-1]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, h: Tensor | None) -> Tensor | None:
        parts = []
        if g is not None:
            parts.append(torch.cat([torch.zeros_like(g[:1]), g]))
        if h is not None:
            parts.append(torch.cat([h, torch.zeros_like(h[:1])]))
        return sum(parts) if parts else None

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> tuple[Tensor, Tensor]:
        return t[1:] * 1, t[:-1] * 1


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("name", ["vmap", "vmapgrad", "gradvmap", "jvpvmap", "hessian"])
def test_views_of_an_input(dim: int, name: str) -> None:
    x = vec(3, 3)

    def run(T: Any, f: Any) -> Any:
        loss = lambda x: (f(x)[0].exp() * f(x)[1]).sum()  # noqa: E731
        if name == "vmap":
            return T.vmap(f, dim)(x)
        if name == "vmapgrad":
            return T.vmap(T.grad(loss), dim)(x)
        if name == "jvpvmap":
            return T.jvp(T.vmap(f, dim), (x,), (x.cos(),))
        if name == "gradvmap":
            return T.grad(lambda x: T.vmap(loss, dim)(x).sum())(x)
        return T.jacrev(T.grad(lambda x: T.vmap(loss, dim)(x).sum()))(x)

    assert_trees_close(run(fxforms, Slices.apply), run(oracle, lambda x: (x[1:], x[:-1])))


def test_an_unused_output_does_not_reach_the_rule() -> None:
    x = vec(4, 3)
    only = lambda x: Slices.apply(x)[1].sum()  # noqa: E731
    expected = torch.tensor([1, 1, 0.0]).double().expand(4, 3)
    assert_close(fxforms.vmap(fxforms.grad(only))(x), expected)
    assert_close(fxforms.grad(lambda x: fxforms.vmap(only)(x).sum())(x), expected)


class Shared(fxforms.Function):
    """The second output depends on y alone; the third on nothing."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x * y, y**2, torch.ones(2, dtype=torch.float64)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        x, y = ctx.saved_tensors
        return g * y, g * x + 2 * y * h

    @staticmethod
    def jvp(ctx: Any, tx: Tensor, ty: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, y = ctx.saved_tensors
        return tx * y + x * ty, 2 * y * ty, torch.zeros(2, dtype=torch.float64)


@pytest.mark.parametrize("dims", [(0, None), (None, 0), (0, 0), (1, None)], ids=str)
@pytest.mark.parametrize("name", ["vmap", "vmapvmap", "grad", "gradgrad", "jvp", "jvpjvp"])
def test_outputs_that_not_every_sample_changes(dims: Any, name: str) -> None:
    x, y = [vec(3) if d is None else vec(3, 3) for d in dims]

    def run(T: Any, f: Any) -> Any:
        mapped = T.vmap(f, dims)
        if name == "vmap":
            return mapped(x, y)
        if name == "vmapvmap":
            return T.vmap(mapped, (0, None))(torch.stack([x, 2 * x]), y)
        loss = lambda x, y: sum(u.exp().sum() for u in mapped(x, y)[:2])  # noqa: E731
        if name == "grad":
            return T.grad(loss, (0, 1))(x, y)
        if name == "gradgrad":
            return T.grad(lambda y: T.grad(loss, 1)(x, y).pow(2).sum())(y)
        push = lambda x, y: T.jvp(mapped, (x, y), (x.cos(), y.cos()))  # noqa: E731
        return push(x, y) if name == "jvp" else T.jvp(push, (x, y), (x.sin(), y.sin()))

    constant = torch.ones(2, dtype=torch.float64)
    assert_trees_close(
        run(fxforms, Shared.apply), run(oracle, lambda x, y: (x * y, y**2, constant + 0 * x.sum()))
    )


@pytest.mark.parametrize("function", [Triple, TripleByHand])
def test_a_dirty_input_is_the_same_tensor_at_every_level(function: Any) -> None:
    seen = []

    def f(x: Tensor) -> Tensor:
        y = x * 1
        seen.append(function.apply(y) is y)
        return y

    x = vec(4, 3)
    assert_close(fxforms.vmap(f)(x), 3 * x)
    assert_close(fxforms.vmap(fxforms.vmap(f))(x), 3 * x)
    assert_close(fxforms.jvp(f, (x,), (x,)), (3 * x, 3 * x))
    assert_close(fxforms.grad(lambda x: f(x).sum())(x), torch.full((4, 3), 3.0).double())
    assert_close(fxforms.vmap(fxforms.jacfwd(f))(x), 3 * torch.eye(3).double().expand(4, 3, 3))
    assert all(seen)


@pytest.mark.parametrize("function", [Triple, TripleByHand])
@pytest.mark.parametrize("place", ["whole", "view"])
@pytest.mark.parametrize("name", ["grad", "jvp", "vmap", "vmapgrad", "gradvmap", "jvpvmap"])
def test_a_dirty_view(function: Any, place: str, name: str) -> None:
    x = vec(4, 3)

    def run(T: Any, op: Any) -> Any:
        def f(x: Tensor) -> Tensor:
            y = x**2
            op(y if place == "whole" else y[1:])
            return y.sin()

        loss = lambda x: f(x).sum()  # noqa: E731
        mapped = T.vmap(f)
        return {
            "grad": lambda: T.grad(loss)(x),
            "jvp": lambda: T.jvp(f, (x,), (x.cos(),)),
            "vmap": lambda: mapped(x),
            "vmapgrad": lambda: T.vmap(T.grad(loss))(x),
            "gradvmap": lambda: T.grad(lambda x: mapped(x).sum())(x),
            "jvpvmap": lambda: T.jvp(mapped, (x,), (x.cos(),)),
        }[name]()

    assert_trees_close(run(fxforms, function.apply), run(oracle, lambda y: y.mul_(3)))


def test_a_rule_is_run_with_its_level_lowered() -> None:
    depths = []

    class Depth(fxforms.Function):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            depths.append(("forward", substrate.level_depth()))
            return x * 2

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def jvp(ctx: Any, t: Tensor) -> Tensor:
            depths.append(("jvp", substrate.level_depth()))
            return t * 2

        @staticmethod
        def vmap(info: Any, in_dims: Any, x: Tensor) -> Any:
            depths.append(("vmap", substrate.level_depth()))
            return Depth.apply(x), in_dims[0]

    x = vec(4, 3)
    fxforms.vmap(lambda x: fxforms.jvp(Depth.apply, (x,), (x,)))(x)
    assert depths == [("vmap", 0), ("forward", 0), ("jvp", 1)]


def test_rules_may_use_transforms() -> None:
    class ByGrad(fxforms.Function):
        """``x**3``, whose backward and jvp differentiate the body by other transforms."""

        generate_vmap_rule = True

        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return fxforms.vmap(lambda u: u**3)(x)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return fxforms.vjp(Cube.apply, x)[1](g)[0]

        @staticmethod
        def jvp(ctx: Any, t: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return fxforms.jvp(Cube.apply, (x,), (t,))[1]

    x = vec(4, 3)
    f = lambda x: ByGrad.apply(x).sum()  # noqa: E731
    assert_close(fxforms.vmap(fxforms.grad(f))(x), 3 * x**2)
    assert_close(fxforms.grad(lambda x: fxforms.vmap(ByGrad.apply)(x).sum())(x), 3 * x**2)
    assert_close(fxforms.hessian(f)(x[0]), torch.diag(6 * x[0]))
    assert_close(fxforms.jacfwd(fxforms.jacfwd(f))(x[0]), torch.diag(6 * x[0]))
    assert_close(fxforms.vmap(fxforms.jacfwd(fxforms.grad(f)))(x), torch.diag_embed(6 * x))
