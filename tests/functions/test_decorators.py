"""``custom_vjp``, ``custom_jvp`` and ``linear_function``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from oracle import vec
from torch import Tensor
from torch.testing import assert_close
from unary import PROGRAMS, Op, all_of, check

import fxforms
from fxforms import custom_jvp, custom_vjp, linear_function
from fxforms.errors import FxformsError, UnsupportedError


def with_vjp(fun: Any, fwd: Any, bwd: Any, **more: Any) -> Any:
    decorated = custom_vjp(fun, **more)
    decorated.defvjp(fwd, bwd)
    return decorated


def with_jvp(fun: Any, rule: Any, **more: Any) -> Any:
    decorated = custom_jvp(fun, **more)
    decorated.defjvp(rule)
    return decorated


def with_jvps(fun: Any, *rules: Any, **more: Any) -> Any:
    decorated = custom_jvp(fun, **more)
    decorated.defjvps(*rules)
    return decorated


_product = with_vjp(
    lambda x, y: x**2 * y,
    lambda x, y: (x**2 * y, (x, y)),
    lambda saved, ct: (2 * saved[0] * saved[1] * ct, saved[0] ** 2 * ct),
)
_sine = with_vjp(
    lambda x: x.sin(),
    lambda x: (x.sin(), {"cosine": x.cos(), "sign": 1}),
    lambda saved, ct: (saved["sign"] * saved["cosine"] * ct,),
)
_square_of = with_vjp(
    lambda f, x: f(x) ** 2,
    lambda f, x: (f(x) ** 2, x),
    lambda f, x, ct: (2 * f(x) * fxforms.vjp(f, x)[1](ct)[0],),
    nondiff_argnums=(0,),
)
_tree = with_vjp(
    lambda d: (d["a"] * 2, [d["b"].exp()]),
    lambda d: ((d["a"] * 2, [d["b"].exp()]), d["b"].exp()),
    lambda saved, ct: ({"a": 2 * ct[0], "b": ct[1][0] * saved},),
)
_power = with_jvps(
    lambda x, n, y: x**n * y,
    lambda t, out, x, n, y: n * x ** (n - 1) * y * t,
    None,
    lambda t, out, x, n, y: x**n * t,
)
_power_fixed = with_jvp(
    lambda x, n, y: x**n * y,
    lambda n, p, t: (None, n * p[0] ** (n - 1) * p[1] * t[0] + p[0] ** n * t[1]),
    nondiff_argnums=(1,),
)
_both = with_jvp(
    lambda x, y: {"u": x * y, "v": [x.sin()]},
    lambda p, t: (
        {"u": p[0] * p[1], "v": [p[0].sin()]},
        {"u": t[0] * p[1] + p[0] * t[1], "v": [p[0].cos() * t[0]]},
    ),
)
_linear = linear_function(
    lambda d: (d["a"] * 2, d["b"] + d["a"]),
    lambda ct: {"a": 2 * ct[0] + ct[1], "b": ct[1]},
)


def _of_tree(x: Tensor) -> Tensor:
    first, (second,) = _tree({"a": x, "b": x.sin()})
    return first * second


def _of_both(x: Tensor) -> Tensor:
    out = _both(x, y=x.exp())
    return out["u"] * out["v"][0]


def _of_linear(x: Tensor) -> Tensor:
    first, second = _linear({"a": x, "b": x.exp()})
    return first * second


RIGHT: dict[str, tuple[Op, Op]] = {
    "custom_vjp": (lambda x: _product(x, x.sin()), lambda x: x**2 * x.sin()),
    "custom_vjp by keyword": (lambda x: _product(y=x.sin(), x=x), lambda x: x**2 * x.sin()),
    "custom_vjp residuals": (_sine, torch.sin),
    "custom_vjp of a function": (lambda x: _square_of(torch.sin, x), lambda x: x.sin() ** 2),
    "custom_vjp trees": (_of_tree, lambda x: 2 * x * x.sin().exp()),
    "defjvps": (lambda x: _power(x, 2, x.exp()), lambda x: x**2 * x.exp()),
    "defjvp nondiff": (lambda x: _power_fixed(x, 2, x.exp()), lambda x: x**2 * x.exp()),
    "defjvp trees": (_of_both, lambda x: x * x.exp() * x.sin()),
    "linear_function": (_of_linear, lambda x: 2 * x * (x + x.exp())),
}


@pytest.mark.parametrize(("case", "program"), all_of(RIGHT))
def test_rules_by_decorator(case: str, program: str) -> None:
    check(program, *RIGHT[case])


def test_the_given_rule_is_used() -> None:
    """A rule on purpose other than the derivative."""
    x = vec(3)
    clipped = with_vjp(lambda x: x**2, lambda x: (x**2, x), lambda x, ct: ((2 * x * ct) * 10,))
    pushed = with_jvp(lambda x: x**2, lambda p, t: (p[0] ** 2, 7 * t[0]))
    linear = linear_function(lambda x: 2 * x, lambda ct: 5 * ct)
    for f, slope, tangent in (
        (clipped, 20 * x, 20 * x),
        (pushed, 7 + 0 * x, 7 + 0 * x),
        (linear, 5 + 0 * x, 2 + 0 * x),
    ):
        assert_close(fxforms.grad(lambda x, f=f: f(x).sum())(x), slope)
        assert_close(fxforms.jvp(f, (x,), (torch.ones_like(x),))[1], tangent)
        leaf = x.clone().requires_grad_()
        assert_close(torch.autograd.grad(f(leaf).sum(), leaf)[0], slope)


# Each decorator, with rules that close over ``a``.
CLOSURES: dict[str, Callable[[Tensor], Op]] = {
    "custom_vjp": lambda a: with_vjp(
        lambda y: y * a, lambda y: (y * a, ()), lambda r, ct: (ct * a,)
    ),
    "custom_jvp": lambda a: with_jvp(lambda y: y * a, lambda p, t: (p[0] * a, t[0] * a)),
    "linear_function": lambda a: linear_function(lambda y: y * a, lambda ct: ct * a),
}
REFUSED = r"closes over a tensor of a transform .* argument"


@pytest.mark.parametrize(("case", "program"), all_of(CLOSURES))
def test_a_traced_tensor_in_a_closure_is_refused(case: str, program: str) -> None:
    with pytest.raises(UnsupportedError, match=REFUSED):
        PROGRAMS[program](fxforms, lambda x: CLOSURES[case](x.sin())(x), vec(3))


@pytest.mark.parametrize("case", CLOSURES)
@pytest.mark.parametrize("program", ["vmap", "grad", "jvp"])
def test_a_tensor_of_an_outer_level_in_a_closure_is_refused(case: str, program: str) -> None:
    op = lambda x: fxforms.grad(lambda y: CLOSURES[case](x.sin())(y).sum())(x)  # noqa: E731
    with pytest.raises(UnsupportedError, match=REFUSED):
        PROGRAMS[program](fxforms, op, vec(3))


@pytest.mark.parametrize("case", CLOSURES)
def test_a_plain_tensor_in_a_closure_is_a_constant(case: str) -> None:
    a = vec(3)
    for program in PROGRAMS:
        check(program, CLOSURES[case](a), lambda x: x * a)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_traced_tensor_in_an_argument_that_is_a_function(program: str) -> None:
    """Right, or an error of fxforms that says to pass it as an argument."""

    def op(x: Tensor) -> Tensor:
        a = x.sin()
        return _square_of(lambda y: y * a, x)

    try:
        check(program, op, lambda x: (x * x.sin()) ** 2)
    except FxformsError as error:
        seen = str(error)
    else:
        return
    assert "argument" in seen


def _cumsum(x: Tensor) -> Tensor:
    return torch.from_numpy(np.cumsum(x.detach().numpy()))


def _cumsum_transposed(ct: Tensor) -> Tensor:
    return torch.from_numpy(np.cumsum(ct.detach().numpy()[::-1])[::-1].copy())


@pytest.mark.filterwarnings("ignore::fxforms.UnmappableWarning")
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_linear_function_outside_torch_has_every_derivative(program: str) -> None:
    """Both maps are linear, and each is the transpose of the other."""
    check(program, linear_function(_cumsum, _cumsum_transposed), lambda x: x.cumsum(0))


def test_jvps_without_any_rule() -> None:
    constant = with_jvps(lambda x, y: x * y, None, None)
    x = vec(3)
    assert_close(fxforms.jvp(lambda x: constant(x, x), (x,), (x,))[1], torch.zeros(3).double())


def test_jvps_beside_nondiff_argnums() -> None:
    """As in JAX: one rule for each differentiable argument."""
    power = with_jvps(
        lambda x, n: x**n, lambda t, out, x, n: n * x ** (n - 1) * t, nondiff_argnums=(1,)
    )
    fixed_first = with_jvps(
        lambda n, x: x**n, lambda t, out, n, x: n * x ** (n - 1) * t, nondiff_argnums=(0,)
    )
    x = vec(3)
    assert_close(fxforms.grad(lambda x: power(x, 3).sum())(x), 3 * x**2)
    assert_close(fxforms.grad(lambda x: fixed_first(3, x).sum())(x), 3 * x**2)


def test_defaults_and_any_number_of_arguments() -> None:
    scaled = with_vjp(lambda x, k=3.0: x * k, lambda x, k: (x * k, k), lambda k, ct: (ct * k, None))
    added = with_vjp(lambda *xs: sum(xs), lambda *xs: (sum(xs), None), lambda _, ct: (ct, 2 * ct))
    x = vec(3)
    assert_close(fxforms.grad(lambda x: scaled(x).sum())(x), torch.full((3,), 3.0).double())
    assert_close(fxforms.grad(lambda x: scaled(x, k=4).sum())(x), torch.full((3,), 4.0).double())
    assert_close(fxforms.grad(lambda x: added(x, x).sum())(x), torch.full((3,), 3.0).double())


def test_a_decorated_function_looks_like_the_function() -> None:
    @custom_vjp
    def softened(x: Tensor) -> Tensor:
        """Its docstring."""
        return x

    @functools.partial(custom_jvp, nondiff_argnums=(0,))
    def raised(n: int, x: Tensor) -> Tensor:
        """Another."""
        return x**n

    assert (softened.__name__, softened.__doc__) == ("softened", "Its docstring.")
    assert (raised.__name__, raised.__doc__) == ("raised", "Another.")
    assert linear_function(softened.fun, lambda ct: ct).__name__ == "softened"


def test_a_decorated_method() -> None:
    class Model:
        scale = 3.0

        @custom_vjp
        def square(self, x: Tensor) -> Tensor:
            return self.scale * x**2

        square.defvjp(
            lambda self, x: (self.scale * x**2, (self, x)),
            lambda saved, ct: (None, 2 * saved[0].scale * saved[1] * ct),
        )

    x = vec(3)
    assert_close(fxforms.grad(lambda x: Model().square(x).sum())(x), 6 * x)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_torch_function_is_decorated(program: str) -> None:
    """Though Python knows no signature of it."""
    sine = with_vjp(torch.sin, lambda x: (x.sin(), x), lambda x, ct: (ct * x.cos(),))
    pushed = with_jvp(torch.sin, lambda p, t: (p[0].sin(), p[0].cos() * t[0]))
    check(program, sine, torch.sin)
    check(program, pushed, torch.sin)
