"""Functions around derived rules, ``ctx``, containers and decorators that are wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from error_cases import X

import fxforms


def function(name: str, **methods: Any) -> Any:
    """A Function with these static methods; ``vmap_method`` stays as it is."""
    attributes = {n: staticmethod(m) if callable(m) else m for n, m in methods.items()}
    return type(fxforms.Function)(name, (fxforms.Function,), attributes)


def loss(op: Any) -> Any:
    return lambda x: op(x).sum()


def numpy_sine(**more: Any) -> Any:
    """Keeps a cosine that NumPy computed."""

    def forward(ctx: Any, x: Any) -> Any:
        x = x.detach().numpy()
        ctx.save_for_backward(torch.from_numpy(np.cos(x)))
        return torch.from_numpy(np.sin(x))

    return function(
        "NumpySine", forward=forward, backward=lambda ctx, g: g * ctx.saved_tensors[0], **more
    ).apply


def listed_sine() -> Any:
    """Keeps a cosine that went through Python numbers."""

    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(torch.tensor([np.cos(v) for v in x.tolist()]))
        return x.sin()

    return function(
        "ListedSine", forward=forward, backward=lambda ctx, g: g * ctx.saved_tensors[0]
    ).apply


def in_place_sine(x: Any) -> Any:
    """Keeps a cosine of the input that it overwrites."""

    def forward(ctx: Any, x: Any) -> Any:
        ctx.mark_dirty(x)
        ctx.save_for_backward(x.cos())
        return x.sin_()

    op = function("SineInPlace", forward=forward, backward=lambda ctx, g: g * ctx.saved_tensors[0])
    return op.apply(x * 1)


def layer(gradient: Any) -> Any:
    """A product of two tensors in a dict, whose backward returns ``gradient``."""
    op = function(
        "Layer",
        forward=lambda params, x: params["weight"] * x + params["bias"],
        setup_context=lambda ctx, inputs, output: None,
        backward=lambda ctx, g: (gradient, None),
    )
    return lambda w: op.apply({"weight": w, "bias": w}, X).sum()


def pair(tangent: Any = None, out_dims: Any = 0) -> Any:
    """Two tensors in a dict, whose jvp and vmap return what is given."""
    op = function(
        "Pair",
        forward=lambda x: {"first": x, "second": x * 2},
        setup_context=lambda ctx, inputs, output: None,
        jvp=lambda ctx, t: tangent,
        vmap=lambda info, in_dims, x: ({"first": x * 1, "second": x * 2}, out_dims),
    )
    op.apply(X)
    return op.apply


def with_vjp(fwd: Any, bwd: Any) -> Any:
    @fxforms.custom_vjp
    def square(x: Any) -> Any:
        return x**2

    square.defvjp(fwd, bwd)
    return square


def with_jvp(rule: Any) -> Any:
    @fxforms.custom_jvp
    def square(x: Any) -> Any:
        return x**2

    square.defjvp(rule)
    return square


def mapped_by(rule: Any) -> Any:
    @fxforms.custom_vmap
    def square(x: Any) -> Any:
        return x**2

    square.def_vmap(rule)
    return square


def bare_vjp() -> Any:
    @fxforms.custom_vjp
    def square(x: Any) -> Any:
        return x**2

    return square


def bare_jvp() -> Any:
    @fxforms.custom_jvp
    def square(x: Any) -> Any:
        return x**2

    return square


def bare_vmap() -> Any:
    @fxforms.custom_vmap
    def square(x: Any) -> Any:
        return x**2

    return square


def fault(case: str) -> Any:
    """A fault around a decorator."""
    x = X.clone()
    return {
        "fwd returns no pair": lambda: fxforms.grad(
            loss(with_vjp(lambda x: x**2, lambda x, ct: (ct,)))
        )(x),
        "jvp rule returns no pair": lambda: fxforms.grad(
            loss(with_jvp(lambda primals, tangents: tangents[0]))
        )(x),
        "a tangent of another shape in reverse mode": lambda: fxforms.grad(
            loss(with_jvp(lambda primals, tangents: (primals[0], tangents[0][:2])))
        )(x),
        "too few arguments": lambda: with_vjp(lambda x: (x, x), lambda x, ct: (ct,))(),
        "a number": lambda: fxforms.custom_vjp(3),
    }[case]


def too_few_rules() -> Any:
    """Two arguments and a rule for one: the other's derivative would be a silent zero."""

    @fxforms.custom_jvp
    def product(x: Any, y: Any) -> Any:
        return x * y

    product.defjvps(lambda t, out, x, y: t * y)
    return fxforms.grad(lambda y: product(X, y).sum())(X)


def capturing_rule(a: Any) -> Any:
    """A product with ``a``, which fun, fwd and bwd close over."""

    @fxforms.custom_vjp
    def scaled(x: Any) -> Any:
        return x * a

    scaled.defvjp(lambda x: (x * a, None), lambda _, ct: (ct * a,))
    return scaled
