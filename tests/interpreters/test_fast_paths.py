"""Which calls of a combined ``forward`` are not split, and that this changes no value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import fxforms
from fxforms.errors import RuleError
from fxforms.functions import call

X = torch.linspace(0.2, 1.4, 6, dtype=torch.float64).reshape(2, 3)
VALUE, FIRST, SECOND = X**3, 3 * X**2, 6 * X


def cube_class(vmap: bool) -> Any:
    """x**3 in the combined form, with every rule, that of vmap if asked."""

    class Cube(fxforms.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            ctx.power = 3
            return x**3

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return ctx.power * ctx.saved_tensors[0] ** 2 * g

        jvp = backward

    if vmap:
        Cube.vmap = staticmethod(lambda info, in_dims, x: (Cube.apply(x), in_dims[0]))
    return Cube


def summed(op: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: op(x).sum()


def pushed(f: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: fxforms.jvp(f, (x,), (torch.ones_like(x),))[1]


PROGRAMS: dict[str, tuple[Callable[[Any], Callable[[Tensor], Tensor]], Tensor]] = {
    "grad": (lambda op: fxforms.grad(summed(op)), FIRST),
    "jvp": (pushed, FIRST),
    "vmap": (fxforms.vmap, VALUE),
    "vmap(vmap)": (lambda op: fxforms.vmap(fxforms.vmap(op)), VALUE),
    "vmap(grad)": (lambda op: fxforms.vmap(fxforms.grad(summed(op))), FIRST),
    "vmap(vmap(grad))": (lambda op: fxforms.vmap(fxforms.vmap(fxforms.grad(op))), FIRST),
    "vmap(jvp)": (lambda op: fxforms.vmap(pushed(op)), FIRST),
}
BY_RULE: dict[str, tuple[Callable[[Any], Callable[[Tensor], Tensor]], Tensor]] = {
    "grad(vmap)": (lambda op: fxforms.grad(summed(fxforms.vmap(op))), FIRST),
    "jvp(vmap)": (lambda op: pushed(fxforms.vmap(op)), FIRST),
}
SPLIT: dict[str, tuple[Callable[[Any], Callable[[Tensor], Tensor]], Tensor]] = {
    "grad(grad)": (lambda op: fxforms.grad(summed(fxforms.grad(summed(op)))), SECOND),
    "grad(jvp)": (lambda op: fxforms.grad(summed(pushed(op))), SECOND),
    "jvp(grad)": (lambda op: pushed(fxforms.grad(summed(op))), SECOND),
    "jvp(jvp)": (lambda op: pushed(pushed(op)), SECOND),
}


def count_splits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that grows by one with each call that is split."""
    seen: list[str] = []
    split = call.enter_split

    def noted(rules: Any, operands: Any) -> Any:
        seen.append(rules.__name__)
        return split(rules, operands)

    monkeypatch.setattr(call, "enter_split", noted)
    return seen


@pytest.mark.parametrize("vmap", [False, True], ids=["derived vmap", "vmap rule"])
@pytest.mark.parametrize("program", [*PROGRAMS, *BY_RULE, *SPLIT])
def test_which_calls_are_split(program: str, vmap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    op = cube_class(vmap).apply
    fxforms.grad(summed(op))(X)  # shows that nothing but an input is saved
    seen = count_splits(monkeypatch)
    build, expected = (PROGRAMS | BY_RULE | SPLIT)[program]
    assert_close(build(op)(X), expected)
    assert bool(seen) is (program in SPLIT or (program in BY_RULE and not vmap))


@pytest.mark.parametrize("program", [*PROGRAMS, *BY_RULE, *SPLIT])
def test_plain_autograd_around_a_transform_splits(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It follows the operands, so that it must see what every level saves."""
    op = cube_class(False).apply
    fxforms.grad(summed(op))(X)
    seen = count_splits(monkeypatch)
    build, expected = (PROGRAMS | BY_RULE | SPLIT)[program]
    leaf = X.clone().requires_grad_()
    result = build(op)(leaf)
    assert_close(result, expected)
    (found,) = torch.autograd.grad(result.sum(), leaf)
    derivative = {id(VALUE): FIRST, id(FIRST): SECOND, id(SECOND): torch.full_like(X, 6)}
    assert_close(found, derivative[id(expected)])
    assert seen


def test_a_plain_dual_tensor_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    op = cube_class(False).apply
    gradient = fxforms.grad(summed(op))
    gradient(X)
    seen = count_splits(monkeypatch)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(X, torch.ones_like(X))
        tangent = torch.autograd.forward_ad.unpack_dual(gradient(dual)).tangent
    assert_close(tangent, SECOND)
    assert seen


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_residual_that_a_later_call_saves(program: str) -> None:
    """The first call is wrong about the class; each derivative is right all the same."""

    class Varying(fxforms.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, residual: bool) -> Tensor:
            ctx.save_for_backward(3 * x**2 if residual else x)
            ctx.residual = residual
            return x**3

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            (x,) = ctx.saved_tensors
            return g * (x if ctx.residual else 3 * x**2), None

    build, expected = PROGRAMS[program]
    fxforms.grad(lambda x: Varying.apply(x, False).sum())(X)
    for residual in (False, True, False):
        assert_close(build(lambda x, r=residual: Varying.apply(x, r))(X), expected)
    gradient = fxforms.grad(lambda x: Varying.apply(x, True).sum())
    assert_close(fxforms.grad(lambda x: gradient(x).sum())(X), SECOND)


def test_a_body_that_runs_again_draws_the_same() -> None:
    """Because of a residual that no earlier call left."""
    drawn = []

    class Noisy(fxforms.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, noisy: bool) -> Tensor:
            noise = torch.rand(()).double() if noisy else torch.ones(())
            drawn.append(noise)
            ctx.save_for_backward(noise if noisy else x)
            return noise * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            return g * ctx.saved_tensors[0], None

    fxforms.grad(lambda x: Noisy.apply(x, False).sum())(X)
    drawn.clear()
    state = torch.get_rng_state()
    slope, value = fxforms.grad_and_value(lambda x: Noisy.apply(x, True).sum())(X)
    assert len(drawn) == 2
    torch.set_rng_state(state)
    noise = torch.rand(()).double()
    assert_close(slope, noise.expand(2, 3))
    assert_close(value, noise * X.sum())


def test_a_residual_after_a_change_in_place_is_refused() -> None:
    """The body cannot run again on an input that it has changed."""

    class Doubled(fxforms.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, residual: bool) -> Tensor:
            ctx.mark_dirty(x)
            if residual:
                ctx.save_for_backward(torch.full_like(x, 2))
            return x.mul_(2)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            return 2 * g, None

    def f(x: Tensor, residual: bool) -> Tensor:
        return Doubled.apply(x.clone(), residual).sum()

    assert_close(fxforms.grad(f)(X, False), torch.full_like(X, 2))
    with pytest.raises(RuleError, match="Doubled changed its input in place, and what it left"):
        fxforms.grad(f)(X, True)


@pytest.mark.parametrize("program", ["vmap(grad)", "vmap(jvp)", "vmap(vmap(grad))"])
def test_a_body_that_turns_out_not_to_map(program: str) -> None:
    """It is looped over, with one warning, though it was tried at the level of the call."""

    class Numbers(fxforms.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, numpy: bool) -> Tensor:
            ctx.save_for_backward(x)
            return torch.as_tensor(x.numpy() ** 3) if numpy else x**3

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            return g * 3 * ctx.saved_tensors[0] ** 2, None

    build, expected = PROGRAMS[program]
    fxforms.grad(lambda x: Numbers.apply(x, False).sum())(X)
    assert_close(build(lambda x: Numbers.apply(x, False))(X), expected)
    with pytest.warns(fxforms.UnmappableWarning) as warned:
        results = [build(lambda x: Numbers.apply(x, True))(X) for _ in range(2)]
    assert len(warned) == 1
    assert_close(results, [expected] * 2)


def test_no_derivation_where_the_class_forbids_it() -> None:
    """Under vmap(grad) the body would run on a batch, which is deriving a vmap rule."""
    op = cube_class(False)
    op.vmap_method = "error"
    assert_close(fxforms.grad(summed(op.apply))(X), FIRST)
    with pytest.raises(RuleError, match='vmap_method = "error"'):
        fxforms.vmap(fxforms.grad(summed(op.apply)))(X)
