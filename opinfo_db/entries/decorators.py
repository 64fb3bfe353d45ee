"""Plain functions with rules by decorators: ``custom_vjp``, ``custom_jvp``, ``linear_function``.

Each is a callable, not a class. Its arguments, residuals and outputs may be pytrees.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import fxforms
from opinfo_db.core import OpInfo, Rule
from opinfo_db.entries.making import PAIR, POSITIVE, one_tensor, samples


@fxforms.custom_vjp
def log1p_exp(x: Tensor) -> Tensor:
    """``log(1 + e**x)``."""
    return x.exp().log1p()


def _log1p_exp_forward(x: Tensor) -> tuple[Tensor, Any]:
    exponential = x.exp()
    return exponential.log1p(), {"exponential": exponential}


log1p_exp.defvjp(
    _log1p_exp_forward,
    lambda saved, g: (g * saved["exponential"] / (1 + saved["exponential"]),),
)


def _power(x: Tensor, exponent: int) -> Tensor:
    """``x ** exponent``, the exponent no operand."""
    return x**exponent


power = fxforms.custom_vjp(_power, nondiff_argnums=(1,))
power.defvjp(
    lambda x, exponent: (x**exponent, x),
    lambda exponent, x, g: (exponent * x ** (exponent - 1) * g,),
)


@fxforms.custom_vjp
def polar(r: Tensor, phi: Tensor) -> tuple[Tensor, Tensor]:
    """Two outputs, one cotangent that is a tuple."""
    return r * phi.cos(), r * phi.sin()


def _polar_backward(saved: tuple[Tensor, Tensor, Tensor], g: tuple[Tensor, Tensor]) -> Any:
    r, cosine, sine = saved
    return g[0] * cosine + g[1] * sine, r * (g[1] * cosine - g[0] * sine)


polar.defvjp(
    lambda r, phi: ((r * phi.cos(), r * phi.sin()), (r, phi.cos(), phi.sin())), _polar_backward
)


@fxforms.custom_vjp
def affine(params: dict[str, Tensor], x: Tensor) -> Tensor:
    """A dict of parameters."""
    return params["w"] * x + params["b"]


affine.defvjp(
    lambda params, x: (params["w"] * x + params["b"], (params["w"], x)),
    lambda saved, g: ({"w": g * saved[1], "b": g}, g * saved[0]),
)


@fxforms.custom_jvp
def hypot(x: Tensor, y: Tensor) -> Tensor:
    """``sqrt(x**2 + y**2)``."""
    return (x * x + y * y).sqrt()


@hypot.defjvp
def _hypot_jvp(primals: Any, tangents: Any) -> tuple[Tensor, Tensor]:
    (x, y), (x_t, y_t) = primals, tangents
    length = hypot(x, y)
    return length, (x * x_t + y * y_t) / length


@fxforms.custom_jvp
def product(x: Tensor, y: Tensor) -> Tensor:
    """One rule an argument."""
    return x * y


product.defjvps(lambda t, ans, x, y: t * y, lambda t, ans, x, y: x * t)


def _shift(x: Tensor, by: int) -> Tensor:
    """``exp(x) + by``, the shift no operand."""
    return x.exp() + by


shift = fxforms.custom_jvp(_shift, nondiff_argnums=(1,))
shift.defjvp(lambda by, primals, tangents: (shift(*primals, by), primals[0].exp() * tangents[0]))


@fxforms.custom_jvp
def square_dict(pair: dict[str, Tensor]) -> dict[str, Any]:
    """Containers in and out."""
    return {"squares": [pair["x"] ** 2, pair["y"] ** 2], "sum": pair["x"] + pair["y"]}


@square_dict.defjvp
def _square_dict_jvp(primals: Any, tangents: Any) -> Any:
    (pair,), (t,) = primals, tangents
    squares = [2 * pair["x"] * t["x"], 2 * pair["y"] * t["y"]]
    return square_dict(pair), {"squares": squares, "sum": t["x"] + t["y"]}


reverse = fxforms.linear_function(lambda x: x.flip(-1) * 3, lambda g: g.flip(-1) * 3)
both = fxforms.linear_function(
    lambda pair: {"sum": pair["x"] + 2 * pair["y"], "x": pair["x"] * 1},
    lambda g: {"x": g["sum"] + g["x"], "y": 2 * g["sum"]},
)


def decorated(
    name: str, op: Any, rule: Rule, sample_inputs: Any, reference: Any, **options: Any
) -> OpInfo:
    """The entry of a decorated function whose author wrote one ``rule``."""
    return OpInfo(name, op, sample_inputs, reference, rules=frozenset({rule}), **options)


_DICT = samples(
    lambda m: ({"x": m(), "y": m()},), lambda m: ({"x": m(2, 3), "y": m.transposed(2, 3)},)
)

ENTRIES: tuple[OpInfo, ...] = (
    decorated("custom_vjp", log1p_exp, Rule.BACKWARD, POSITIVE, torch.nn.functional.softplus),
    decorated("custom_vjp_nondiff", power, Rule.BACKWARD, one_tensor(lambda m: m, 3), torch.pow),
    decorated(
        "custom_vjp_tuple",
        polar,
        Rule.BACKWARD,
        PAIR,
        lambda r, phi: (torch.cos(phi) * r, torch.sin(phi) * r),
    ),
    decorated(
        "custom_vjp_dict",
        affine,
        Rule.BACKWARD,
        samples(lambda m: ({"w": m(), "b": m()}, m()), lambda m: ({"w": m(3), "b": m(3)}, m(3))),
        lambda params, x: torch.addcmul(params["b"], x, params["w"]),
    ),
    decorated("custom_jvp", hypot, Rule.JVP, PAIR, lambda x, y: (x**2 + y**2) ** 0.5),
    decorated("custom_jvp_each", product, Rule.JVP, PAIR, torch.mul),
    decorated(
        "custom_jvp_nondiff",
        shift,
        Rule.JVP,
        one_tensor(lambda m: m, 3),
        lambda x, by: torch.add(torch.exp(x), by),
    ),
    decorated(
        "custom_jvp_dict",
        square_dict,
        Rule.JVP,
        _DICT,
        lambda pair: {
            "squares": [torch.square(pair["x"]), torch.square(pair["y"])],
            "sum": torch.add(pair["y"], pair["x"]),
        },
    ),
    decorated(
        "linear_function",
        reverse,
        Rule.JVP,
        samples(lambda m: (m(3),), lambda m: (m.transposed(2, 3),)),
        lambda x: 3 * torch.flip(x, (-1,)),
    ),
    decorated(
        "linear_function_dict",
        both,
        Rule.JVP,
        _DICT,
        lambda pair: {"sum": torch.add(pair["x"], pair["y"], alpha=2), "x": pair["x"].clone()},
    ),
)
