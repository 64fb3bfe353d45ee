"""``Function``: how it is defined, called, and told about its inputs."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from custom import Cube, Product
from oracle import vec
from torch import Tensor
from torch.testing import assert_close

import fxforms
from fxforms.functions.function import FunctionRules


class Scale(fxforms.Function):
    """``x * factor + offset`` with a default."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, factor: float, offset: float = 1.0) -> Tensor:
        return x * factor + offset

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        assert len(inputs) == 3
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.factor, None, None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, *_: Any) -> Tensor:
        return t * ctx.factor


CALLS = [
    lambda x: Scale.apply(x, 3.0),
    lambda x: Scale.apply(x, factor=3.0),
    lambda x: Scale.apply(x, 3.0, 1.0),
    lambda x: Scale.apply(offset=1.0, factor=3.0, x=x),
]


@pytest.mark.parametrize("call", CALLS)
def test_keywords_and_defaults(call: Any) -> None:
    x = vec(4)
    three = torch.full((4,), 3.0).double()
    assert_close(call(x), 3 * x + 1)
    assert_close(fxforms.grad(lambda x: call(x).sum())(x), three)
    assert_close(fxforms.vmap(fxforms.grad(call))(x), three)
    assert_close(fxforms.jvp(call, (x,), (x,))[1], 3 * x)
    leaf = x.clone().requires_grad_()
    call(leaf).sum().backward()
    assert_close(leaf.grad, three)


class VjpNamed(fxforms.Function):
    """The backward rule under its other name, and varying operands."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*parts: Tensor) -> Tensor:
        return torch.stack(parts).prod(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> Any:
        parts = torch.stack(ctx.saved_tensors)
        others = [torch.cat([parts[:i], parts[i + 1 :]]).prod(0) for i in range(len(parts))]
        return tuple(g * other for other in others)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_vjp_and_a_varying_number_of_operands(count: int) -> None:
    parts = [vec(3) for _ in range(count)]
    expected = [
        torch.stack([p for j, p in enumerate(parts) if j != i] + [torch.ones(3).double()])
        for i in range(count)
    ]
    expected = [e.prod(0) for e in expected]
    every = tuple(range(count))
    f = lambda *parts: VjpNamed.apply(*parts).sum()  # noqa: E731
    assert_close(fxforms.grad(f, every)(*parts), tuple(expected))
    assert_close(fxforms.vmap(fxforms.grad(f, every))(*parts), tuple(expected))
    leaves = [p.clone().requires_grad_() for p in parts]
    f(*leaves).backward()
    assert_close([leaf.grad for leaf in leaves], expected)


def test_a_subclass_inherits_and_overrides() -> None:
    class Steeper(Cube):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 10 * Cube.backward(ctx, g)

    x = vec(3)
    assert_close(fxforms.grad(lambda x: Steeper.apply(x).sum())(x), 30 * x**2)
    assert_close(fxforms.vmap(fxforms.grad(Steeper.apply))(x), 30 * x**2)
    assert_close(fxforms.jvp(Steeper.apply, (x,), (x,))[1], 3 * x**3)


def test_the_node_class_is_made_once() -> None:
    x = vec(3)
    rules: FunctionRules = Cube._rules
    nodes = set()
    for _ in range(3):
        fxforms.grad(lambda x: Cube.apply(x).sum())(x)
        fxforms.vmap(Cube.apply)(x)
        nodes.add((rules.node, rules.mapped))
    assert len(nodes) == 1


class Told(fxforms.Function):
    """Records what it is told of its inputs."""

    generate_vmap_rule = True
    seen: ClassVar[list[tuple[bool, ...]]] = []

    @staticmethod
    def forward(x: Tensor, k: int, y: Tensor) -> Tensor:
        return x * y

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0], inputs[2])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        Told.seen.append(tuple(ctx.needs_input_grad))
        x, y = ctx.saved_tensors
        return g * y, None, g * x


def told(run: Any) -> list[tuple[bool, ...]]:
    Told.seen.clear()
    run()
    return list(Told.seen)


@pytest.mark.parametrize("mapped", ["", "inside", "outside"])
@pytest.mark.parametrize("argnums", [0, 1, (0, 1)])
def test_needs_input_grad(argnums: Any, mapped: str) -> None:
    x = vec(3, 2)

    def f(x: Tensor, y: Tensor) -> Tensor:
        call = lambda x, y: Told.apply(x, 5, y)  # noqa: E731
        return (fxforms.vmap(call) if mapped == "inside" else call)(x, y).sum()

    gradient = fxforms.grad(f, argnums)
    gradient = fxforms.vmap(gradient) if mapped == "outside" else gradient
    chosen = argnums if isinstance(argnums, tuple) else (argnums,)
    assert told(lambda: gradient(x, x)) == [(0 in chosen, False, 1 in chosen)]


def test_needs_input_grad_leaves_out_other_levels() -> None:
    x = vec(3)
    inner = lambda x, y: fxforms.grad(lambda y: Told.apply(x, 5, y).sum())(y)  # noqa: E731
    value = lambda: fxforms.vjp(lambda x: inner(x, x * 1), x)  # noqa: E731
    assert told(value) == [(False, False, True)]


def test_one_tensor_given_twice() -> None:
    x = vec(3)
    f = lambda x: Product.apply(x, x).sum()  # noqa: E731
    assert_close(fxforms.grad(f)(x), 2 * x)
    assert_close(fxforms.vmap(fxforms.grad(f))(x.expand(2, 3)), (2 * x).expand(2, 3))
    assert_close(fxforms.jvp(f, (x,), (x,))[1], 2 * (x * x).sum())
    assert_close(fxforms.grad(lambda x: fxforms.vmap(Product.apply)(x, x).sum())(x), 2 * x)


class Partial(fxforms.Function):
    """A gradient None, and integer inputs and outputs."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, index: Tensor) -> Any:
        return x[index], index + 1

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(inputs[1])
        ctx.save_for_forward(inputs[1])
        ctx.size = inputs[0].shape[0]

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> Any:
        (index,) = ctx.saved_tensors
        return torch.nn.functional.one_hot(index, ctx.size) * g, None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, _: Any) -> Any:
        (index,) = ctx.saved_tensors
        return t[index], None


def test_integer_inputs_and_outputs() -> None:
    x, index = vec(3), torch.tensor(2)
    row = torch.tensor([0, 0, 1.0]).double()
    f = lambda x, index: Partial.apply(x, index)[0]  # noqa: E731
    assert_close(Partial.apply(x, index)[1], torch.tensor(3))
    assert_close(fxforms.grad(f)(x, index), row)
    assert_close(fxforms.jvp(lambda x: f(x, index), (x,), (x,))[1], x[2])
    mapped = fxforms.vmap(lambda x: f(x, index))(x.expand(2, 3))
    assert_close(mapped, x[2].expand(2))
    gradients = fxforms.grad(lambda x: fxforms.vmap(lambda x: f(x, index))(x).sum())(x.expand(2, 3))
    assert_close(gradients, row.expand(2, 3))


def test_a_class_attribute_does_not_leak_between_calls() -> None:
    """Each call has a context of its own."""
    x, y = vec(3), vec(3)
    _, first = fxforms.vjp(lambda x: Scale.apply(x, 2.0), x)
    _, second = fxforms.vjp(lambda x: Scale.apply(x, 5.0), x)
    assert_close((first(y)[0], second(y)[0]), (2 * y, 5 * y))


def test_custom_function_call_is_apply() -> None:
    x = vec(3)
    f = lambda x: fxforms.custom_function_call(Cube, x)  # noqa: E731
    assert_close(fxforms.vmap(fxforms.grad(f))(x), 3 * x**2)


def test_a_rule_may_call_its_own_function() -> None:
    class Sine(fxforms.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x.sin()

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * Sine.apply(ctx.saved_tensors[0] + torch.pi / 2)

    f, x = Sine.apply, vec(3)
    for _ in range(4):
        f = fxforms.grad(f)
    assert_close(fxforms.vmap(f)(x), x.sin())
