"""Tensors that plain autograd follows, used by a decorated function that was not given them."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import oracle
import pytest
import torch
from oracle import vec
from torch import Tensor
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves
from unary import PROGRAMS

import fxforms
from fxforms.errors import UnsupportedError

Op = Callable[[Tensor], Tensor]
REFUSED = "that it closes over, and its rules give no derivative by it"
weight = vec(3).requires_grad_()


def wave(x: Tensor, w: Tensor) -> Tensor:
    return (x * w).sin()


def by_vjp(read: Callable[[], Tensor]) -> Op:
    op = fxforms.custom_vjp(lambda x: wave(x, read()))
    op.defvjp(
        lambda x: (wave(x, read()), x * read()),
        lambda saved, ct: (saved.cos() * read() * ct,),
    )
    return op  # type: ignore[no-any-return]


def by_jvp(read: Callable[[], Tensor]) -> Op:
    op = fxforms.custom_jvp(lambda x: wave(x, read()))
    op.defjvps(lambda t, _, x: (x * read()).cos() * read() * t)
    return op  # type: ignore[no-any-return]


def by_transpose(read: Callable[[], Tensor]) -> Op:
    return fxforms.linear_function(lambda x: x * read(), lambda ct: ct * read())


def by_batch(read: Callable[[], Tensor]) -> Op:
    op = fxforms.custom_vmap(lambda x: wave(x, read()))
    op.def_vmap(lambda size, batched, x: (wave(x, read()), True))
    return op  # type: ignore[no-any-return]


PLAIN: dict[Callable[[Callable[[], Tensor]], Op], Callable[[Tensor, Tensor], Tensor]] = {
    by_vjp: wave,
    by_jvp: wave,
    by_transpose: torch.mul,
    by_batch: wave,
}


def gradient_of(output: Any, w: Tensor) -> Tensor | None:
    """The gradient by ``w`` of a program's outputs, by ``.backward()``."""
    w.grad = None
    for number, each in enumerate(tree_leaves(output), 1):
        if each.requires_grad:
            (number * each.sin()).sum().backward(retain_graph=True)
    return w.grad


@pytest.mark.parametrize("program", ["call", *PROGRAMS])
@pytest.mark.parametrize("make", PLAIN)
def test_right_or_refused(make: Any, program: str) -> None:
    w, x = vec(3).requires_grad_(), vec(3)
    run = PROGRAMS.get(program, lambda T, f, x: f(x))
    expected = gradient_of(run(oracle, lambda x: PLAIN[make](x, w), x), w)
    values = run(oracle, lambda x: PLAIN[make](x, w.detach()), x)
    output = run(fxforms, make(lambda: w), x)
    assert_close(output, values, check_stride=False)
    try:
        assert_close(gradient_of(output, w), expected)
    except UnsupportedError as error:
        assert REFUSED in str(error)  # noqa: PT017 (either is fine, silence is not)
        assert make is not by_batch


@pytest.mark.parametrize("make", [by_vjp, by_jvp, by_transpose])
def test_plain_backward_is_refused(make: Any) -> None:
    w = vec(3).requires_grad_()
    for x in (vec(3), vec(3).requires_grad_()):
        with pytest.raises(UnsupportedError, match=REFUSED):
            make(lambda: w)(x).sum().backward()


@pytest.mark.parametrize("make", [by_vjp, by_jvp, by_transpose])
def test_a_gradient_by_the_arguments_does_not_ask(make: Any) -> None:
    w, x = vec(3).requires_grad_(), vec(3).requires_grad_()
    expected = torch.autograd.grad(PLAIN[make](x, w).sum(), x)
    assert_close(torch.autograd.grad(make(lambda: w)(x).sum(), x), expected)
    found = fxforms.grad(lambda x: make(lambda: w)(x).sum())(x.detach())
    assert_close(found.detach(), expected[0])


@pytest.mark.parametrize("make", [by_vjp, by_jvp, by_transpose])
def test_a_constant_is_not_refused(make: Any) -> None:
    w, x = vec(3).requires_grad_(), vec(3).requires_grad_()
    for read in (lambda: w.detach(), lambda: torch.ones_like(w), lambda: w.data):
        x.grad = w.grad = None
        make(read)(x).sum().backward()
        assert w.grad is None
        assert_close(x.grad, torch.autograd.grad(PLAIN[make](x, read()).sum(), x)[0])
    with torch.no_grad():
        assert not make(lambda: w)(x).requires_grad


USES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "inside grad": lambda x, w: x * fxforms.grad(lambda v: (v**2).sum())(w),
    "inside torch's grad": lambda x, w: x * torch.func.grad(lambda v: (v**2).sum())(w),
    "inside a second derivative": lambda x, w: x * fxforms.hessian(lambda v: (v**3).sum())(w)[0],
    "inside vmap": lambda x, w: x * fxforms.vmap(lambda v: v**2)(w),
    "inside torch's vmap": lambda x, w: x * torch.vmap(lambda v: v**2)(w),
    "expanded": lambda x, w: x * w.expand_as(x),
    "viewed": lambda x, w: x * w.view_as(x),
    "written": lambda x, w: torch.zeros_like(x).index_put_((torch.arange(3),), w),
    "set": lambda x, w: put(torch.zeros_like(x), w),
}


def put(into: Tensor, x: Tensor) -> Tensor:
    into[:] = x
    return into


@pytest.mark.parametrize("use", USES)
def test_each_use_is_refused(use: str) -> None:
    w = vec(3).requires_grad_()
    op = fxforms.custom_jvp(lambda x: USES[use](x, w))
    op.defjvps(lambda t, _, x: t)
    with pytest.raises(UnsupportedError, match=REFUSED):
        op(vec(3).requires_grad_()).sum().backward()


@pytest.mark.parametrize(
    "read",
    [
        lambda w: torch.ones(w.shape).double(),
        lambda w: torch.ones(w.size()).double(),
        lambda w: torch.tensor(w.tolist()).double(),
        lambda w: torch.arange(3).double().expand_as(w),
        lambda w: w.new_ones(3),
    ],
)
def test_shapes_and_numbers_are_not_refused(read: Callable[[Tensor], Tensor]) -> None:
    w, x = vec(3).requires_grad_(), vec(3).requires_grad_()
    by_jvp(lambda: read(w))(x).sum().backward()
    assert_close(x.grad, torch.autograd.grad(wave(x, read(w)).sum(), x)[0])
    assert w.grad is None


class Slots:
    __slots__ = ("weight",)

    def __init__(self, w: Tensor) -> None:
        self.weight = w


HOLDERS: dict[Callable[[Tensor], Any], Callable[[Any], Tensor]] = {
    Slots: lambda holder: holder.weight,
    lambda w: deque([w]): lambda holder: holder[0],
    lambda w: MappingProxyType({0: w}): lambda holder: holder[0],
    lambda w: {w: 0}: lambda holder: next(iter(holder)),
    lambda w: [*range(2000), Slots(w)]: lambda holder: holder[-1].weight,
}


@pytest.mark.parametrize("hold", HOLDERS)
def test_in_objects_of_other_kinds(hold: Callable[[Tensor], Any]) -> None:
    holder, read = hold(vec(3).requires_grad_()), HOLDERS[hold]
    with pytest.raises(UnsupportedError, match=REFUSED):
        by_vjp(lambda: read(holder))(vec(3).requires_grad_()).sum().backward()


@pytest.mark.parametrize("hold", HOLDERS)
def test_in_objects_of_other_kinds_inside_a_transform(hold: Callable[[Tensor], Any]) -> None:
    read, x = HOLDERS[hold], vec(3)

    def loss(w: Tensor) -> Tensor:
        holder = hold(w)
        return by_vjp(lambda: read(holder))(x).sum()

    with pytest.raises(UnsupportedError, match="closes over"):
        fxforms.grad(loss)(vec(3))


def scaled(x: Tensor) -> Tensor:
    return x * weight


def test_a_global_of_a_function_that_is_called() -> None:
    op = fxforms.custom_jvp(lambda x: scaled(x))
    op.defjvps(lambda t, _, x: t * weight)
    with pytest.raises(UnsupportedError, match=REFUSED):
        op(vec(3)).sum().backward()


def power(x: Tensor, n: int) -> Tensor:
    return x if n == 0 else weight * power(x, n - 1)


def test_a_global_of_a_function_that_calls_itself() -> None:
    op = fxforms.custom_jvp(lambda x: power(x, 2))
    op.defjvps(lambda t, _, x: t * weight**2)
    with pytest.raises(UnsupportedError, match=REFUSED):
        op(vec(3)).sum().backward()


def test_a_function_that_is_replaced_is_not_kept() -> None:
    helper: Callable[[], Tensor] | None = lambda: vec(3)  # noqa: E731

    def body(x: Tensor) -> Tensor:
        assert helper is not None
        return wave(x, helper())

    op = fxforms.custom_jvp(body)
    op.defjvps(lambda t, _, x: (x * vec(3)).cos() * vec(3) * t)
    op(vec(3).requires_grad_())
    gone = weakref.ref(helper)
    helper = None
    assert gone() is None


class Scale(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(vec(3))

    @fxforms.custom_vjp
    def scale(self, x: Tensor) -> Tensor:
        return x * self.weight

    @staticmethod
    def fixed(module: Scale, x: Tensor) -> Tensor:
        return x * module.weight


Scale.scale.defvjp(lambda m, x: (x * m.weight, m.weight), lambda w, ct: (None, w * ct))


def test_a_pytree_inside_a_transform() -> None:
    w, x = vec(3).requires_grad_(), vec(3)
    op = fxforms.custom_jvp(lambda d: wave(d["x"], w.detach()))
    op.defjvps(lambda t, _, d: (d["x"] * w.detach()).cos() * w.detach() * t["x"])
    found = fxforms.grad(lambda x: op({"x": x}).sum())(x)
    assert_close(found.detach(), ((x * w).cos() * w).detach())


def test_the_parameters_of_self() -> None:
    module = Scale()
    with pytest.raises(UnsupportedError, match=REFUSED):
        module.scale(vec(3)).sum().backward()


def test_a_module_of_nondiff_argnums_is_a_constant() -> None:
    module, x = Scale(), vec(3).requires_grad_()
    fixed = fxforms.custom_jvp(Scale.fixed, nondiff_argnums=(0,))
    fixed.defjvp(lambda m, p, t: (None, t[0] * m.weight))
    fixed(module, x).sum().backward()
    assert_close(x.grad, module.weight.detach())
    assert module.weight.grad is None


def test_a_parameter_that_is_passed_too() -> None:
    """As a solver does, which takes a module's parameters and calls the module with them."""
    module, x = torch.nn.Linear(3, 3).double(), vec(3)

    def run(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(module, {"weight": w, "bias": b}, (x,))
        return out

    op = fxforms.custom_vjp(lambda x, w, b: run(x, w, b))
    op.defvjp(lambda *args: (run(*args), args), lambda saved, ct: fxforms.vjp(run, *saved)[1](ct))
    op(x, module.weight, module.bias).sin().sum().backward()
    found = [p.grad for p in module.parameters()]
    module.zero_grad()
    module(x).sin().sum().backward()
    assert_close(found, [p.grad for p in module.parameters()])


def test_a_tangent_of_plain_forward_mode() -> None:
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(vec(3), vec(3))
        with pytest.raises(UnsupportedError, match=REFUSED):
            by_jvp(lambda: dual)(vec(3))
