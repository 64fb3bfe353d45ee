"""``jvp``: tangents, structures, constants and nesting."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from custom import Cube, Keep, Product
from oracle import finite_jacobian, vec
from torch import Tensor
from torch.autograd import forward_ad
from torch.testing import assert_close

import fxforms
from fxforms import _substrate as substrate

F64 = torch.float64


def is_plain(tensor: Tensor) -> bool:
    """True if no wrapper of any level is around ``tensor``."""
    return substrate.level_of(tensor) == -1 and substrate.unwrap_if_dead(tensor) is tensor


def test_against_finite_differences() -> None:
    x, w, t = vec(4), vec(3, 4), vec(4)
    f = lambda x: (w @ x).tanh() / (1 + x @ x)  # noqa: E731
    output, tangent = fxforms.jvp(f, (x,), (t,))
    assert_close(output, f(x))
    assert_close(tangent, finite_jacobian(f, x) @ t, rtol=1e-6, atol=1e-8)


def test_structures_in_and_out() -> None:
    x, y, t = vec(3), vec(3), vec(3)
    f = lambda p, q: {"s": p["a"] * q[0], "t": [q[0] ** 2]}  # noqa: E731
    output, tangent = fxforms.jvp(f, ({"a": x}, (y,)), ({"a": t}, (x,)))
    assert_close(output, {"s": x * y, "t": [y**2]})
    assert_close(tangent, {"s": t * y + x * x, "t": [2 * y * x]})


def test_has_aux() -> None:
    x = vec(3)
    output, tangent, aux = fxforms.jvp(lambda x: (x**2, (x + 1, 7)), (x,), (x,), has_aux=True)
    assert_close((output, tangent, aux[0]), (x**2, 2 * x * x, x + 1))
    assert aux[1] == 7


CONSTANTS = {
    "new": lambda x, y: torch.ones(2, dtype=F64),
    "captured": lambda x, y: y,
    "captured through a Function": lambda x, y: Cube.apply(y),
    "integer": lambda x, y: (x > 0).long(),
    "detached": lambda x, y: x.detach(),
}


@pytest.mark.parametrize("name", CONSTANTS)
@pytest.mark.parametrize("outer", ["", "jvp", "grad", "vmap"])
def test_a_constant_output_has_tangent_zero(name: str, outer: str) -> None:
    x, y = vec(3), vec(3)
    f = CONSTANTS[name]
    inner = lambda x: fxforms.jvp(lambda x: f(x, y), (x,), (y,))  # noqa: E731
    if outer == "jvp":
        output, tangent = fxforms.jvp(inner, (x,), (y,))[0]
    elif outer == "grad":
        output, tangent = fxforms.grad(lambda x: (x.sum(), inner(x)), has_aux=True)(x)[1]
    elif outer == "vmap":
        output, tangent = fxforms.vmap(inner)(torch.stack([x, x]))
        assert_close(output, torch.stack([f(x, y)] * 2))
        assert is_plain(tangent)
        assert_close(tangent, torch.zeros_like(output))
        return
    else:
        output, tangent = inner(x)
    assert_close(output, f(x, y))
    assert is_plain(tangent)
    assert_close(tangent, torch.zeros_like(output))


@pytest.mark.parametrize(
    "inner",
    [
        lambda u, v: u,
        lambda u, v: u * 1,
        lambda u, v: Cube.apply(u),
        lambda u, v: Keep.apply(u, v)[0],
        lambda u, v: Product.apply(u, v) * 0 + u,
    ],
)
def test_the_perturbation_of_an_outer_level_is_not_taken_for_the_inner(inner: Any) -> None:
    u, v = vec(), vec()
    tangent = lambda u: fxforms.jvp(lambda v: inner(u, v), (v,), (v,))[1]  # noqa: E731
    output, outer = fxforms.jvp(tangent, (u,), (v,))
    assert_close((output * 1, outer * 1), (torch.zeros_like(u), torch.zeros_like(u)))


def test_strict_accepts_what_depends_on_the_primals() -> None:
    x = vec(3)
    assert_close(fxforms.jvp(Cube.apply, (x,), (x,), strict=True)[1], 3 * x**3)


def test_in_place_changes_inside_the_function() -> None:
    def f(x: Tensor) -> Tensor:
        y = x.clone()
        y[1:].mul_(x[1:])
        return y

    x, t = vec(3), vec(3)
    scale = torch.tensor([1, 0, 0], dtype=F64) + torch.tensor([0, 2, 2], dtype=F64) * x
    assert_close(fxforms.jvp(f, (x,), (t,))[1], scale * t)


def test_complex_tangents() -> None:
    z, t = [torch.randn(3, dtype=torch.complex128) for _ in range(2)]
    _, tangent = fxforms.jvp(lambda z: z * z.conj() + z**2, (z,), (t,))
    assert_close(tangent, t * z.conj() + z * t.conj() + 2 * z * t)


def test_order_four_of_a_function() -> None:
    def derivative(f: Any) -> Any:
        return lambda x: fxforms.jvp(f, (x,), (torch.ones_like(x),))[1]

    x = vec(3)
    assert_close(derivative(derivative(derivative(Cube.apply)))(x), torch.full((3,), 6.0).double())
    fourth = derivative(derivative(derivative(derivative(lambda x: Cube.apply(x) * x.sin()))))
    expected = x**3 * x.sin() - 12 * x**2 * x.cos() - 36 * x * x.sin() + 24 * x.cos()
    assert_close(fourth(x), expected)


def test_inside_an_open_dual_level_of_torch() -> None:
    w, v = vec(3), vec(3)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(w, torch.ones_like(w))
        output, tangent = fxforms.jvp(lambda x: Product.apply(dual, x) * x, (v,), (v,))
        assert_close(forward_ad.unpack_dual(output).tangent, v * v)
        assert_close(forward_ad.unpack_dual(tangent).tangent, 2 * v * v)
    with forward_ad.dual_level():  # and the level can be opened again
        pass


def test_forward_mode_switched_off_outside() -> None:
    x = vec(3)
    with forward_ad._set_fwd_grad_enabled(False):
        assert_close(fxforms.jvp(Cube.apply, (x,), (x,))[1], 3 * x**3)
