"""Rules that find a tensor of a transform elsewhere than among their arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from oracle import vec
from torch import Tensor
from torch.testing import assert_close
from unary import PROGRAMS, Op, all_of, check

import fxforms
from fxforms.errors import UnsupportedError

REFUSED = r"closes over a tensor of a transform .* argument"


class Holder:
    def __init__(self, a: Tensor) -> None:
        self.a = a

    def scale(self, y: Tensor) -> Tensor:
        return y * self.a


def scaled_by(read: Callable[[], Tensor]) -> Op:
    """``y * read()``, by rules that read."""
    scale = fxforms.custom_vjp(lambda y: y * read())
    scale.defvjp(lambda y: (y * read(), None), lambda _, ct: (ct * read(),))
    return scale  # type: ignore[no-any-return]


def in_a_dict(a: Tensor) -> Op:
    kept = {"a": [a]}
    return scaled_by(lambda: kept["a"][0])


def in_an_object(a: Tensor) -> Op:
    holder = Holder(a)
    return scaled_by(lambda: holder.a)


def in_a_default(a: Tensor) -> Op:
    return scaled_by(lambda a=a: a)  # type: ignore[misc]


def in_a_keyword_default(a: Tensor) -> Op:
    return scaled_by(lambda *, a=a: a)  # type: ignore[misc]


def in_a_module(a: Tensor) -> Op:
    module = torch.nn.Module()
    module.a = a
    return scaled_by(lambda: module.a)


def in_a_method(a: Tensor) -> Op:
    method = Holder(a).scale
    return fxforms.linear_function(method, method)


def in_a_partial(a: Tensor) -> Op:
    times = functools.partial(torch.mul, a)
    return fxforms.linear_function(times, times)


def in_a_function_of_a_function(a: Tensor) -> Op:
    one = lambda: a  # noqa: E731
    two = lambda: one()  # noqa: E731
    three = lambda: two()  # noqa: E731
    four = lambda: three()  # noqa: E731
    return scaled_by(lambda: four())


HELD: dict[str, Callable[[Tensor], Op]] = {
    name: made for name, made in sorted(globals().items()) if name.startswith("in_a")
}


@pytest.mark.parametrize(("case", "program"), all_of(HELD))
def test_a_traced_tensor_is_found(case: str, program: str) -> None:
    with pytest.raises(UnsupportedError, match=REFUSED):
        PROGRAMS[program](fxforms, lambda x: HELD[case](x.sin())(x), vec(3))


@pytest.mark.parametrize("case", HELD)
def test_a_plain_tensor_is_a_constant(case: str) -> None:
    a = vec(3)
    for program in PROGRAMS:
        check(program, HELD[case](a), lambda x: x * a)


def test_objects_that_hold_each_other() -> None:
    first, second = Holder(vec(3)), Holder(vec(3))
    first.other, second.other = second, first  # type: ignore[attr-defined]
    check("vmap_grad", scaled_by(lambda: first.other.a), lambda x: x * second.a)  # type: ignore[attr-defined]


def batched_with(a: Tensor) -> Any:
    @fxforms.custom_vmap
    def scale(y: Tensor) -> Tensor:
        return y * a

    scale.def_vmap(lambda size, batched, y: (y * a, True))
    return scale


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_batch_rule(program: str) -> None:
    """Right where no level maps, for the body is then recorded as any function's."""
    op = lambda x: batched_with(x.sin())(x)  # noqa: E731
    if "vmap" not in program:
        return check(program, op, lambda x: x * x.sin())
    with pytest.raises(UnsupportedError, match=REFUSED):
        PROGRAMS[program](fxforms, op, vec(3))
    return None


def _fixed(decorator: Any) -> Any:
    return decorator(lambda x, y: x.sin() * y, nondiff_argnums=(1,))


def _fixed_vjp() -> Op:
    scale = _fixed(fxforms.custom_vjp)
    scale.defvjp(lambda x, y: (x.sin() * y, x), lambda y, x, ct: (x.cos() * y * ct,))
    return lambda x: scale(x, x)  # type: ignore[no-any-return]


def _fixed_jvp() -> Op:
    scale = _fixed(fxforms.custom_jvp)
    scale.defjvp(lambda y, p, t: (p[0].sin() * y, p[0].cos() * y * t[0]))
    return lambda x: scale(x, x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("make", "program"), all_of([_fixed_vjp, _fixed_jvp]))
def test_a_traced_tensor_of_nondiff_argnums_is_a_constant(make: Any, program: str) -> None:
    """At every order, as in JAX, where ``custom_jvp`` stops the gradient there."""
    check(program, make(), lambda x: x.sin() * x.detach())


def test_a_tree_of_nondiff_argnums() -> None:
    scale = fxforms.custom_vjp(lambda x, d: x * d["k"], nondiff_argnums=(1,))
    scale.defvjp(lambda x, d: (x * d["k"], None), lambda d, _, ct: (ct * d["k"],))
    x = vec(3)
    assert_close(fxforms.grad(lambda x: scale(x, {"k": x, "name": "n"}).sum())(x), x)
