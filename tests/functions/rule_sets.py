"""One operation written in every form and with every set of rules, and every short composition.

The operation takes ``(x, y)`` of one shape to ``(2 * x**2 * y, x * sin(y))``, as ``custom.plain``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import fxforms

Op = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def _values(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return 2 * x**2 * y, x * y.sin()


def _pulled(x: Tensor, xy: Tensor, sine: Tensor, cosine: Tensor, g: Tensor, h: Tensor) -> Any:
    return 4 * xy * g + sine * h, 2 * x**2 * g + x * cosine * h


def _pushed(x: Tensor, xy: Tensor, sine: Tensor, cosine: Tensor, s: Tensor, t: Tensor) -> Any:
    return 4 * xy * s + 2 * x**2 * t, sine * s + x * cosine * t


def _intermediates(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x, x * y, y.sin(), y.cos()


class Functional:
    """Saves its inputs in ``setup_context``."""

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Any:
        return _values(x, y)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor) -> Any:
        return _pulled(*_intermediates(*ctx.saved_tensors), g, h)

    @staticmethod
    def jvp(ctx: Any, s: Tensor, t: Tensor) -> Any:
        return _pushed(*_intermediates(*ctx.saved_tensors), s, t)


class SavedForBackwardAlone(Functional):
    """Leaves ``save_for_forward`` out."""

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)


class Combined(Functional):
    """Takes ``ctx`` in ``forward`` and saves its inputs."""

    setup_context = fxforms.Function.setup_context

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Any:
        ctx.save_for_backward(x, y)
        ctx.save_for_forward(x, y)
        return _values(x, y)


class Residuals(Combined):
    """Saves intermediates of ``forward``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Any:
        saved = _intermediates(x, y)
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)
        return _values(x, y)

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor) -> Any:
        return _pulled(*ctx.saved_tensors, g, h)

    @staticmethod
    def jvp(ctx: Any, s: Tensor, t: Tensor) -> Any:
        return _pushed(*ctx.saved_tensors, s, t)


class OnAttributes(Combined):
    """Keeps intermediates as attributes of ``ctx``, in a container among other values."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Any:
        x, xy, sine, cosine = _intermediates(x, y)
        ctx.x, ctx.rest, ctx.label = x, {"xy": xy, "trig": [sine, (cosine, 1.5)]}, "label"
        return _values(x, y)

    @staticmethod
    def saved(ctx: Any) -> tuple[Tensor, ...]:
        assert ctx.label == "label"
        sine, (cosine, number) = ctx.rest["trig"]
        assert number == 1.5
        return ctx.x, ctx.rest["xy"], sine, cosine

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor) -> Any:
        return _pulled(*OnAttributes.saved(ctx), g, h)

    @staticmethod
    def jvp(ctx: Any, s: Tensor, t: Tensor) -> Any:
        return _pushed(*OnAttributes.saved(ctx), s, t)


class Tree(Functional):
    """Takes and returns containers."""

    @staticmethod
    def forward(data: Any) -> Any:
        first, second = _values(data["x"], *data["y"])
        return {"first": first, "rest": (second, "text")}

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        (data,) = inputs
        ctx.save_for_backward(data["x"], *data["y"])
        ctx.save_for_forward(data["x"], *data["y"])

    @staticmethod
    def backward(ctx: Any, cotangent: Any) -> Any:
        g, h = cotangent["first"], cotangent["rest"][0]
        to_x, to_y = Functional.backward(ctx, g, h)
        return {"x": to_x, "y": [to_y]}

    @staticmethod
    def jvp(ctx: Any, tangent: Any) -> Any:
        first, second = Functional.jvp(ctx, tangent["x"], *tangent["y"])
        return {"first": first, "rest": (second, None)}


class CombinedTree(Tree):
    """Containers, ``ctx`` in ``forward``, and intermediates on ``ctx``."""

    setup_context = fxforms.Function.setup_context

    @staticmethod
    def forward(ctx: Any, data: Any) -> Any:
        ctx.kept = dict(zip("abcd", _intermediates(data["x"], *data["y"])))
        return Tree.forward(data)

    @staticmethod
    def backward(ctx: Any, cotangent: Any) -> Any:
        to_x, to_y = _pulled(*ctx.kept.values(), cotangent["first"], cotangent["rest"][0])
        return {"x": to_x, "y": [to_y]}

    @staticmethod
    def jvp(ctx: Any, tangent: Any) -> Any:
        first, second = _pushed(*ctx.kept.values(), tangent["x"], *tangent["y"])
        return {"first": first, "rest": (second, None)}


FORMS = (
    *(Functional, SavedForBackwardAlone, Combined, Residuals, OnAttributes),
    *(Tree, CombinedTree),
)
DERIVATIVES = ("backward", "jvp", "backward jvp")
VMAPS = ("derived", "by hand", "loop", "generated")


def _whole(info: Any, dim: int | None, x: Tensor) -> Tensor:
    """``x`` with its batch first."""
    return x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)


def _vmap_rule(holder: list[Any]) -> Callable[..., Any]:
    """A vmap rule by hand, which calls the Function in ``holder`` on the whole batch."""

    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        return holder[0].apply(*pytree.tree_map(lambda x, d: _whole(info, d, x), args, in_dims)), 0

    def vmap_tree(info: Any, in_dims: Any, data: Any) -> Any:
        (dims,) = in_dims
        inner = {"x": _whole(info, dims["x"], data["x"])}
        inner["y"] = [_whole(info, dims["y"][0], data["y"][0])]
        return holder[0].apply(inner), {"first": 0, "rest": (0, None)}

    return vmap_tree if holder[1] else vmap


def make(form: type, derivatives: str, vmap: str) -> Any:
    """The operation in ``form``, with these derivative rules and this way to a vmap rule."""
    methods: dict[str, Any] = {}
    for name in ("forward", "setup_context", *derivatives.split()):
        methods[name] = staticmethod(getattr(form, name))
    if methods["setup_context"].__func__ is fxforms.Function.setup_context:
        del methods["setup_context"]
    holder: list[Any] = [None, issubclass(form, Tree)]
    if vmap == "by hand":
        methods["vmap"] = staticmethod(_vmap_rule(holder))
    if vmap == "loop":
        methods["vmap_method"] = "loop"
    if vmap == "generated":
        methods["generate_vmap_rule"] = True
    holder[0] = type(fxforms.Function)(form.__name__, (fxforms.Function,), methods)
    return holder[0]


def as_op(function: Any) -> Op:
    """``function`` of :func:`make` as a function of ``(x, y)``."""

    def in_containers(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        result = function.apply({"x": x, "y": [y]})
        assert result["rest"][1] == "text"
        return result["first"], result["rest"][0]

    return in_containers if function.__name__.endswith("Tree") else function.apply


def words(longest: int) -> list[str]:
    """Every composition of grad, jvp and vmap up to this length, the outermost first."""
    found = [itertools.product("gjv", repeat=length) for length in range(1, longest + 1)]
    return ["".join(word) for group in found for word in group]


def compose(T: Any, op: Op, word: str) -> Op:
    """The transforms of ``word`` around ``op``; each step again takes and returns two tensors."""
    for index, letter in enumerate(reversed(word)):
        op = {"g": _grad, "j": _jvp, "v": _vmap}[letter](T, op, index)
    return op


def _grad(T: Any, f: Op, _: int) -> Op:
    def loss(x: Tensor, y: Tensor) -> Tensor:
        u, v = f(x, y)
        return (u.sin() * v).sum()

    return T.grad(loss, (0, 1))


def _jvp(T: Any, f: Op, _: int) -> Op:
    def run(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        (u, v), (s, t) = T.jvp(f, (x, y), (y.cos(), x.sin()))
        return u * s, v + t

    return run


def _vmap(T: Any, f: Op, index: int) -> Op:
    """A batch made from the arguments; each use in one composition has other batch dims."""
    dims = ((0, 0), (0, None), (1, 0))[index]

    def run(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        xs = torch.stack([x, 2 * x, x.sin()], dims[0] or 0)
        ys = y if dims[1] is None else torch.stack([y, y.cos(), 3 * y])
        u, v = T.vmap(f, dims)(xs, ys)
        return u.sum(0), (v * v).sum(0)

    return run
