"""Containers in and out of ``apply``: gradients reach every tensor, in the structure given."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from oracle import vec
from torch import Tensor
from torch.testing import assert_close
from torch.utils import _pytree as pytree
from unary import PROGRAMS, Op, all_of, check, function, rows

import fxforms
from fxforms.errors import GradientError, StructureError


class Pair(NamedTuple):
    a: Tensor
    b: Tensor


@dataclasses.dataclass
class Registered:
    a: Tensor
    b: Tensor


@dataclasses.dataclass
class Unregistered:
    a: Tensor
    b: Tensor


pytree.register_dataclass(Registered)


def plain(x: Tensor) -> Tensor:
    return x.sin() * 2 * x.exp()


def mixed(build: Callable[[Tensor, Tensor], Any], take: Callable[[Any], Any]) -> Op:
    """``sin(a) * 2b`` of the container that ``build`` makes of ``(x, exp(x))``."""

    def forward(ctx: Any, data: Any) -> Tensor:
        a, b = take(data)
        ctx.save_for_backward(a, b)
        return a.sin() * 2 * b

    def backward(ctx: Any, g: Tensor) -> Any:
        a, b = ctx.saved_tensors
        gradient = build(2 * b * a.cos() * g, 2 * a.sin() * g)
        return (gradient,) if isinstance(gradient, tuple) else gradient

    op = function("Mixed", forward=forward, backward=backward)
    return lambda x: op.apply(build(x, x.exp()))


CONTAINERS: dict[str, Op] = {
    "dict": mixed(lambda a, b: {"a": a, "b": b}, lambda d: (d["a"], d["b"])),
    "list": mixed(lambda a, b: [a, b], lambda d: d),
    "tuple": mixed(lambda a, b: (a, b), lambda d: d),
    "nested": mixed(lambda a, b: {"a": [a, (b,)]}, lambda d: (d["a"][0], d["a"][1][0])),
    "ordered dict": mixed(
        lambda a, b: OrderedDict([("z", a), ("y", b)]), lambda d: (d["z"], d["y"])
    ),
    "named tuple": mixed(Pair, lambda d: d),
    "dataclass registered with torch": mixed(Registered, lambda d: (d.a, d.b)),
    "dataclass": mixed(Unregistered, lambda d: (d.a, d.b)),
}
SEEN = [name for name in CONTAINERS if name != "dataclass"]


@pytest.mark.parametrize(("case", "program"), all_of(SEEN))
def test_a_container(case: str, program: str) -> None:
    check(program, CONTAINERS[case], plain)


@pytest.mark.parametrize("program", ["grad", "vmap_grad", "jvp", "grad_grad"])
def test_a_dataclass_that_torch_does_not_know_is_refused(program: str) -> None:
    """Its tensors would not be seen; the message says how to register it."""
    with pytest.raises(StructureError, match=r"register_dataclass\(Unregistered\)"):
        check(program, CONTAINERS["dataclass"], plain)


def test_plain_autograd_reaches_into_containers() -> None:
    for case in SEEN:
        x = vec(3).requires_grad_()
        (actual,) = torch.autograd.grad(CONTAINERS[case](x).sum(), x)
        assert_close(actual, torch.autograd.grad(plain(x).sum(), x)[0], msg=case)


def weighted(gradient: Callable[[Tensor, Tensor], Any], **more: Any) -> Any:
    """``sin(a) + 2b`` of a dict, whose backward returns ``gradient(to_a, to_b)``."""

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0]["a"])

    return function(
        "Weighted",
        forward=lambda d: d["a"].sin() + 2 * d["b"],
        setup_context=setup_context,
        backward=lambda ctx, g: gradient(g * ctx.saved_tensors[0].cos(), 2 * g),
        **more,
    )


@pytest.mark.parametrize("program", ["grad", "vmap_grad", "grad_vmap", "jvp", "grad_grad"])
def test_a_gradient_dict_is_matched_by_key(program: str) -> None:
    """A dict in another order has the same structure."""
    op = weighted(lambda to_a, to_b: {"b": to_b, "a": to_a})
    check(program, lambda x: op.apply({"a": x, "b": x.exp()}), lambda x: x.sin() + 2 * x.exp())


def test_a_tangent_dict_is_matched_by_key() -> None:
    op = function(
        "Named",
        forward=lambda x: {"u": 2 * x, "v": 3 * x},
        setup_context=lambda ctx, inputs, output: None,
        jvp=lambda ctx, t: {"v": 3 * t, "u": 2 * t},
    )
    x = vec(3)
    _, tangent = fxforms.jvp(op.apply, (x,), (x,))
    assert_close(tangent, {"u": 2 * x, "v": 3 * x})


@pytest.mark.parametrize(
    "gradient",
    [
        lambda a, b: {"a": a, "other": b},
        lambda a, b: {"a": [a], "b": b},
        lambda a, b: [a, b],
        lambda a, b: {"a": a},
        lambda a, b: {"a": a, "b": b, "c": b},
    ],
)
def test_a_gradient_of_another_structure_is_refused(gradient: Any) -> None:
    op = weighted(gradient)
    x = vec(3)
    with pytest.raises((GradientError, StructureError), match=r"Weighted.*structure"):
        fxforms.grad(lambda x: op.apply({"a": x, "b": x}).sum())(x)


def test_none_stands_for_a_subtree() -> None:
    x = vec(3)
    part = weighted(lambda to_a, to_b: {"a": to_a, "b": None})
    none = weighted(lambda to_a, to_b: None)
    f = lambda op: lambda x: op.apply({"a": x, "b": x}).sum()  # noqa: E731
    assert_close(fxforms.grad(f(part))(x), x.cos())
    assert_close(fxforms.vmap(fxforms.grad(f(part)))(rows(x)), rows(x).cos())
    assert_close(fxforms.grad(f(none))(x), torch.zeros(3).double())
    assert_close(fxforms.grad(lambda x: fxforms.vmap(f(part))(x).sum())(rows(x)), rows(x).cos())


@pytest.mark.parametrize("program", PROGRAMS)
def test_one_tensor_twice_in_a_list(program: str) -> None:
    op = function(
        "Powers",
        forward=lambda ctx, xs: ctx.save_for_backward(*xs) or xs[0] + 2 * xs[1] ** 2,
        backward=lambda ctx, g: [g, 4 * ctx.saved_tensors[1] * g],
    )
    check(program, lambda x: op.apply([x, x]), lambda x: x + 2 * x**2)


@pytest.mark.parametrize("combined", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_dirty_tensor_in_a_container(program: str, combined: bool) -> None:
    def mark(ctx: Any, data: Any) -> None:
        ctx.mark_dirty(data["a"])
        ctx.save_for_backward(data["b"])

    def forward(data: Any) -> Any:
        return data["a"].mul_(3), data["b"].sin()

    def forward_with_ctx(ctx: Any, data: Any) -> Any:
        mark(ctx, data)
        return forward(data)

    def backward(ctx: Any, g: Tensor, h: Tensor) -> Any:
        return {"a": 3 * g, "b": h * ctx.saved_tensors[0].cos()}

    functional = {"forward": forward, "setup_context": lambda ctx, i, o: mark(ctx, i[0])}
    form = {"forward": forward_with_ctx} if combined else functional
    op = function("Tripled", backward=backward, **form)

    def run(x: Tensor) -> Tensor:
        a = x * 1
        _, sine = op.apply({"a": a, "b": x})
        return a + sine

    check(program, run, lambda x: 3 * x + x.sin())


def containers_out() -> Op:
    """A new class: ``sin(x) * sign(x)`` by containers with other values among the tensors."""

    def forward(ctx: Any, x: Tensor) -> Any:
        output = {"sine": x.sin(), "rest": [x.sign(), None, 3]}
        ctx.mark_non_differentiable(output["rest"][0])
        ctx.kept = [x.cos()]
        return output

    op = function("Out", forward=forward, backward=lambda ctx, g: g["sine"] * ctx.kept[0])

    def run(x: Tensor) -> Tensor:
        output = op.apply(x)
        sign, none, three = output["rest"]
        assert (none, three) == (None, 3)
        return output["sine"] * sign

    return run


@pytest.mark.parametrize("program", PROGRAMS)
def test_outputs_in_containers(program: str) -> None:
    op = containers_out()
    op(vec(3))
    check(program, op, lambda x: x.sin() * x.sign())


@pytest.mark.parametrize("program", PROGRAMS)
def test_outputs_in_containers_at_the_first_call_of_a_class(program: str) -> None:
    check(program, containers_out(), lambda x: x.sin() * x.sign())


def test_dims_of_a_vmap_rule_follow_the_structure() -> None:
    seen = []

    def vmap(info: Any, in_dims: Any, data: Any, k: int) -> Any:
        seen.append((in_dims, k))
        return {"y": data["a"].movedim(in_dims[0]["a"], 0) * k + data["b"][0], "k": k}, {
            "y": 0,
            "k": None,
        }

    op = function(
        "Dims",
        forward=lambda data, k: {"y": data["a"] * k + data["b"][0], "k": k},
        setup_context=lambda ctx, inputs, output: None,
        backward=lambda ctx, g: (None, None),
        vmap=vmap,
    )
    a, b = vec(3, 4), vec(3)
    run = lambda a, b: op.apply({"a": a, "b": [b]}, 2)["y"]  # noqa: E731
    assert_close(fxforms.vmap(run, (1, None))(a, b), 2 * a.T + b)
    assert seen == [(({"a": 1, "b": [None]}, None), 2)]


def test_needs_input_grad_of_a_container() -> None:
    seen = []

    def backward(ctx: Any, g: Tensor) -> Any:
        seen.append(ctx.needs_input_grad)
        return {"a": g, "b": 2 * g}, g

    op = function(
        "Needs",
        forward=lambda d, k: d["a"] + 2 * d["b"] + k,
        setup_context=lambda ctx, inputs, output: None,
        backward=backward,
    )
    x = vec(3)
    fxforms.grad(lambda x: op.apply({"a": x, "b": vec(3)}, vec(3)).sum())(x)
    fxforms.grad(lambda x: op.apply({"a": vec(3), "b": vec(3)}, x).sum())(x)
    assert seen == [(True, False), (False, True)]


def test_a_container_after_a_plain_output() -> None:
    op = function(
        "Either",
        forward=lambda ctx, x, named: {"y": 2 * x} if named else 2 * x,
        backward=lambda ctx, g: (2 * (g["y"] if isinstance(g, dict) else g), None),
    )
    x = vec(3)
    assert_close(fxforms.grad(lambda x: op.apply(x, False).sum())(x), torch.full_like(x, 2))
    gradient = fxforms.grad(lambda x: op.apply(x, True)["y"].sum())
    assert_close(gradient(x), torch.full_like(x, 2))


def test_an_attribute_of_ctx_that_is_deleted() -> None:
    def backward(ctx: Any, g: Tensor) -> dict[str, Tensor]:
        cosine = ctx.cosine
        del ctx.cosine
        return {"x": g * cosine}

    op = function(
        "Sine",
        forward=lambda ctx, d: setattr(ctx, "cosine", d["x"].cos()) or d["x"].sin(),
        backward=backward,
    )
    check("vmap_grad", lambda x: op.apply({"x": x}), torch.sin)
    check("grad_grad", lambda x: op.apply({"x": x}), torch.sin)
