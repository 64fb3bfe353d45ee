"""Complex tensors. A gradient is the conjugate Wirtinger derivative, as everywhere in torch.

For a holomorphic ``f`` that is ``conj(f') * g``, and the tangent is ``f' * t``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import fxforms
from opinfo_db.core import OpInfo
from opinfo_db.entries.making import COMPLEX, PAIR, POSITIVE, SavesInputs, entry, samples


class ComplexProduct(SavesInputs):
    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        return a * b

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        a, b = ctx.saved_tensors
        return b.conj() * g, a.conj() * g

    @staticmethod
    def jvp(ctx: Any, a_t: Tensor, b_t: Tensor) -> Any:
        a, b = ctx.saved_tensors
        return a_t * b + a * b_t


class ComplexExponential(fxforms.Function):
    """The output is saved."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor) -> Tensor:
        return z.exp()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (w,) = ctx.saved_tensors
        return w.conj() * g

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Any:
        (w,) = ctx.saved_tensors
        return w * t


class SquaredModulus(SavesInputs):
    """Complex to real, not holomorphic: the gradient is ``2 z g``, the tangent real."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor) -> Tensor:
        return z.real * z.real + z.imag * z.imag

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (z,) = ctx.saved_tensors
        return 2 * z * g

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Any:
        (z,) = ctx.saved_tensors
        return 2 * (z.conj() * t).real


class Conjugate(fxforms.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor) -> Tensor:
        return z.conj().resolve_conj()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g.conj()

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Any:
        return t.conj()


class ComplexFromParts(fxforms.Function):
    """Real to complex."""

    generate_vmap_rule = True

    @staticmethod
    def forward(real: Tensor, imag: Tensor) -> Tensor:
        return torch.complex(real, imag)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g.real, g.imag

    @staticmethod
    def jvp(ctx: Any, real_t: Tensor, imag_t: Tensor) -> Any:
        return torch.complex(real_t, imag_t)


class Fourier(fxforms.Function):
    """The discrete Fourier transform over the last dim; its transpose is the inverse, scaled."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor) -> Tensor:
        result: Tensor = torch.fft.fft(z)
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return torch.fft.ifft(g, norm="forward")

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Any:
        return Fourier.apply(t)


class ComplexMatrixProduct(SavesInputs):
    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        return a @ b

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        a, b = ctx.saved_tensors
        return g @ b.mH, a.mH @ g

    @staticmethod
    def jvp(ctx: Any, a_t: Tensor, b_t: Tensor) -> Any:
        a, b = ctx.saved_tensors
        return a_t @ b + a @ b_t


def _discrete_fourier(z: Tensor) -> Tensor:
    """By the matrix of the transform."""
    size = z.shape[-1]
    steps = torch.arange(size, dtype=torch.float64)
    angle = -2 * torch.pi * torch.outer(steps, steps) / size
    return z @ torch.polar(torch.ones_like(angle), angle).to(z.dtype)


ENTRIES: tuple[OpInfo, ...] = (
    entry(ComplexProduct, PAIR, lambda a, b: torch.mul(b, a), dtypes=COMPLEX),
    entry(ComplexExponential, POSITIVE, torch.exp, dtypes=COMPLEX),
    entry(SquaredModulus, POSITIVE, lambda z: (z * z.conj()).real, dtypes=COMPLEX),
    entry(Conjugate, POSITIVE, lambda z: torch.complex(z.real, -z.imag), dtypes=COMPLEX),
    entry(ComplexFromParts, PAIR, lambda real, imag: real + 1j * imag),
    entry(
        Fourier,
        samples(lambda m: (m(1),), lambda m: (m(3),), lambda m: (m.transposed(2, 4),)),
        _discrete_fourier,
        dtypes=COMPLEX,
    ),
    entry(
        ComplexMatrixProduct,
        samples(
            lambda m: (m(1, 1), m(1, 1)),
            lambda m: (m.transposed(2, 3), m(3, 2)),
            lambda m: (m(2, 0), m(0, 3)),
        ),
        lambda a, b: (a.unsqueeze(-1) * b).sum(-2),
        dtypes=COMPLEX,
    ),
)
