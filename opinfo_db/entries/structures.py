"""Containers in and out of ``apply``: named tuples, dataclasses, nested.

The rules get and return the structures of the arguments and of the output; ``None`` stands for a
whole subtree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

import fxforms
from opinfo_db.core import OpInfo
from opinfo_db.entries.making import entry, samples


class Point(NamedTuple):
    """A position and a weight."""

    position: Tensor
    weight: Tensor


class Centre(fxforms.Function):
    """Named tuples in and out; those that came in are kept whole as an attribute of ``ctx``."""

    @staticmethod
    def forward(a: Point, b: Point) -> Point:
        total = a.weight + b.weight
        return Point((a.position * a.weight + b.position * b.weight) / total, total)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.points = inputs
        ctx.save_for_backward(*output)

    @staticmethod
    def backward(ctx: Any, g: Tensor, g_total: Tensor) -> Any:
        middle, total = ctx.saved_tensors
        return tuple(
            Point(g * p.weight / total, g * (p.position - middle) / total + g_total)
            for p in ctx.points
        )


@dataclass
class State:
    """A pendulum."""

    angle: Tensor
    momentum: Tensor


torch.export.register_dataclass(State)


class Kick(fxforms.Function):
    """A dataclass in and out, registered with torch's pytrees."""

    @staticmethod
    def forward(state: State, step: Tensor) -> State:
        return State(state.angle.clone(), state.momentum - step * state.angle.sin())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        state, step = inputs
        ctx.save_for_backward(state.angle, step)

    @staticmethod
    def backward(ctx: Any, g: State) -> Any:
        angle, step = ctx.saved_tensors
        through = g.angle - g.momentum * step * angle.cos()
        return State(through, g.momentum), -g.momentum * angle.sin()


class NoneForSubtree(fxforms.Function):
    """``None`` for a whole dict of statistics, and ``None`` within a list."""

    @staticmethod
    def forward(x: Tensor, statistics: dict[str, Tensor], rest: list[Tensor]) -> Tensor:
        return (x - statistics["mean"]) / statistics["scale"] * rest[0] + rest[1]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, statistics, rest = inputs
        ctx.save_for_backward(x, statistics["mean"], statistics["scale"], rest[0])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, mean, scale, gain = (t if i in (0, 3) else t.detach() for i, t in _saved(ctx))
        return g * gain / scale, None, [g * (x - mean) / scale, None]


class Nested(fxforms.Function):
    """Containers in containers, with a number, a string and ``None`` among the leaves."""

    @staticmethod
    def forward(tree: dict[str, Any]) -> dict[str, Any]:
        (a, b), power = tree["layers"][0], tree["power"]
        return {"out": [a**power * b, {"b": 2 * b}], "tag": tree["tag"]}

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.power = inputs[0]["power"]
        ctx.save_for_backward(*inputs[0]["layers"][0])

    @staticmethod
    def backward(ctx: Any, g: dict[str, Any]) -> Any:
        (a, b), power = ctx.saved_tensors, ctx.power
        first, second = g["out"][0], g["out"][1]["b"]
        in_a, in_b = power * a ** (power - 1) * b * first, a**power * first + 2 * second
        return ({"layers": [(in_a, in_b), None], "power": None, "tag": None},)


def _saved(ctx: Any) -> Any:
    """The saved tensors with their places."""
    return enumerate(ctx.saved_tensors)


def _statistics(x: Tensor, statistics: dict[str, Tensor], rest: list[Tensor]) -> Tensor:
    """The reference of :class:`NoneForSubtree`."""
    mean, scale = statistics["mean"].detach(), statistics["scale"].detach()
    return (x - mean).div(scale).mul(rest[0]) + rest[1].detach()


def _kick(state: State, step: Tensor) -> State:
    """The reference of :class:`Kick`."""
    return State(1 * state.angle, state.momentum.sub(state.angle.sin() * step))


def _nested(tree: dict[str, Any]) -> dict[str, Any]:
    """The reference of :class:`Nested`."""
    a, b = tree["layers"][0]
    return {"out": [torch.pow(a, tree["power"]).mul(b), {"b": b + b}], "tag": tree["tag"]}


ENTRIES: tuple[OpInfo, ...] = (
    entry(
        Centre,
        samples(
            lambda m: (Point(m(), m()), Point(m(), m())),
            lambda m: (Point(m(3), m(3)), Point(m(3), m(3))),
        ),
        lambda a, b: Point(
            torch.lerp(a.position, b.position, b.weight / (a.weight + b.weight)),
            a.weight + b.weight,
        ),
    ),
    entry(
        Kick,
        samples(lambda m: (State(m(), m()), m()), lambda m: (State(m(3), m(3)), m(3))),
        _kick,
    ),
    entry(
        NoneForSubtree,
        samples(
            lambda m: (m(), {"mean": m(), "scale": m()}, [m(), m()]),
            lambda m: (m(3), {"scale": m(3), "mean": m(3)}, [m(3), m(3)]),
        ),
        _statistics,
        finite_differences=False,
    ),
    entry(
        Nested,
        samples(
            lambda m: ({"layers": [(m(), m()), None], "power": 2, "tag": "t"},),
            lambda m: ({"layers": [(m(3), m(3)), None], "power": 3, "tag": None},),
        ),
        _nested,
    ),
)
