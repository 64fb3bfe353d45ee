"""The backward of Functions in captured graphs: nodes of their own, called at every run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from capture_functions import (
    WORLD,
    CombinedCube,
    Cube,
    Lazy,
    NumpyCube,
    PlainCube,
    Split,
    Wide,
)
from capture_graphs import assert_same, leaf

import fxforms

CUBES = [PlainCube, Cube, CombinedCube]
each_cube = pytest.mark.parametrize("cube", CUBES, ids=lambda cube: cube.__name__)


def names(backward: fxforms.CapturedBackward) -> list[str]:
    """The names of the nodes that call user code."""
    nodes = backward.graph_module.graph.nodes
    targets = [node.target for node in nodes if node.op == "call_function"]
    return [t.__name__ for t in targets if getattr(t, "__module__", "") == "fxforms"]


@each_cube
def test_a_function_is_a_node(cube: Any) -> None:
    x = leaf(3)
    backward = fxforms.capture_backward(cube.apply(x.sin()).exp(), x)
    assert names(backward) == [f"{cube.__name__}Backward"]


@each_cube
def test_values_mapped_and_differentiated(cube: Any) -> None:
    x = leaf(3)
    y = cube.apply(x.sin()).exp()
    plain = (x.sin() ** 3).exp()
    backward = fxforms.capture_backward(y, x)
    g = torch.randn(3, dtype=torch.double)
    found = backward(g)
    (wanted,) = torch.autograd.grad(plain, x, g, create_graph=True)
    torch.testing.assert_close(found, wanted)
    assert_same(torch.autograd.grad(found.sum(), x), torch.autograd.grad(wanted.sum(), x))
    with torch.no_grad():
        rows = fxforms.vmap(backward)(torch.diag(g))
    torch.testing.assert_close(rows, torch.diag(wanted.detach()))


@each_cube
def test_differentiated_by_saved_values(cube: Any) -> None:
    x = leaf(3)
    backward = fxforms.capture_backward(cube.apply(x), x)
    g = torch.randn(3, dtype=torch.double)
    found = fxforms.jvp(
        lambda s: backward(g, (s, *backward.saved[1:])), (x,), (torch.ones_like(x),)
    )
    torch.testing.assert_close(found[1], 6 * x * g)


@each_cube
def test_other_saved_values(cube: Any) -> None:
    x, other = leaf(3), leaf(3)
    backward = fxforms.capture_backward(cube.apply(x), x)
    found = backward(torch.ones(3).double(), (other, *backward.saved[1:]))
    torch.testing.assert_close(found, 3 * other**2)


def test_numpy_is_never_a_constant() -> None:
    x = leaf(3)
    backward = fxforms.capture_backward(NumpyCube.apply(x).sin(), x)
    compiled = backward.compile(compiler=lambda graph, examples: graph)
    g = torch.randn(3, dtype=torch.double)
    plain = (x**3).sin()
    (wanted,) = torch.autograd.grad(plain, x, g)
    with torch.no_grad():
        for factor in (1.0, 5.0):
            WORLD["factor"] = factor
            torch.testing.assert_close(backward(g), factor * wanted)
            torch.testing.assert_close(compiled(2 * g), 2 * factor * wanted)
            rows = fxforms.vmap(backward)(torch.diag(g))
            torch.testing.assert_close(rows, torch.diag(factor * wanted))
    WORLD["factor"] = 1.0


def test_a_second_derivative_of_numpy_is_refused() -> None:
    x = leaf(3)
    backward = fxforms.capture_backward(NumpyCube.apply(x), x)
    with pytest.raises(fxforms.errors.GradientError, match=r"NumpyCube\.backward is marked once"):
        torch.autograd.grad(backward(torch.ones(3).double()).sum(), x)


def test_numbers_and_absent_gradients() -> None:
    x, y = leaf(3), leaf(3)
    a, b = Split.apply(x, 2.0, y.exp())
    for outputs in ([a, b], [a], [b]):
        cotangents = [torch.randn_like(o) for o in outputs]
        found = fxforms.capture_backward(outputs, [x, y])(cotangents)
        wanted = torch.autograd.grad(outputs, x, cotangents, retain_graph=True)
        torch.testing.assert_close(found[0], wanted[0])
        torch.testing.assert_close(found[1], torch.zeros_like(y))  # absent counts as zeros


def test_sizes_that_differ_between_passes() -> None:
    for size in (2, 3, 4, 2):
        x, y = leaf(size), leaf(1)
        a, b = Split.apply(x, 2.0, y.exp().expand(size))
        out = Wide.apply(Cube.apply(a), y)
        g = torch.randn(size, dtype=torch.double)
        found = fxforms.capture_backward(out, [x, y])(g)
        wanted = torch.autograd.grad((2 * x + y.exp()) ** 3, x, g)
        torch.testing.assert_close(found, [wanted[0], g.sum()[None]])
        with fxforms.compiled_backward(lambda graph, examples: graph):
            again = torch.autograd.grad([out, b], [x, y], [g, g])
        torch.testing.assert_close(again[0], wanted[0] + (g * x.cos()).detach())
        torch.testing.assert_close(again[1], found[1].detach())


def test_gradients_not_materialized() -> None:
    x = leaf(3)
    a, b = Lazy.apply(x)
    g = torch.randn(3, dtype=torch.double)
    torch.testing.assert_close(fxforms.capture_backward(b, x)(g), 3 * g)
    torch.testing.assert_close(fxforms.capture_backward([a, b], x)([g, 2 * g]), 8 * g)


def test_gradients_to_reduce() -> None:
    x, y = leaf(3, 1), leaf(3, 4)
    out = Wide.apply(x, y.exp())
    g = torch.randn(3, 4, dtype=torch.double)
    found = fxforms.capture_backward(out.view(12), [x, y])(g.view(12))
    wanted = g.sum(1, keepdim=True), y.exp() * g.sum() / 12
    assert_same(found, wanted)


def test_a_wrong_gradient_is_refused() -> None:
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return g[:2]

    backward = fxforms.capture_backward(Wrong.apply(leaf(3)))
    with pytest.raises(RuntimeError, match=r"WrongBackward|invalid gradient"):
        backward(torch.ones(3).double())


def test_a_compiled_region_is_a_node() -> None:
    x = leaf(3)
    compiled = torch.compile(lambda x: ((2 * x).sin() * 2 * x).exp(), backend="aot_eager")
    backward = fxforms.capture_backward(compiled(x).exp(), x)
    assert names(backward) == ["CompiledFunctionBackward"]
    g = torch.randn(3, dtype=torch.double)
    y = x * 2
    (wanted,) = torch.autograd.grad((y.sin() * y).exp().exp(), x, g)
    with torch.no_grad():
        torch.testing.assert_close(backward(g), wanted)


def test_checkpointed_code() -> None:
    x = leaf(3)
    y = torch.utils.checkpoint.checkpoint(lambda x: (x.sin() * x).exp(), x * 2, use_reentrant=False)
    backward = fxforms.capture_backward(y, x)
    g = torch.randn(3, dtype=torch.double)
    z = x * 2
    (wanted,) = torch.autograd.grad((z.sin() * z).exp(), x, g)
    torch.testing.assert_close(backward(g), wanted)


def test_a_second_derivative_of_checkpointed_code_is_an_error() -> None:
    w, g = leaf(3), torch.ones((), dtype=torch.double)
    function = torch.utils.checkpoint.checkpoint
    packed = fxforms.capture_backward(function(torch.sin, w, use_reentrant=False).sum(), w)
    y = (function(torch.sin, w, use_reentrant=False) * w).sum()
    found = fxforms.capture_backward(y, w)(g)
    torch.testing.assert_close(found, w.cos() * w + w.sin())
    for first in (found, packed(g)):
        with pytest.raises(fxforms.errors.UnsupportedError, match="use_reentrant=False"):
            torch.autograd.grad(first.sum(), w)
    with fxforms.compiled_backward(lambda graph, examples: graph):
        (first,) = torch.autograd.grad(y, w, create_graph=True)
    torch.testing.assert_close(first, w.cos() * w + w.sin())
    with pytest.raises(fxforms.errors.UnsupportedError, match="save_on_cpu"):
        torch.autograd.grad(first.sum(), w)


class Pair(fxforms.Function):
    """``{"p": a * b, "q": [scale * sin(a)]}`` of a dict of tensors."""

    @staticmethod
    def forward(d, scale):
        return {"p": d["a"] * d["b"][0], "q": [scale * d["a"].sin()]}

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0]["a"], inputs[0]["b"][0])
        ctx.scale = inputs[1]

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return {"a": g["p"] * b + g["q"][0] * ctx.scale * a.cos(), "b": [g["p"] * a]}, None


def test_a_function_of_containers() -> None:
    a, b = leaf(3), leaf(3)
    out = Pair.apply({"a": a.exp(), "b": [b]}, 2.0)
    loss = out["p"].sum() + (out["q"][0] ** 2).sum()
    backward = fxforms.capture_backward(loss, [a, b])
    assert names(backward) == ["PairBackward"]
    e = a.exp()
    plain = torch.autograd.grad((e * b).sum() + (4 * e.sin() ** 2).sum(), [a, b])
    assert_same(backward(), plain)
    with torch.no_grad():
        rows = fxforms.vmap(backward)(torch.tensor([1.0, 2.0]).double())
    assert_same(rows, [torch.stack([g, 2 * g]) for g in plain])


def test_a_derived_backward() -> None:
    class FromJvp(fxforms.Function):
        @staticmethod
        def forward(x):
            return x**3

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_forward(*inputs)

        @staticmethod
        def jvp(ctx, t):
            return 3 * ctx.saved_tensors[0] ** 2 * t

    x = leaf(3)
    backward = fxforms.capture_backward(FromJvp.apply(x.sin()), x)
    g = torch.randn(3, dtype=torch.double)
    wanted = 3 * x.sin() ** 2 * x.cos()
    found = backward(g)
    torch.testing.assert_close(found, g * wanted)
    again = torch.autograd.grad(found.sum(), x, retain_graph=True)
    assert_same(again, torch.autograd.grad((g * wanted).sum(), x))
    with torch.no_grad():
        torch.testing.assert_close(fxforms.vmap(backward)(torch.diag(g)), torch.diag(g * wanted))


def test_decorated_functions() -> None:
    @fxforms.custom_vjp
    def square(x):
        return x**2

    square.defvjp(lambda x: (x**2, x), lambda x, g: (2 * x * g,))
    x = leaf(3)
    backward = fxforms.capture_backward(square(x.exp()), x)
    torch.testing.assert_close(backward(torch.ones(3).double()), 2 * x.exp() ** 2)


def test_a_formula_that_depends_on_numbers_is_a_node() -> None:
    x = leaf(4, 3)
    mask = x > 0
    y = 1 * x.exp()
    y[mask] = x.sin()[mask] * 2
    backward = fxforms.capture_backward(y, x)
    assert names(backward) == ["IndexPutBackward0"]
    g = torch.randn(4, 3, dtype=torch.double)
    slope = torch.where(mask, 2 * x.cos(), x.exp())
    torch.testing.assert_close(backward(g), g * slope)
