"""Solvers with implicit gradients, and steps of differential equations with adjoints.

For ``F(x, p) = 0`` the derivative is ``dx = -(dF/dx)^-1 dF/dp dp``, whatever the solver did (the
implicit function theorem; for networks: S. Bai and others, "Deep equilibrium models", 2019). The
references run the same iteration under autograd, or solve in closed form.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import fxforms
from opinfo_db.core import OpInfo, Tolerance
from opinfo_db.entries.making import PAIR, Maker, entry, samples, scalar_tangent

LOOSE = {torch.float32: Tolerance(1e-4, 1e-3)}


class FixedPoint(fxforms.Function):
    """``x = tanh(W x + b)`` by iteration; the gradient solves one linear system."""

    generate_vmap_rule = True

    @staticmethod
    def forward(w: Tensor, b: Tensor) -> Tensor:
        x = torch.zeros_like(b)
        for _ in range(36):
            x = (w @ x + b).tanh()
        return x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(inputs[0], output)
        ctx.save_for_forward(inputs[0], output)

    @staticmethod
    def system(ctx: Any) -> Any:
        w, x = ctx.saved_tensors
        slope = 1 - x * x
        identity = torch.eye(x.shape[0], dtype=x.dtype, device=x.device)
        return x, slope, identity - slope.unsqueeze(1) * w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, slope, matrix = FixedPoint.system(ctx)
        g_b = slope * torch.linalg.solve(matrix.mT, g)
        return torch.outer(g_b, x), g_b

    @staticmethod
    def jvp(ctx: Any, w_t: Tensor, b_t: Tensor) -> Any:
        x, slope, matrix = FixedPoint.system(ctx)
        return torch.linalg.solve(matrix, slope * (w_t @ x + b_t))


class CubicRoot(fxforms.Function):
    """The root of ``x**3 + p x = q`` by Newton's method, elementwise, for positive ``p``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(p: Tensor, q: Tensor) -> Tensor:
        x = q / (1 + p)
        for _ in range(12):
            x = x - (x**3 + p * x - q) / (3 * x**2 + p)
        return x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(inputs[0], output)
        ctx.save_for_forward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        p, x = ctx.saved_tensors
        g_q = g / (3 * x**2 + p)
        return -x * g_q, g_q

    @staticmethod
    def jvp(ctx: Any, p_t: Tensor, q_t: Tensor) -> Any:
        p, x = ctx.saved_tensors
        return (q_t - x * p_t) / (3 * x**2 + p)


class RidgeRegression(fxforms.Function):
    """The minimum of ``|A x - b|**2 + r |x|**2``, differentiated by its optimality condition."""

    generate_vmap_rule = True

    @staticmethod
    def normal(a: Tensor, r: Tensor) -> Tensor:
        return a.mT @ a + r * torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)

    @staticmethod
    def forward(a: Tensor, b: Tensor, r: Tensor) -> Tensor:
        solution: Tensor = torch.linalg.solve(RidgeRegression.normal(a, r), a.mT @ b)
        return solution

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs, output)
        ctx.save_for_forward(*inputs, output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        a, b, r, x = ctx.saved_tensors
        u = torch.linalg.solve(RidgeRegression.normal(a, r), g)
        misfit = b - a @ x
        return torch.outer(misfit, u) - torch.outer(a @ u, x), a @ u, -torch.dot(u, x)

    @staticmethod
    def jvp(ctx: Any, a_t: Tensor, b_t: Tensor, r_t: Tensor) -> Any:
        a, b, r, x = ctx.saved_tensors
        change = a_t.mT @ (b - a @ x) + a.mT @ (b_t - a_t @ x) - r_t * x
        return torch.linalg.solve(RidgeRegression.normal(a, r), change)


class PendulumStep(fxforms.Function):
    """One leapfrog step of ``q'' = -sin q``, differentiated by hand."""

    generate_vmap_rule = True

    @staticmethod
    def forward(q: Tensor, p: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
        middle = p - dt / 2 * q.sin()
        q_new = q + dt * middle
        return q_new, middle - dt / 2 * q_new.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs, output[0])
        ctx.save_for_forward(*inputs, output[0])

    @staticmethod
    def backward(ctx: Any, g_q: Tensor, g_p: Tensor) -> Any:
        q, p, dt, q_new = ctx.saved_tensors
        middle = p - dt / 2 * q.sin()
        g_new = g_q - g_p * dt / 2 * q_new.cos()
        g_middle = g_p + dt * g_new
        g_dt = g_new * middle - g_p * q_new.sin() / 2 - g_middle * q.sin() / 2
        return g_new - g_middle * dt / 2 * q.cos(), g_middle, g_dt.sum()

    @staticmethod
    def jvp(ctx: Any, q_t: Tensor, p_t: Tensor, dt_t: Tensor) -> Any:
        q, p, dt, q_new = ctx.saved_tensors
        middle = p - dt / 2 * q.sin()
        middle_t = p_t - dt_t / 2 * q.sin() - dt / 2 * q.cos() * q_t
        new_t = q_t + dt_t * middle + dt * middle_t
        return new_t, middle_t - dt_t / 2 * q_new.sin() - dt / 2 * q_new.cos() * new_t


class AdjointDecay(fxforms.Function):
    """``x' = -rate x**2`` by Euler steps; the path is an extra output, the adjoint runs back.

    The adjoint is the discrete one, so it is the derivative of the steps (D. Griewank and A.
    Walther, "Evaluating Derivatives", 2008).
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, rate: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        path = [x]
        for _ in range(steps):
            path.append(path[-1] - rate * path[-1] ** 2 / steps)
        return path[-1].clone(), torch.stack(path)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, rate, ctx.steps = inputs
        ctx.save_for_backward(rate, output[1])
        ctx.save_for_forward(rate, output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor, g_path: Tensor) -> Any:
        rate, path = ctx.saved_tensors
        h, adjoint, g_rate = 1 / ctx.steps, g + g_path[-1], torch.zeros_like(rate)
        for x, g_x in zip(
            reversed(path[:-1].unbind()), reversed(g_path[:-1].unbind()), strict=True
        ):
            g_rate = g_rate - h * x**2 * adjoint
            adjoint = adjoint * (1 - 2 * h * rate * x) + g_x
        return adjoint, g_rate, None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, rate_t: Tensor, steps: None) -> Any:
        rate, path = ctx.saved_tensors
        h, tangents = 1 / ctx.steps, [t]
        for x in path[:-1].unbind():
            last = tangents[-1]
            tangents.append(last * (1 - 2 * h * rate * x) - h * rate_t * x**2)
        return tangents[-1].clone(), torch.stack(tangents)


def _contraction(m: Maker, n: int) -> tuple[Tensor, Tensor]:
    """A matrix of norm below one half, and a vector."""
    return m(n, n, low=-0.4 / n, high=0.4 / n), m(n)


def _cardano(p: Tensor, q: Tensor) -> Tensor:
    """The real root in closed form."""
    root = (q * q / 4 + p**3 / 27).sqrt()
    return (root + q / 2).pow(1 / 3) - (root - q / 2).pow(1 / 3)


def _euler(x: Tensor, rate: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """The same steps under autograd."""
    path = [x]
    for _ in range(steps):
        path.append(path[-1] - (1 / steps) * rate * path[-1] * path[-1])
    return path[-1] * 1, torch.stack(path)


ENTRIES: tuple[OpInfo, ...] = (
    entry(
        FixedPoint,
        samples(lambda m: _contraction(m, 1), lambda m: _contraction(m, 3)),
        FixedPoint.forward,
        tolerances=LOOSE,
    ),
    entry(CubicRoot, PAIR, _cardano, tolerances=LOOSE),
    entry(
        RidgeRegression,
        samples(lambda m: (m(1, 1), m(1), m()), lambda m: (m.transposed(3, 2), m(3), m())),
        lambda a, b, r: torch.linalg.lstsq(
            torch.cat((a, r.sqrt() * torch.eye(a.shape[1], dtype=a.dtype))),
            torch.cat((b, b.new_zeros(a.shape[1]))).unsqueeze(1),
        ).solution.squeeze(1),
        tolerances=LOOSE,
    ),
    entry(
        PendulumStep,
        samples(
            lambda m: (m(), m(), m()),
            lambda m: (m(3), m(3), m()),
            lambda m: (m.transposed(2, 3), m(2, 3), m()),
        ),
        PendulumStep.forward,
    ),
    entry(
        AdjointDecay,
        samples(
            lambda m: (m(), m(), 1), lambda m: (m(3), m(3), 4), lambda m: (m(0, 2), m(0, 2), 2)
        ),
        _euler,
        expected_failures=scalar_tangent("jvpvjp", "jvpjvp", "vmapjvpvjp", "mixed_jvpvjp"),
    ),
)
