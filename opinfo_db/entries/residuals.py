"""Residuals of the combined form: intermediates that ``forward`` leaves on ``ctx``.

The second derivative goes through them, and is that of the body.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import fxforms
from opinfo_db.core import OpInfo
from opinfo_db.entries.making import POSITIVE, entry, samples


class CombinedResidual(fxforms.Function):
    """A saved intermediate that is no output."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        exponential = x.exp()
        ctx.save_for_backward(exponential)
        return (1 + exponential).log()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (e,) = ctx.saved_tensors
        return g * e / (1 + e)


class CombinedGenerated(CombinedResidual):
    """``generate_vmap_rule`` on a Function with a residual."""

    generate_vmap_rule = True


class CombinedFixedResidual(fxforms.Function):
    """A floating output that is marked non-differentiable and saved: a residual all the same."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        cosine = x.cos()
        ctx.mark_non_differentiable(cosine)
        ctx.save_for_backward(cosine)
        return x.sin(), cosine

    @staticmethod
    def backward(ctx: Any, g: Tensor, g_cosine: Tensor) -> Any:
        (cosine,) = ctx.saved_tensors
        return g * cosine


class CombinedAttributes(fxforms.Function):
    """Tensors as attributes of ``ctx``: an input, a residual in a dict; and plain values."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, power: int, name: str) -> Tensor:
        ctx.x, ctx.kept, ctx.power = x, {"log": x.log(), "name": name}, power
        return x**power * x.log()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        lower = ctx.x ** (ctx.power - 1)
        return g * lower * (ctx.power * ctx.kept["log"] + len(ctx.kept["name"])), None, None


class CombinedNoGrad(fxforms.Function):
    """``no_grad`` and ``detach`` in ``forward``, where they change nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = 1 / (1 + x.detach() ** 2)
        ctx.save_for_backward(scale)
        return x.atan()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (scale,) = ctx.saved_tensors
        return g * scale


class CombinedTree(fxforms.Function):
    """The combined form with containers: residuals, an attribute, ``needs_input_grad`` by tree."""

    @staticmethod
    def forward(ctx: Any, pair: dict[str, Tensor], scale: Tensor) -> dict[str, Tensor]:
        exponential = pair["x"].exp()
        ctx.save_for_backward(exponential, pair["y"])
        ctx.scale, ctx.asked = scale, ctx.needs_input_grad
        return {"a": exponential * pair["y"] * scale, "b": pair["x"].clone()}

    @staticmethod
    def backward(ctx: Any, g: dict[str, Tensor]) -> Any:
        exponential, y = ctx.saved_tensors
        if len(ctx.asked) != 2 or len(ctx.needs_input_grad) != 2:
            raise RuntimeError("needs_input_grad has one flag an argument")
        common = exponential * g["a"]
        in_x = common * y * ctx.scale + g["b"]
        return {"x": in_x, "y": common * ctx.scale}, common * y


ENTRIES: tuple[OpInfo, ...] = (
    *(
        entry(op, POSITIVE, reference)
        for op, reference in (
            (CombinedResidual, torch.nn.functional.softplus),
            (CombinedGenerated, torch.nn.functional.softplus),
            (CombinedFixedResidual, lambda x: (torch.sin(x), torch.cos(x).detach())),
            (CombinedNoGrad, torch.atan),
        )
    ),
    entry(
        CombinedAttributes,
        samples(lambda m: (m(), 2, "a"), lambda m: (m(0), 2, "a"), lambda m: (m(2, 3), 3, "b")),
        lambda x, power, name: x.pow(power).mul(torch.log(x)),
    ),
    entry(
        CombinedTree,
        samples(lambda m: ({"x": m(), "y": m()}, m()), lambda m: ({"x": m(3), "y": m(3)}, m(3))),
        lambda pair, scale: {"a": scale * pair["y"] * torch.exp(pair["x"]), "b": pair["x"] * 1},
    ),
)
