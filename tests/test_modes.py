"""Grad modes, inference mode, autocast, and the state after an exception at any level."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from custom import Cube, Product
from oracle import vec
from state import modes
from torch import Tensor
from torch.testing import assert_close

import fxforms

FIRST: dict[str, Callable[[Tensor], Tensor]] = {
    "grad": lambda x: fxforms.grad(lambda x: Cube.apply(x).sum())(x),
    "vmap of grad": lambda x: fxforms.vmap(fxforms.grad(Cube.apply))(x),
    "vjp": lambda x: fxforms.vjp(Cube.apply, x)[1](torch.ones_like(x))[0],
    "jvp": lambda x: fxforms.jvp(Cube.apply, (x,), (torch.ones_like(x),))[1],
    "jacrev": lambda x: fxforms.jacrev(Cube.apply)(x).diagonal(),
    "jacfwd": lambda x: fxforms.jacfwd(Cube.apply)(x).diagonal(),
    "linearize": lambda x: fxforms.linearize(Cube.apply, x)[1](torch.ones_like(x)),
    "grad of vmap": lambda x: fxforms.grad(lambda x: fxforms.vmap(Cube.apply)(x).sum())(x),
    "torch operations": lambda x: fxforms.grad(lambda x: (x**3).sum())(x),
}
SECOND: dict[str, Callable[[Tensor], Tensor]] = {
    "grad of grad": lambda x: fxforms.vmap(fxforms.grad(fxforms.grad(Cube.apply)))(x),
    "hessian": lambda x: fxforms.hessian(lambda x: Cube.apply(x).sum())(x).diagonal(),
    "jacfwd of jacfwd": lambda x: fxforms.jacfwd(fxforms.jacfwd(lambda x: Cube.apply(x).sum()))(
        x
    ).diagonal(),
    "grad of jvp": lambda x: fxforms.grad(
        lambda x: fxforms.jvp(Cube.apply, (x,), (torch.ones_like(x),))[1].sum()
    )(x),
    "hvp": lambda x: fxforms.hvp(lambda x: Cube.apply(x).sum(), (x,), (torch.ones_like(x),))[1][0],
}


@pytest.mark.parametrize("name", FIRST | SECOND)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_a_mode_outside_does_not_change_a_transform(name: str, mode: Any) -> None:
    x = vec(3)
    with mode():
        inside = x.clone()  # an inference tensor under inference_mode
        for point in (x, inside):
            actual = (FIRST | SECOND)[name](point)
            expected = 3 * x**2 if name in FIRST else 6 * x
            assert_close(actual, expected)


@pytest.mark.parametrize("name", FIRST)
def test_no_grad_outside_makes_a_constant(name: str) -> None:
    x = vec(3).requires_grad_()
    with torch.no_grad():
        assert not FIRST[name](x).requires_grad
    assert_close(torch.autograd.grad(FIRST[name](x).sum(), x)[0], 6 * x.detach())


BLOCKED: dict[str, Callable[[Tensor], Tensor]] = {
    "Function": Cube.apply,
    "torch operation": lambda x: x**3,
    "vmap": lambda x: fxforms.vmap(Cube.apply)(x),
}


@pytest.mark.parametrize("name", BLOCKED)
@pytest.mark.parametrize("mapped", [False, True])
def test_no_grad_inside_blocks_this_level_and_those_below(name: str, mapped: bool) -> None:
    def f(x: Tensor) -> Tensor:
        with torch.no_grad():
            constant = BLOCKED[name](x)
        return (x * constant).sum()

    x = vec(4, 3)
    if mapped:
        assert_close(fxforms.vmap(fxforms.grad(f))(x), x**3)
    else:
        assert_close(fxforms.grad(f)(x), x**3)
    gradient = fxforms.grad(f)(x.clone().requires_grad_())
    assert not gradient.requires_grad


def test_no_grad_inside_blocks_an_outer_level_as_well() -> None:
    def f(x: Tensor) -> Tensor:
        def inner(y: Tensor) -> Tensor:
            with torch.no_grad():
                constant = Cube.apply(x)
            return Product.apply(constant, y).sum()

        return (fxforms.grad(inner)(x) * x).sum()  # constant * x

    x = vec(3)
    assert_close(fxforms.grad(f)(x), x**3)


def test_a_gradient_under_no_grad_inside_is_a_constant() -> None:
    def f(x: Tensor) -> Tensor:
        with torch.no_grad():
            slope = fxforms.grad(lambda y: Cube.apply(y).sum())(x)
        return (x * slope).sum()

    x = vec(3)
    assert_close(fxforms.grad(f)(x), 3 * x**2)


def test_enable_grad_inside_no_grad_records() -> None:
    def f(x: Tensor) -> Tensor:
        with torch.no_grad(), torch.enable_grad():
            return Cube.apply(x).sum()

    x = vec(3)
    assert_close(fxforms.grad(f)(x), 3 * x**2)


def test_autocast() -> None:
    w, x = torch.randn(3, 3), torch.randn(3)
    kinds = []

    def f(x: Tensor) -> Tensor:
        y = w @ x
        kinds.append(y.dtype)
        return Cube.apply(y.float()).sum()

    with torch.autocast("cpu", torch.bfloat16):
        leaf = x.clone().requires_grad_()
        f(leaf).backward()
        assert_close(fxforms.grad(f)(x), leaf.grad)
        mapped = fxforms.vmap(fxforms.grad(f))(x.expand(2, 3))
        assert_close(mapped, leaf.grad.expand(2, 3), rtol=2e-2, atol=2e-2)
    assert set(kinds) == {torch.bfloat16}


class Planned(Exception):
    """Thrown by a rule on purpose."""


def throwing(where: str, generated: bool) -> Any:
    """``x**3`` whose method ``where`` throws."""

    def pass_by(here: str) -> None:
        if here == where:
            raise Planned(here)

    class Thrower(fxforms.Function):
        generate_vmap_rule = generated

        @staticmethod
        def forward(x: Tensor) -> Tensor:
            pass_by("forward")
            return x**3

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass_by("setup_context")
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            pass_by("backward")
            return 3 * ctx.saved_tensors[0] ** 2 * g

        @staticmethod
        def jvp(ctx: Any, t: Tensor) -> Tensor:
            pass_by("jvp")
            return 3 * ctx.saved_tensors[0] ** 2 * t

        if not generated:

            @staticmethod
            def vmap(info: Any, in_dims: Any, x: Tensor) -> Any:
                pass_by("vmap")
                return Thrower.apply(x), in_dims[0]

    return Thrower.apply


def uses(f: Any, x: Tensor) -> dict[str, Callable[[], Any]]:
    """Programs that reach the rules of ``f`` at different levels."""
    s = lambda x: f(x).sum()  # noqa: E731
    mapped = lambda x: fxforms.vmap(f)(x).sum()  # noqa: E731
    return {
        "plain": lambda: s(x.clone().requires_grad_()).backward(),
        "grad": lambda: fxforms.grad(s)(x),
        "vmap": lambda: fxforms.vmap(f)(x),
        "jvp": lambda: fxforms.jvp(f, (x,), (x,)),
        "grad of grad": lambda: fxforms.grad(lambda x: fxforms.grad(s)(x).sum())(x),
        "jvp of jvp": lambda: fxforms.jvp(lambda x: fxforms.jvp(f, (x,), (x,)), (x,), (x,)),
        "vmap of hessian": lambda: fxforms.vmap(fxforms.jacfwd(fxforms.jacrev(f)))(x),
        "grad of vmap": lambda: fxforms.grad(mapped)(x),
        "jvp of grad of vmap": lambda: fxforms.jvp(fxforms.grad(mapped), (x,), (x,)),
        "linearize": lambda: fxforms.linearize(f, x)[1](x),
        "torch.func outside": lambda: torch.func.vmap(torch.func.grad(s))(x),
    }


@pytest.mark.parametrize("where", ["forward", "setup_context", "backward", "jvp", "vmap"])
@pytest.mark.parametrize("generated", [True, False], ids=["generated", "by hand"])
def test_an_exception_in_a_rule_restores_everything(where: str, generated: bool) -> None:
    if where == "vmap" and generated:
        pytest.skip("there is no such rule")
    x = vec(4, 3)
    before = modes()
    thrown = set()
    for name, run in uses(throwing(where, generated), x).items():
        for mode in (torch.enable_grad, torch.no_grad):
            if name == "plain" and mode is torch.no_grad:
                continue
            try:
                with mode():
                    run()
            except Planned:
                thrown.add(name)
            assert modes() == before, name
            assert_close(FIRST["vmap of grad"](x[0]), 3 * x[0] ** 2)
            assert_close(FIRST["jacfwd"](x[0]), 3 * x[0] ** 2)
    reached = {
        "forward": set(uses(None, x)),
        "setup_context": set(uses(None, x)) - {"vmap"},
        "backward": {name for name in uses(None, x) if name not in ("vmap", "jvp", "jvp of jvp")},
        "jvp": {"jvp", "jvp of jvp", "vmap of hessian", "jvp of grad of vmap"},
        "vmap": {n for n in uses(None, x) if "vmap" in n or "torch" in n},
    }
    assert thrown - reached[where] <= {"vmap"}
    assert reached[where] <= thrown


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_an_exception_in_the_function_at_any_depth(depth: int) -> None:
    x = vec(3)
    before = modes()

    def f(x: Tensor) -> Tensor:
        raise Planned

    for transform in (fxforms.grad, fxforms.vmap, fxforms.jacfwd, fxforms.jacrev, fxforms.hessian):
        g = f
        for _ in range(depth):
            g = fxforms.grad(g)
        with pytest.raises(Planned):
            transform(g)(x)
        assert modes() == before


def test_an_exception_that_is_caught_inside_leaves_the_level_usable() -> None:
    def f(x: Tensor) -> Tensor:
        for transform in (fxforms.grad, fxforms.jacfwd, fxforms.vmap):
            with pytest.raises(Planned):
                transform(throwing("forward", True))(x)
        return Cube.apply(x).sum()

    x = vec(4, 3)
    assert_close(fxforms.vmap(fxforms.grad(f))(x), 3 * x**2)
    assert_close(fxforms.jvp(f, (x,), (x,))[1], (3 * x**3).sum())
