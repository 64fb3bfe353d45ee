"""How ``apply`` is called and what ``backward`` may answer: defaults, keywords, ``None``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import fxforms
from opinfo_db.core import TOLERANCES, ErrorInput, OpInfo, SampleInput
from opinfo_db.entries.making import PAIR, Maker, SavesInputs, entry, samples


class Defaults(fxforms.Function):
    """``scale * x**power + shift``, each but ``x`` with a default."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, power: int = 2, scale: int = 3, shift: int = 0) -> Tensor:
        return scale * x**power + shift

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, ctx.power, ctx.scale, _ = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def slope(ctx: Any) -> Any:
        (x,) = ctx.saved_tensors
        return ctx.scale * ctx.power * x ** (ctx.power - 1)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return Defaults.slope(ctx) * g, None, None, None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, *rest: None) -> Any:
        return Defaults.slope(ctx) * t


class DefaultTensor(fxforms.Function):
    """A tensor that may be left out, between two that may not."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, y: Tensor, bias: Tensor | None = None, negate: bool = False) -> Tensor:
        product = x * y if bias is None else x * y + bias
        return -product if negate else product

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, y, bias, negate = inputs
        ctx.sign, ctx.biased = (-1 if negate else 1), bias is not None
        ctx.save_for_backward(x, y)
        ctx.save_for_forward(x, y)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, y = ctx.saved_tensors
        g = ctx.sign * g
        return y * g, x * g, (g if ctx.biased else None), None

    @staticmethod
    def jvp(ctx: Any, x_t: Tensor, y_t: Tensor, bias_t: Tensor | None, negate: None) -> Any:
        x, y = ctx.saved_tensors
        total = x_t * y + x * y_t
        return ctx.sign * (total if bias_t is None else total + bias_t)


class Settings(fxforms.Function):
    """Arguments of other kinds: a string, a flag, a callable, a dtype."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, name: str, flag: bool, function: Any, dtype: torch.dtype) -> Tensor:
        result: Tensor = function(x if flag else x.sin(), name)
        return result.to(dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, ctx.name, ctx.flag, ctx.function, _ = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def pull(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        linear = ctx.function(g.to(x.dtype), ctx.name)
        return linear if ctx.flag else linear * x.cos()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return Settings.pull(ctx, g), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, *rest: None) -> Any:
        return Settings.pull(ctx, t).double()


class NoneGradient(SavesInputs):
    """``None`` for the second input: a statistic that is data, not a parameter."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, mean: Tensor) -> Tensor:
        return (x - mean) ** 3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, mean = ctx.saved_tensors
        return 3 * (x - mean.detach()) ** 2 * g, None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, _: Tensor) -> Any:
        x, mean = ctx.saved_tensors
        return 3 * (x - mean.detach()) ** 2 * t


class AbsentCotangents(fxforms.Function):
    """``set_materialize_grads(False)``: what is not there arrives as ``None``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x * x, y * y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def both(ctx: Any, a: Tensor | None, b: Tensor | None) -> Any:
        x, y = ctx.saved_tensors
        return (None if a is None else 2 * x * a), (None if b is None else 2 * y * b)

    @staticmethod
    def backward(ctx: Any, a: Tensor | None, b: Tensor | None) -> Any:
        return AbsentCotangents.both(ctx, a, b)

    @staticmethod
    def jvp(ctx: Any, a: Tensor | None, b: Tensor | None) -> Any:
        return AbsentCotangents.both(ctx, a, b)


class NeedsInputGrad(SavesInputs):
    """The backward computes only what ``needs_input_grad`` asks for."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Tensor:
        return x * y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, y = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        return (y * g if wanted[0] else None), (x * g if wanted[1] else None)

    @staticmethod
    def jvp(ctx: Any, x_t: Tensor, y_t: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return x_t * y + x * y_t


def _scaled(x: Tensor, name: str) -> Tensor:
    """The callable that :class:`Settings` gets."""
    return len(name) * x


def _first_only(x: Tensor, y: Tensor) -> Any:
    """Only the first output of :class:`AbsentCotangents` goes on."""
    first, second = AbsentCotangents.apply(x, y)
    return first + second.detach()


def _default_errors(device: torch.device, dtype: torch.dtype) -> Any:
    x = Maker(device, dtype, False)(2)
    yield ErrorInput(SampleInput((x,), {"x": x}), TypeError, "Defaults.apply: multiple.*'x'")
    yield ErrorInput(SampleInput((x,), {"pow": 2}), TypeError, "Defaults.apply: .*'pow'")
    yield ErrorInput(SampleInput((), {"power": 2}), TypeError, "Defaults.apply: missing.*'x'")


ENTRIES: tuple[OpInfo, ...] = (
    entry(
        Defaults,
        samples(
            lambda m: (m(),),
            lambda m: (m(3), 3),
            lambda m: SampleInput((m.transposed(2, 3),), {"scale": 2}, "keyword"),
            lambda m: SampleInput((), {"shift": 1, "power": 1, "x": m(2)}, "all_keywords"),
        ),
        lambda x, power=2, scale=3, shift=0: x.pow(power) * scale + shift,
        error_inputs=_default_errors,
    ),
    entry(
        DefaultTensor,
        samples(
            lambda m: (m(), m()),
            lambda m: SampleInput((m(3), m(3)), {"negate": True}, "negate"),
            lambda m: SampleInput((m(3), m(3)), {"bias": m(3)}, "bias"),
            lambda m: (m(2, 3), m.transposed(2, 3), m(2, 3), True),
        ),
        lambda x, y, bias=None, negate=False: (
            (x * y + (0 if bias is None else bias)) * (-1 if negate else 1)
        ),
    ),
    entry(
        Settings,
        samples(
            lambda m: (m(), "ab", True, _scaled, torch.float64),
            lambda m: (m.transposed(2, 3), "abc", False, _scaled, torch.float64),
        ),
        lambda x, name, flag, function, dtype: (len(name) * (x if flag else x.sin())).to(dtype),
        tolerances={torch.float64: TOLERANCES[torch.float32]},
    ),
    entry(
        NoneGradient,
        PAIR,
        lambda x, mean: (x - mean.detach()).pow(3),
        finite_differences=False,
    ),
    entry(AbsentCotangents, PAIR, lambda x, y: (x**2, y**2)),
    OpInfo(
        "OneAbsentCotangent",
        _first_only,
        PAIR,
        lambda x, y: x**2 + y.detach() ** 2,
        finite_differences=False,
    ),
    entry(NeedsInputGrad, PAIR, torch.mul),
    OpInfo(
        "NeedsFirstInputGrad",
        NeedsInputGrad,
        samples(lambda m: (m(3), m(3, grad=False)), lambda m: (m(0), m(0, grad=False))),
        torch.mul,
    ),
)
