"""Functions in the combined form, each beside the plain operation it equals."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from unary import Op, function

import fxforms


class Sine(fxforms.Function):
    """Keeps an intermediate."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x.cos())
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.saved_tensors[0]


def sine(keep: Any, find: Any, name: str = "Kept") -> Op:
    """``x.sin()``; ``keep(ctx, x)`` leaves the cosine where ``find(ctx)`` finds it."""

    def forward(ctx: Any, x: Tensor) -> Tensor:
        keep(ctx, x)
        return x.sin()

    return function(name, forward=forward, backward=lambda ctx, g: g * find(ctx)).apply


def setter(make: Any) -> Any:
    """A ``keep`` that sets ``ctx.kept``."""
    return lambda ctx, x: setattr(ctx, "kept", make(x))


def _detached(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x.detach().cos()


def _by_steps(x: Tensor) -> Tensor:
    cosine = x.new_zeros(3)
    for i in range(3):
        cosine[i] = x[i].cos()
    return cosine


def _cached(ctx: Any) -> Tensor:
    """Changes what is on ctx; each backward pass must find it as forward left it."""
    ctx.count += 1
    assert ctx.count == 1
    return ctx.kept.pop()


def _counted(ctx: Any, x: Tensor) -> None:
    ctx.count, ctx.kept = 0, [x.cos()]


def _chosen(ctx: Any, x: Tensor) -> None:
    if ctx.needs_input_grad[0]:
        ctx.save_for_backward(None, x.cos())


def _sorted(ctx: Any, x: Tensor) -> Tensor:
    values, indices = x.sort()
    ctx.save_for_backward(indices)
    return values


def _unsort(ctx: Any, g: Tensor) -> Tensor:
    return torch.zeros_like(g).scatter(-1, ctx.saved_tensors[0], g)


def _several(ctx: Any, x: Tensor, wanted: bool) -> Any:
    ctx.save_for_backward(x.cos())
    return x.sin(), (2 * x if wanted else None), "label", 7


def _pull_several(ctx: Any, g: Tensor, h: Tensor | None, *_: None) -> Any:
    to_x = g * ctx.saved_tensors[0]
    return (to_x if h is None else to_x + 2 * h), None


def _optional(wanted: bool) -> Op:
    several = function("Several", forward=_several, backward=_pull_several)

    def op(x: Tensor) -> Tensor:
        first, second, label, number = several.apply(x, wanted)
        assert (label, number) == ("label", 7)
        return first if second is None else first + second

    return op


def _signed(ctx: Any, x: Tensor) -> Any:
    sign = x.sign()
    ctx.mark_non_differentiable(sign)
    ctx.save_for_backward(sign)
    return x.abs(), sign


def _magnitude(x: Tensor) -> Tensor:
    pair = function("Abs", forward=_signed, backward=lambda ctx, g, _: g * ctx.saved_tensors[0])
    size, sign = pair.apply(x)
    return size * sign + size


def _unmaterialized(ctx: Any, x: Tensor) -> Any:
    ctx.set_materialize_grads(False)
    ctx.kept = x.cos()
    return x.sin(), 2 * x


def _pull_given(ctx: Any, g: Tensor | None, h: Tensor | None) -> Any:
    parts = [] if g is None else [g * ctx.kept]
    return sum(parts if h is None else [*parts, 2 * h])


def _exp_in_place(ctx: Any, x: Tensor) -> Tensor:
    ctx.mark_dirty(x)
    ctx.save_for_backward(x.exp_())
    return x


def _dirty(x: Tensor) -> Tensor:
    y = x * 1
    op = function("Exp", forward=_exp_in_place, backward=lambda ctx, g: g * ctx.saved_tensors[0])
    op.apply(y)
    return y


def _twice(ctx: Any, x: Tensor) -> Tensor:
    y = Sine.apply(x)
    ctx.save_for_backward(x, y)
    return Sine.apply(y)


def _pull_twice(ctx: Any, g: Tensor) -> Tensor:
    x, y = ctx.saved_tensors
    return g * y.cos() * x.cos()


def _checkpointed(ctx: Any, x: Tensor) -> Tensor:
    ctx.save_for_backward(x)
    return checkpoint(torch.sin, x, use_reentrant=False)


_TWO = function(
    "Two",
    forward=lambda ctx, a, b: ctx.save_for_backward(a, b) or a * b**2,
    backward=lambda ctx, g: (
        ctx.saved_tensors[1] ** 2 * g,
        2 * ctx.saved_tensors[0] * ctx.saved_tensors[1] * g,
    ),
)
_ALL = function(
    "All",
    forward=lambda *args: args[0].save_for_backward(*args[1:]) or sum(x**2 for x in args[1:]),
    backward=lambda ctx, g: tuple(2 * x * g for x in ctx.saved_tensors),
)

RIGHT: dict[str, tuple[Op, Op]] = {
    "saved": (Sine.apply, torch.sin),
    "attribute": (sine(setter(torch.cos), lambda ctx: ctx.kept), torch.sin),
    "in containers": (
        sine(setter(lambda x: {"a": [3, (x.cos(),)]}), lambda ctx: ctx.kept["a"][1][0]),
        torch.sin,
    ),
    "detached": (sine(setter(_detached), lambda ctx: ctx.kept), torch.sin),
    "by steps in place": (sine(setter(_by_steps), lambda ctx: ctx.kept), torch.sin),
    "ctx changed in backward": (sine(_counted, _cached), torch.sin),
    "needs_input_grad in forward": (sine(_chosen, lambda ctx: ctx.saved_tensors[1]), torch.sin),
    "input as attribute": (sine(setter(lambda x: x), lambda ctx: ctx.kept.cos()), torch.sin),
    "integer residual": (
        function("Sort", forward=_sorted, backward=_unsort).apply,
        lambda x: x.sort()[0],
    ),
    "optional output": (_optional(True), lambda x: x.sin() + 2 * x),
    "optional output left out": (_optional(False), torch.sin),
    "non-differentiable output": (_magnitude, lambda x: x + x.abs()),
    "absent cotangents": (
        lambda x: function("Given", forward=_unmaterialized, backward=_pull_given).apply(x)[0],
        torch.sin,
    ),
    "dirty output": (_dirty, torch.exp),
    "nested": (
        function(
            "Nested",
            forward=lambda ctx, x: ctx.save_for_backward(x) or Sine.apply(x),
            backward=lambda ctx, g: g * Sine.apply(ctx.saved_tensors[0] + np.pi / 2),
        ).apply,
        torch.sin,
    ),
    "nested residuals": (
        function("Nested", forward=_twice, backward=_pull_twice).apply,
        lambda x: x.sin().sin(),
    ),
    "checkpoint in forward": (
        function(
            "Block", forward=_checkpointed, backward=lambda ctx, g: g * ctx.saved_tensors[0].cos()
        ).apply,
        torch.sin,
    ),
    "one tensor as two operands": (lambda x: _TWO.apply(x, x), lambda x: x**3),
    "any number of operands": (lambda x: _ALL.apply(x, x.sin()), lambda x: x**2 + x.sin() ** 2),
}


# Keeps a cosine where fxforms does not find it, or not how it was made; and how to find it.
def _opaque(keep: Any, find: Any) -> tuple[Op, Op]:
    return sine(setter(keep), find, "Opaque"), torch.sin


def _scaled(ctx: Any, x: Tensor) -> Tensor:
    ctx.total = x.sum().item()
    ctx.save_for_backward(x)
    return x * ctx.total


def _pull_scaled(ctx: Any, g: Tensor) -> Tensor:
    return g * ctx.total + (g * ctx.saved_tensors[0]).sum()


def _branch(x: Tensor) -> Tensor:
    return x.cos() if x.sum() > -100 else x.sin()


_DOUBLE = torch.float64
# Functions whose body leaves torch, in what it saves or on the way.
OPAQUE: dict[str, tuple[Op, Op]] = {
    "tolist": _opaque(
        lambda x: torch.tensor([np.cos(v) for v in x.tolist()], dtype=x.dtype),
        lambda ctx: ctx.kept,
    ),
    "numpy tensor": _opaque(
        lambda x: torch.from_numpy(np.cos(x.detach().numpy())), lambda ctx: ctx.kept
    ),
    "numpy array": _opaque(
        lambda x: np.cos(x.detach().numpy()), lambda ctx: torch.from_numpy(ctx.kept)
    ),
    "number": (
        function("Opaque", forward=_scaled, backward=_pull_scaled).apply,
        lambda x: x * x.sum(),
    ),
    "storage": _opaque(
        lambda x: x.cos().untyped_storage(),
        lambda ctx: torch.tensor([], dtype=_DOUBLE).set_(ctx.kept),
    ),
    "memory": _opaque(
        lambda x: memoryview(x.cos().numpy(force=True)),
        lambda ctx: torch.tensor(ctx.kept.tolist(), dtype=_DOUBLE),
    ),
    "branch": _opaque(_branch, lambda ctx: ctx.kept),
}


def _noisy(draw: Any) -> Any:
    """``sin(noise * x)``, and the noise."""

    def forward(ctx: Any, x: Tensor) -> Any:
        noise = draw(x)
        ctx.save_for_backward((noise * x).cos(), noise)
        ctx.mark_non_differentiable(noise)
        return (noise * x).sin(), noise

    def backward(ctx: Any, g: Tensor, _: Any) -> Tensor:
        cosine, noise = ctx.saved_tensors
        return g * cosine * noise

    return function("Noisy", forward=forward, backward=backward)


RANDOM: dict[str, Any] = {
    "like the input": _noisy(torch.randn_like),
    "by a factory": _noisy(lambda x: torch.randn(3, dtype=x.dtype)),
}
