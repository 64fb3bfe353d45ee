"""More planted faults: in plain callables, in outputs, under complex numbers, in errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from planted import FAULTS, Good, fault, samples
from torch import Tensor

import fxforms
from opinfo_db import Capability, ErrorInput, SampleInput
from opinfo_db.core import roll_values

__all__ = ["FAULTS"]


@fault("forward")
def changes_its_input(x: Tensor, y: Tensor) -> Tensor:
    result = x**3 * y
    with torch.no_grad():
        y.add_(1)
    return result


def _max_reference(x: Tensor) -> tuple[Tensor, Tensor]:
    return tuple(x.max(-1))  # type: ignore[return-value]


def one_tensor(device: Any, dtype: torch.dtype, requires_grad: bool) -> Iterator[SampleInput]:
    first = next(iter(samples(device, dtype, requires_grad)))
    yield SampleInput(first.args[:1])


@fault("forward", reference=lambda x: (x.sin(), x.cos()), sample_inputs=one_tensor)
def swapped_outputs(x: Tensor) -> Any:
    return x.cos(), x.sin()


@fault("forward", reference=lambda x: (x.sin(), x.cos()), sample_inputs=one_tensor)
def a_list_for_a_tuple(x: Tensor) -> Any:
    return [x.sin(), x.cos()]


@fault("forward", "vjp", reference=lambda x: (x.sin(), x.cos()), sample_inputs=one_tensor)
def detached_output(x: Tensor) -> Any:
    return x.sin(), x.cos().detach()


@fault("forward", reference=_max_reference, sample_inputs=one_tensor)
def wrong_index(x: Tensor) -> Any:
    values, indices = x.max(-1)
    return values, indices + 1


@fault(
    "vmap",
    reference=_max_reference,
    sample_inputs=one_tensor,
    supports=frozenset({Capability.VMAP}),
    vary=roll_values,
)
class WrongIndexUnderVmap(fxforms.Function):
    @staticmethod
    def forward(x: Tensor) -> Any:
        return tuple(x.detach().max(-1))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> Any:
        values, indices = x.movedim(in_dims[0], 0).max(-1)
        return (values, indices.flip(0)), (0, 0)


@fault("vjp", "grad", "gradcheck", dtypes=(torch.complex128,))
class MissingConj(Good):
    """The formula of a real function, on complex numbers."""


def bad_shapes(device: Any, dtype: torch.dtype) -> Iterator[ErrorInput]:
    yield ErrorInput(SampleInput((torch.zeros(2), torch.zeros(3))), ValueError, "shapes differ")


@fault("errors", error_inputs=bad_shapes)
def no_error(x: Tensor, y: Tensor) -> Tensor:
    return x.sum() * y.sum()


@fault("errors", error_inputs=bad_shapes)
def wrong_error(x: Tensor, y: Tensor) -> Tensor:
    if x.shape != y.shape:
        raise TypeError("the shapes differ")
    return x * y


@fault("errors", error_inputs=bad_shapes)
def wrong_message(x: Tensor, y: Tensor) -> Tensor:
    if x.shape != y.shape:
        raise ValueError("bad input")
    return x * y


_broken: list[bool] = []


@fault("errors", error_inputs=bad_shapes)
def broken_after_an_error(x: Tensor, y: Tensor) -> Tensor:
    if x.shape != y.shape:
        _broken.append(True)
        raise ValueError("the shapes differ")
    return x * y + len(_broken)


@fault("levels")
def leaves_a_forward_level(x: Tensor, y: Tensor) -> Tensor:
    result = x * y
    torch.autograd.forward_ad.enter_dual_level()
    return result


@fault("levels")
def leaves_another_dtype(x: Tensor, y: Tensor) -> Tensor:
    torch.set_default_dtype(torch.float64)
    return x * y
