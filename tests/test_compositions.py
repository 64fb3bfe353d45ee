"""Compositions of transforms, each one program run twice: fxforms with custom Functions, and
plain autograd with loops (``oracle``) on torch operations."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import oracle
import pytest
import torch
from custom import PAIRS, Keep, doubled, plain
from oracle import assert_trees_close, vec
from torch import Tensor
from torch.utils import _pytree as pytree

import fxforms

Op = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
F64 = torch.float64


def loss(op: Op) -> Callable[..., Tensor]:
    """A scalar that uses both outputs nonlinearly."""

    def run(x: Tensor, y: Tensor) -> Tensor:
        u, v = op(x, y)
        return (u.sin() * v).sum()

    return run


def total(tree: Any) -> Tensor:
    return sum(x.pow(2).sum() for x in pytree.tree_leaves(tree))


# Each takes the module of transforms and the op, and (x, y) of shape (2,).
def grad(T: Any, f: Op, x: Tensor, y: Tensor) -> Any:
    return T.grad(loss(f), (0, 1))(x, y)


def grad_of_one(T: Any, f: Op, x: Tensor, y: Tensor) -> Any:
    return T.grad(lambda x: f(x, y)[1].sum())(x)


def turned(tree: Any) -> Any:
    """Directions that depend on the point, so that nested derivatives see them too."""
    return pytree.tree_map(torch.cos, tree)


def vjp(T: Any, f: Any, *args: Tensor) -> Any:
    output, pullback = T.vjp(f, *args)
    return output, pullback(turned(output))


def jvp(T: Any, f: Any, *args: Tensor) -> Any:
    return T.jvp(f, args, turned(args))


def jvp_of_one(T: Any, f: Op, x: Tensor, y: Tensor) -> Any:
    return T.jvp(lambda y: f(x, y), (y,), (y.cos(),))


def vjpvjp(T: Any, f: Op, *args: Tensor) -> Any:
    return vjp(T, lambda *args: vjp(T, f, *args), *args)


def jvpvjp(T: Any, f: Op, *args: Tensor) -> Any:
    return jvp(T, lambda *args: vjp(T, f, *args), *args)


def vjpjvp(T: Any, f: Op, *args: Tensor) -> Any:
    return vjp(T, lambda *args: jvp(T, f, *args), *args)


def jvpjvp(T: Any, f: Op, *args: Tensor) -> Any:
    return jvp(T, lambda *args: jvp(T, f, *args), *args)


def jvpjvpjvp(T: Any, f: Op, *args: Tensor) -> Any:
    return jvp(T, lambda *args: jvpjvp(T, f, *args), *args)


def unused(T: Any, f: Op, x: Tensor, y: Tensor) -> Any:
    return T.grad(lambda x, z, y: f(x, x)[0].sum() + 0 * y.sum(), (0, 1))(x, y, y)


def confusable(T: Any, f: Op, x: Tensor, y: Tensor) -> Any:
    """The inner derivative must not pick up the outer perturbation."""
    inner = lambda x: T.jvp(lambda y: f(x, y), (y,), (x,))  # noqa: E731
    return T.jvp(lambda x: total(inner(x)) * x, (x,), (y,))


UNBATCHED = {
    f.__name__: f
    for f in (
        *(grad, grad_of_one, vjp, jvp, jvp_of_one, vjpvjp, jvpvjp, vjpjvp, jvpjvp, jvpjvpjvp),
        *(unused, confusable),
    )
}


def three_grads(T: Any, f: Op, x: Tensor, y: Tensor) -> Any:
    once = lambda x: total(T.grad(loss(f))(x, y))  # noqa: E731
    twice = lambda x: total(T.grad(once)(x))  # noqa: E731
    return T.grad(twice)(x)


UNDER_VMAP = {
    name: UNBATCHED[name] for name in ("grad", "vjp", "jvp", "vjpvjp", "jvpvjp", "jvpjvp", "unused")
} | {"three_grads": three_grads}

# in_dims of (x, y).
DIMS = [(0, 0), (1, 0), (0, None), (None, 1)]
dims_of = pytest.mark.parametrize("dims", DIMS, ids=str)


def batch(dims: tuple[Any, Any], size: int = 3) -> list[Tensor]:
    """x and y with a batch of ``size`` at ``dims``."""
    return [vec(2) if d is None else vec(size, 2).movedim(0, d).contiguous() for d in dims]


@pytest.fixture(params=PAIRS, ids=lambda name: name.replace(" ", "_"))
def op(request: pytest.FixtureRequest) -> Any:
    return PAIRS[request.param]


@pytest.mark.parametrize("name", UNBATCHED)
def test_derivatives(op: Op, name: str) -> None:
    composition, x, y = UNBATCHED[name], vec(2), vec(2)
    assert_trees_close(composition(fxforms, op, x, y), composition(oracle, plain, x, y))


@dims_of
@pytest.mark.parametrize("out_dims", [0, 1, -1])
def test_vmap(op: Op, dims: Any, out_dims: int) -> None:
    args = batch(dims)
    actual = fxforms.vmap(op, dims, out_dims)(*args)
    assert_trees_close(actual, oracle.vmap(plain, dims, out_dims)(*args))


@dims_of
@pytest.mark.parametrize("name", UNDER_VMAP)
def test_vmap_of_derivatives(op: Op, dims: Any, name: str) -> None:
    composition, args = UNDER_VMAP[name], batch(dims)

    def run(T: ModuleType, f: Op) -> Any:
        return T.vmap(lambda x, y: composition(T, f, x, y), dims)(*args)

    assert_trees_close(run(fxforms, op), run(oracle, plain))


@dims_of
@pytest.mark.parametrize(
    "name", ["grad", "vjp", "jvp", "jvp_of_one", "vjpvjp", "jvpvjp", "vjpjvp", "jvpjvp"]
)
def test_derivatives_of_vmap(op: Op, dims: Any, name: str) -> None:
    composition, args = UNBATCHED[name], batch(dims)
    actual = composition(fxforms, fxforms.vmap(op, dims), *args)
    assert_trees_close(actual, composition(oracle, oracle.vmap(plain, dims), *args))


# in_dims of the inner and of the outer vmap.
NESTED_DIMS = [((0, None), (None, 0)), ((0, 0), (1, 0)), ((None, 0), (0, 1)), ((0, 0), (0, None))]


@pytest.mark.parametrize("dims", NESTED_DIMS, ids=str)
@pytest.mark.parametrize("name", ["value", "grad", "jvp", "vjpvjp", "jvpvjp", "jvpjvp"])
@pytest.mark.parametrize("place", ["around", "between", "inside"])
def test_two_vmaps(op: Op, dims: Any, name: str, place: str) -> None:
    inner, outer = dims
    args = nested_batch(inner, outer)

    def run(T: Any, f: Op) -> Any:
        take = UNBATCHED.get(name, lambda T, f, *args: f(*args))
        if place == "inside":
            return T.vmap(T.vmap(lambda x, y: take(T, f, x, y), inner), outer)(*args)
        if place == "between":
            return T.vmap(lambda x, y: take(T, T.vmap(f, inner), x, y), outer)(*args)
        return take(T, T.vmap(T.vmap(f, inner), outer), *args)

    assert_trees_close(run(fxforms, op), run(oracle, plain))


def nested_batch(inner: Any, outer: Any) -> list[Tensor]:
    """x and y of shape (2,) with a batch of 3 at ``inner`` and then one of 4 at ``outer``."""
    args = []
    for d_inner, d_outer in zip(inner, outer):
        shape = [2]
        if d_inner is not None:
            shape.insert(d_inner, 3)
        if d_outer is not None:
            shape.insert(d_outer, 4)
        args.append(vec(*shape))
    return args


@pytest.mark.parametrize("outer", ["grad", "vmap", "jvp", "plain autograd"])
@pytest.mark.parametrize("name", ["grad", "jvp", "vjpvjp", "jvpjvp", "vmap", "vmapgrad"])
def test_a_captured_tensor_of_an_outer_level(op: Op, outer: str, name: str) -> None:
    """y belongs to the outer transform, the inner one knows x alone."""
    x, y = vec(2), vec(2)

    def inside(T: Any, f: Op, y: Tensor) -> Any:
        captured = lambda x: f(x, y)  # noqa: E731
        if name == "vmap":
            return T.vmap(captured)(torch.stack([x, 2 * x, x.sin()]))
        if name == "vmapgrad":
            g = T.vmap(T.grad(lambda x: loss(f)(x, y)))
            return g(torch.stack([x, 2 * x, x.sin()]))
        if name == "grad":
            return T.grad(lambda x: loss(f)(x, y))(x)
        return UNBATCHED[name](T, captured, x)

    def run(T: Any, f: Op) -> Any:
        if outer == "grad":
            return T.grad(lambda y: total(inside(T, f, y)))(y)
        if outer == "vmap":
            return T.vmap(lambda y: inside(T, f, y))(torch.stack([y, 3 * y, y.cos()]))
        if outer == "jvp":
            return T.jvp(lambda y: inside(T, f, y), (y,), (x,))
        leaf = y.clone().requires_grad_()
        return torch.autograd.grad(total(inside(T, f, leaf)), leaf)

    assert_trees_close(run(fxforms, op), run(oracle, plain))


@pytest.mark.parametrize("outer", ["jacrev", "jacfwd"])
@pytest.mark.parametrize("inner", ["jacrev", "jacfwd"])
@pytest.mark.parametrize("mapped", ["", "inside vmap", "around vmap"])
def test_hessian_by_every_nesting(op: Op, outer: str, inner: str, mapped: str) -> None:
    y = vec(2)
    x = vec(3, 2) if mapped else vec(2)

    def scalar(T: Any, f: Op) -> Any:
        mapped_f = T.vmap(f, (0, None)) if mapped == "around vmap" else f
        return lambda x: loss(mapped_f)(x, y)

    first, second = getattr(fxforms, inner), getattr(fxforms, outer)
    hessian = second(first(scalar(fxforms, op)))
    expected = oracle.jacrev(oracle.grad(scalar(oracle, plain)))
    if mapped == "inside vmap":
        hessian, expected = fxforms.vmap(hessian), oracle.vmap(expected)
    assert_trees_close(hessian(x), expected(x))


@dims_of
@pytest.mark.parametrize("name", ["grad", "vjp", "jvp", "vmap", "vmapgrad", "gradvmap", "jvpvmap"])
def test_a_function_that_returns_its_inputs(dims: Any, name: str) -> None:
    """An output that is an input, or a view of one, still passes through the rules."""
    args = batch(dims)

    def run(T: Any, f: Op) -> Any:
        if name == "vmap":
            return T.vmap(f, dims)(*args)
        if name == "vmapgrad":
            return T.vmap(T.grad(loss(f), (0, 1)), dims)(*args)
        if name.endswith("vmap"):
            return UNBATCHED[name.removesuffix("vmap")](T, T.vmap(f, dims), *args)
        one = [x.select(d, 0) if d is not None else x for x, d in zip(args, dims)]
        return UNBATCHED[name](T, f, *one)

    expected = run(oracle, lambda x, y: (doubled(x), doubled(y)))
    assert_trees_close(run(fxforms, Keep.apply), expected)
