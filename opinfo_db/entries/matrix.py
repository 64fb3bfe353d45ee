"""Matrix functions, with the derivatives that the literature gives.

Formulas: M. Giles, "An extended collection of matrix derivative results", 2008; the exponential
by block matrices: R. Mathias, "A chain rule for matrix functions", 1996.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import fxforms
from opinfo_db.core import ErrorInput, OpInfo, SampleInput, Tolerance
from opinfo_db.entries.making import (
    TWICE,
    Maker,
    SavesInputs,
    entry,
    samples,
)

#: Solves lose some digits.
LOOSE = {torch.float32: Tolerance(1e-4, 1e-3)}


def symmetric(a: Tensor) -> Tensor:
    """The symmetric part."""
    return (a + a.mT) / 2


class MatrixProduct(SavesInputs):
    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        return a @ b

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        a, b = ctx.saved_tensors
        return g @ b.mT, a.mT @ g

    @staticmethod
    def jvp(ctx: Any, a_t: Tensor, b_t: Tensor) -> Any:
        a, b = ctx.saved_tensors
        return a_t @ b + a @ b_t


class Inverse(fxforms.Function):
    """``d(A^-1) = -A^-1 dA A^-1``; only the output is saved."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor) -> Tensor:
        inverse: Tensor = torch.linalg.inv(a)
        return inverse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (inverse,) = ctx.saved_tensors
        return -inverse.mT @ g @ inverse.mT

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Any:
        (inverse,) = ctx.saved_tensors
        return -inverse @ t @ inverse


class CholeskySolve(fxforms.Function):
    """``A x = b`` for the symmetric part of ``a``, which is positive definite.

    The gradient is implicit: from ``A dx = db - dA x``, with no derivative of the factor.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        factor = torch.linalg.cholesky(symmetric(a))
        return torch.cholesky_solve(b, factor)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(inputs[0], output)
        ctx.save_for_forward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        a, x = ctx.saved_tensors
        g_b = CholeskySolve.apply(a, g)
        return -symmetric(g_b @ x.mT), g_b

    @staticmethod
    def jvp(ctx: Any, a_t: Tensor, b_t: Tensor) -> Any:
        a, x = ctx.saved_tensors
        return CholeskySolve.apply(a, b_t - symmetric(a_t) @ x)


class LogDeterminant(SavesInputs):
    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor) -> Tensor:
        result: Tensor = torch.linalg.slogdet(a).logabsdet
        return result

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (a,) = ctx.saved_tensors
        return g[..., None, None] * Inverse.apply(a).mT

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Any:
        (a,) = ctx.saved_tensors
        return (Inverse.apply(a).mT * t).sum((-2, -1))


class Exponential(SavesInputs):
    """The Frechet derivative is the upper right block of ``exp [[A, E], [0, A]]``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor) -> Tensor:
        result: Tensor = torch.linalg.matrix_exp(a)
        return result

    @staticmethod
    def frechet(a: Tensor, direction: Tensor) -> Any:
        n = a.shape[-1]
        top = torch.cat((a, direction), -1)
        bottom = torch.cat((torch.zeros_like(a), a), -1)
        return Exponential.apply(torch.cat((top, bottom), -2))[..., :n, n:]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (a,) = ctx.saved_tensors
        return Exponential.frechet(a.mT, g)

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Any:
        (a,) = ctx.saved_tensors
        return Exponential.frechet(a, t)


class SymmetricEigenvalues(fxforms.Function):
    """Eigenvalues; the vectors are an extra output without a derivative, so once only."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor) -> tuple[Tensor, Tensor]:
        values, vectors = torch.linalg.eigh(symmetric(a))
        return values, vectors

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    @fxforms.once_differentiable
    def backward(ctx: Any, g: Tensor, g_vectors: Tensor) -> Any:
        (vectors,) = ctx.saved_tensors
        return (vectors * g.unsqueeze(-2)) @ vectors.mT


class QuadraticForm(SavesInputs):
    """``x' A x`` for any square ``A``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, x: Tensor) -> Tensor:
        return torch.einsum("i,ij,j->", x, a, x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        a, x = ctx.saved_tensors
        return g * torch.outer(x, x), g * ((a + a.mT) @ x)

    @staticmethod
    def jvp(ctx: Any, a_t: Tensor, x_t: Tensor) -> Any:
        a, x = ctx.saved_tensors
        return torch.einsum("i,ij,j->", x, a_t, x) + torch.dot((a + a.mT) @ x, x_t)


def _positive(m: Maker, n: int) -> Tensor:
    """Diagonally dominant, so positive definite and well conditioned; not quite symmetric."""
    values = m(n, n, low=0, high=0.3, grad=False) + torch.diag(
        torch.arange(1, n + 1, dtype=m.dtype, device=m.device)
    )
    return values.requires_grad_(m.requires_grad)


def _solve_errors(device: torch.device, dtype: torch.dtype) -> Any:
    identity = torch.eye(2, device=device, dtype=dtype)
    right = torch.ones(2, 1, device=device, dtype=dtype)
    yield ErrorInput(SampleInput((-identity, right)), RuntimeError, "not positive-definite")
    yield ErrorInput(SampleInput((identity, right[:1])), RuntimeError, "Incompatible matrix sizes")


def _product_errors(device: torch.device, dtype: torch.dtype) -> Any:
    make = Maker(device, dtype, False)
    yield ErrorInput(SampleInput((make(2, 3), make(2, 3))), RuntimeError, "cannot be multiplied")


def _series(a: Tensor) -> Tensor:
    """The exponential by its power series, for small matrices."""
    term = total = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    for k in range(1, 25):
        term = term @ a / k
        total = total + term
    return total


_SQUARE = samples(lambda m: (_positive(m, 1),), lambda m: (_positive(m, 3),))

ENTRIES: tuple[OpInfo, ...] = (
    entry(
        MatrixProduct,
        samples(
            lambda m: (m(1, 1), m(1, 1)),
            lambda m: (m.transposed(2, 3), m(3, 2)),
            lambda m: (m(2, 0), m(0, 3)),
        ),
        lambda a, b: (a.unsqueeze(-1) * b).sum(-2),
        error_inputs=_product_errors,
    ),
    entry(Inverse, _SQUARE, lambda a: torch.linalg.solve(a, torch.eye(len(a), dtype=a.dtype))),
    entry(
        CholeskySolve,
        samples(
            lambda m: (_positive(m, 1), m(1, 1)),
            lambda m: (_positive(m, 3), m.transposed(3, 2)),
        ),
        lambda a, b: torch.linalg.solve(symmetric(a), b),
        tolerances=LOOSE,
        error_inputs=_solve_errors,
    ),
    entry(LogDeterminant, _SQUARE, torch.logdet, tolerances=LOOSE),
    entry(
        Exponential,
        samples(lambda m: (m(1, 1),), lambda m: (m.transposed(2, 2),)),
        _series,
        tolerances=LOOSE,
    ),
    entry(
        SymmetricEigenvalues,
        _SQUARE,
        lambda a: torch.linalg.eigvalsh(symmetric(a)),
        through=lambda a: SymmetricEigenvalues.apply(a)[0],
        without=TWICE,
        tolerances=LOOSE,
    ),
    entry(
        QuadraticForm,
        samples(lambda m: (m(1, 1), m(1)), lambda m: (m.transposed(3, 3), m(3))),
        lambda a, x: x @ a @ x,
    ),
)
