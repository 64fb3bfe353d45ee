"""The rows on custom Functions."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch

import fxforms
from beside import X, row


def cube(library: Any) -> Any:
    """``x**3`` with the three rules."""

    class Cube(library.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x**3

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx, cotangent):
            return 3 * ctx.saved_tensors[0] ** 2 * cotangent

        @staticmethod
        def jvp(ctx, tangent):
            return 3 * ctx.saved_tensors[0] ** 2 * tangent

    return Cube


@row("`jacfwd(jacfwd(f))` through a Function with a `jvp` rule")
def forward_over_forward(library: Any) -> None:
    apply = cube(library).apply
    second = library.jacfwd(library.jacfwd(lambda x: apply(x).sum()))(X)
    assert torch.allclose(second, torch.diag(6 * X))


@row("second derivative of a `once_differentiable` backward")
def once_differentiable(library: Any) -> None:
    class Sine(library.Function):
        @staticmethod
        def forward(x):
            return x.sin()

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, cotangent):
            return cotangent * ctx.saved_tensors[0].cos()

    try:
        second = library.grad(library.grad(Sine.apply))(X[0])
    except RuntimeError as error:
        assert "once_differentiable" in str(error)  # noqa: PT017
    else:
        assert torch.allclose(second, -X[0].sin())


@row("`vmap(grad(f))` through a Function that uses `mark_dirty`")
def mark_dirty(library: Any) -> None:
    class Triple(library.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x.mul_(3)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.mark_dirty(*inputs)

        @staticmethod
        def backward(ctx, cotangent):
            return 3 * cotangent

    gradient = library.vmap(library.grad(lambda x: Triple.apply(x.clone()) ** 2))(X)
    assert torch.allclose(gradient, 18 * X)


@row("`generate_vmap_rule` with a non-differentiable output")
def non_differentiable_output(library: Any) -> None:
    class Sort(library.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return torch.sort(x)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.mark_non_differentiable(output[1])
            ctx.save_for_backward(output[1])

        @staticmethod
        def backward(ctx, cotangent, _):
            return torch.zeros_like(cotangent).scatter(0, ctx.saved_tensors[0], cotangent)

    rows = torch.tensor([[3.0, 1.0], [2.0, 5.0]])
    gradient = library.vmap(library.grad(lambda x: Sort.apply(x)[0][-1]))(rows)
    assert torch.equal(gradient, torch.tensor([[1.0, 0.0], [0.0, 1.0]]))


@row("`linearize` through a Function without a `jvp` rule")
def linearize(library: Any) -> None:
    class Square(library.Function):
        @staticmethod
        def forward(x):
            return x * x

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, cotangent):
            return 2 * ctx.saved_tensors[0] * cotangent

    _, derivative = library.linearize(Square.apply, X)
    assert torch.allclose(derivative(torch.ones_like(X)), 2 * X)


class Exp:
    """``exp(x)`` without a rule; a subclass adds what it needs."""

    @staticmethod
    def forward(x):
        return x.exp()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)


def times_saved(ctx: Any, derivative: torch.Tensor) -> torch.Tensor:
    """Either derivative rule of ``exp``."""
    return derivative * ctx.saved_tensors[0]


@row("`vmap` of a Function without a `vmap` rule or flag")
def no_vmap_rule(library: Any) -> None:
    class OwnExp(Exp, library.Function):
        backward = staticmethod(times_saved)

    assert torch.allclose(library.vmap(library.grad(OwnExp.apply))(X), X.exp())


@row("`jvp`, `jacfwd` of a Function without a `jvp` rule")
def no_jvp_rule(library: Any) -> None:
    class OwnExp(Exp, library.Function):
        generate_vmap_rule = True
        backward = staticmethod(times_saved)

    assert torch.allclose(library.jvp(OwnExp.apply, (X,), (X,))[1], X * X.exp())
    assert torch.allclose(library.jacfwd(OwnExp.apply)(X), torch.diag(X.exp()))


@row("`grad` of a Function with a `jvp` rule alone")
def no_backward_rule(library: Any) -> None:
    class OwnExp(Exp, library.Function):
        jvp = staticmethod(times_saved)

    assert torch.allclose(library.grad(OwnExp.apply)(X[0]), X[0].exp())


@row("a Function that writes `forward(ctx, ...)`")
def combined_form(library: Any) -> None:
    class OwnExp(library.Function):
        @staticmethod
        def forward(ctx, x):
            output = x.exp()
            ctx.save_for_backward(output)
            return output

        backward = staticmethod(times_saved)

    assert torch.allclose(library.vmap(library.grad(library.grad(OwnExp.apply)))(X), X.exp())


@row("second derivative through an intermediate that `forward` returns to save it")
def saved_intermediate(library: Any) -> None:
    class SineOfExp(library.Function):
        @staticmethod
        def forward(x):
            exp = x.exp()
            return exp.sin(), exp

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.mark_non_differentiable(output[1])
            ctx.save_for_backward(output[1])

        @staticmethod
        def backward(ctx, cotangent, _):
            (exp,) = ctx.saved_tensors
            return cotangent * exp.cos() * exp

    second = library.grad(library.grad(lambda x: SineOfExp.apply(x)[0]))(X[0])
    exp = X[0].exp()
    assert torch.allclose(second, exp.cos() * exp - exp.sin() * exp**2)


@row("a Function given tensors in a dict")
def tensors_in_a_dict(library: Any) -> None:
    class Product(library.Function):
        @staticmethod
        def forward(factors):
            return factors["a"] * factors["b"]

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(inputs[0]["a"], inputs[0]["b"])

        @staticmethod
        def backward(ctx, cotangent):
            a, b = ctx.saved_tensors
            return {"a": cotangent * b, "b": cotangent * a}

    gradient = library.grad(Product.apply)({"a": X[0], "b": X[1]})
    assert torch.equal(gradient["a"], X[1])
    assert torch.equal(gradient["b"], X[0])


@row("`vmap` of a Function with a NumPy body")
def numpy_body(library: Any) -> None:
    class OwnExp(Exp, library.Function):
        generate_vmap_rule = True
        backward = staticmethod(times_saved)

        @staticmethod
        def forward(x):
            return torch.from_numpy(np.asarray(np.exp(x.numpy(force=True))))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fxforms.UnmappableWarning)
        assert torch.allclose(library.vmap(library.grad(OwnExp.apply))(X), X.exp())
