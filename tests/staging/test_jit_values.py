"""``jit`` under every transform and every transform under ``jit``: values of plain autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import oracle
import pytest
import torch
from custom import Cube
from oracle import assert_trees_close, vec
from torch import Tensor

import fxforms

X = vec(3)
Transform = Callable[[Any, Callable[[Tensor], Tensor]], Callable[[Tensor], Any]]


def value(x: Tensor) -> Tensor:
    """A scalar with derivatives of every order."""
    return (x.sin() * x.exp()).sum() + x.prod()


def cubes(x: Tensor) -> Tensor:
    """The same of a custom Function."""
    return (Cube.apply(x) * x.sin()).sum()


def plain_cubes(x: Tensor) -> Tensor:
    return (x**3 * x.sin()).sum()


PROGRAMS: dict[str, Transform] = {
    "value": lambda T, f: f,
    "grad": lambda T, f: T.grad(f),
    "grad of grad": lambda T, f: T.grad(lambda x: T.grad(f)(x).pow(2).sum()),
    "jvp": lambda T, f: lambda x: T.jvp(f, (x,), (x.cos(),)),
    "jvp of jvp": lambda T, f: lambda x: T.jvp(lambda y: T.jvp(f, (y,), (y.cos(),))[1], (x,), (x,)),
    "jvp of grad": lambda T, f: lambda x: T.jvp(T.grad(f), (x,), (x,)),
    "grad of jvp": lambda T, f: T.grad(lambda x: T.jvp(f, (x,), (x.cos(),))[1]),
    "vjp": lambda T, f: lambda x: T.vjp(f, x)[1](x.sum()),
    "jacrev of grad": lambda T, f: T.jacrev(T.grad(f)),
    "vmap": lambda T, f: lambda x: T.vmap(f)(torch.stack([x, 2 * x])),
    "vmap of grad": lambda T, f: lambda x: T.vmap(T.grad(f))(torch.stack([x, 2 * x])),
    "grad of vmap": lambda T, f: T.grad(lambda x: T.vmap(f)(torch.stack([x, 2 * x])).sum()),
    "vmap of grad of grad": lambda T, f: (
        lambda x: T.vmap(T.grad(lambda y: T.grad(f)(y).pow(2).sum()))(torch.stack([x, 2 * x]))
    ),
}
PAIRS = {"torch operations": (value, value), "a custom Function": (cubes, plain_cubes)}


def both_close(jitted: Callable[[Tensor], Any], expected: Callable[[Tensor], Any]) -> None:
    """Twice, so that the second call is answered from the trace, with other numbers."""
    for x in (X, X.flip(0) / 2):
        assert_trees_close(jitted(x), expected(x))


@pytest.mark.parametrize("f", PAIRS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_transform_under_jit(program: str, f: str) -> None:
    custom, plain = PAIRS[f]
    transform = PROGRAMS[program]
    jitted = fxforms.jit(transform(fxforms, custom), backend="eager")
    both_close(jitted, transform(oracle, plain))
    assert jitted.cache_info().misses == 1


@pytest.mark.parametrize("f", PAIRS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_jit_under_a_transform(program: str, f: str) -> None:
    custom, plain = PAIRS[f]
    transform = PROGRAMS[program]
    jitted = fxforms.jit(custom, backend="eager")
    both_close(transform(fxforms, jitted), transform(oracle, plain))


@pytest.mark.parametrize(
    "transform", [fxforms.hessian, lambda f: fxforms.jacfwd(fxforms.jacfwd(f))]
)
def test_hessians(transform: Any) -> None:
    expected = oracle.jacrev(oracle.grad(value))
    both_close(transform(fxforms.jit(value, backend="eager")), expected)
    both_close(fxforms.jit(transform(value), backend="eager"), expected)


@pytest.mark.parametrize("program", ["value", "grad", "vmap of grad", "jvp of grad"])
def test_compiled(program: str) -> None:
    transform = PROGRAMS[program]
    both_close(
        fxforms.jit(transform(fxforms, cubes), compile="wait"), transform(oracle, plain_cubes)
    )
    both_close(
        transform(fxforms, fxforms.jit(cubes, compile="wait")), transform(oracle, plain_cubes)
    )


@pytest.mark.parametrize("compile", [False, True])
def test_backward_and_double_backward(compile: bool) -> None:
    options = {"compile": "wait"} if compile else {"backend": "eager"}
    jitted = fxforms.jit(cubes, **options)
    for start in (X, 2 * X):
        x, y = (start.clone().requires_grad_() for _ in range(2))
        jitted(x).backward()
        plain_cubes(y).backward()
        assert_trees_close(x.grad, y.grad)
        first, expected = (
            torch.autograd.grad(f(z), z, create_graph=True)[0]
            for f, z in ((jitted, x), (plain_cubes, y))
        )
        second = torch.autograd.grad(first.pow(2).sum(), x)
        assert_trees_close(second, torch.autograd.grad(expected.pow(2).sum(), y))


def test_plain_forward_mode_through_jit() -> None:
    jitted = fxforms.jit(value, backend="eager")
    jitted(X)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(X, X.cos())
        tangent = torch.autograd.forward_ad.unpack_dual(jitted(dual)).tangent
    assert_trees_close(tangent, oracle.jvp(value, (X,), (X.cos(),))[1])


def test_gradients_of_several_arguments_and_outputs() -> None:
    def f(x: Tensor, y: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        return x * y["w"].sin(), {"s": (x @ y["w"]).exp(), "n": x.argmax()}

    jitted = fxforms.jit(f, backend="eager")
    x, w = vec(3).requires_grad_(), vec(3).requires_grad_()
    for call in (f, jitted):
        outputs = call(x, {"w": w})
        assert not outputs[1]["n"].requires_grad
        grads = torch.autograd.grad(outputs[0].sum() + outputs[1]["s"], (x, w))
        expected = (w.sin() + w * (x @ w).exp(), x * w.cos() + x * (x @ w).exp())
        assert_trees_close(grads, expected)


def test_an_output_that_needs_no_gradient() -> None:
    jitted = fxforms.jit(lambda x: (x.sin(), x.detach().cos()), backend="eager")
    x = vec(3).requires_grad_()
    moving, fixed = jitted(x)
    assert moving.requires_grad
    assert not fixed.requires_grad
    gradient = fxforms.grad(lambda x: sum(y.sum() for y in jitted(x)))(X)
    assert_trees_close(gradient, X.cos())


def test_jit_in_jit() -> None:
    inner = fxforms.jit(fxforms.grad(cubes), backend="eager")
    outer = fxforms.jit(lambda x: inner(x) * x, backend="eager")
    both_close(outer, lambda x: oracle.grad(plain_cubes)(x) * x)
    both_close(fxforms.jacrev(outer), oracle.jacrev(lambda x: oracle.grad(plain_cubes)(x) * x))


@pytest.mark.parametrize("name", ["grad", "jvp", "vmap"])
def test_jit_over_a_tensor_of_an_outer_transform(name: str) -> None:
    """The jitted function closes over it, so it is no reference that a graph could hold."""

    def f(x: Tensor) -> Tensor:
        return fxforms.jit(lambda y: (y * x.sin()).sum(), backend="eager")(x.cos())

    def plain(x: Tensor) -> Tensor:
        return (x.cos() * x.sin()).sum()

    transform = PROGRAMS[name]
    both_close(transform(fxforms, f), transform(oracle, plain))


def test_jit_that_maps_over_a_captured_tensor() -> None:
    rows = torch.randn(4, 3, dtype=torch.float64)
    f = fxforms.jit(
        lambda x: fxforms.vmap(lambda row: (row * x).sin().sum())(rows), backend="eager"
    )
    for x in (X, 2 * X):
        expected = ((rows * x).cos() * rows).sum(0)
        torch.testing.assert_close(fxforms.grad(lambda x: f(x).sum())(x), expected)
        torch.testing.assert_close(fxforms.vmap(f)(x[None])[0], (rows * x).sin().sum(1))
    assert f.cache_info().misses == 2  # for what requires grad, and what does not


def test_jit_inside_over_outer_tensors_of_two_levels() -> None:
    def f(T: Any, jit: Any) -> Any:
        def outer(x: Tensor) -> Tensor:
            def inner(y: Tensor) -> Tensor:
                return jit(lambda z: (z * x * y).sin().sum())(x * y)

            return T.grad(inner)(x).sum()

        return T.grad(outer)

    jit = fxforms.jit
    expected = f(oracle, lambda g: g)
    both_close(f(fxforms, lambda g: jit(g, backend="eager")), expected)


@pytest.mark.parametrize(
    "output",
    [
        lambda x, v: (x, (v,)),
        lambda x, v: ((x,), v),
        lambda x, v: (x, {"k": v}),
        lambda x, v: (x, ((v,),)),
        lambda x, v: [(x,), [v]],
        lambda x, v: (x, (), (v,)),
        lambda x, v: ((x, v),),
        lambda x, v: (x,),
        lambda x, v: (x, v),
    ],
)
def test_containers_of_one_tensor(output: Callable[..., Any]) -> None:
    x, v = torch.ones(3), torch.arange(3.0)
    f = fxforms.jit(lambda x, v: output(x * 2, v + 1), backend="eager")
    for _ in range(2):
        found, expected = f(x, v), output(x * 2, v + 1)
        assert repr(found) == repr(expected)
    staged = fxforms.jit(fxforms.jacrev(lambda x: x**2, (0,)), backend="eager")(v)
    assert type(staged) is tuple
    assert torch.equal(staged[0], torch.diag(2 * v))
