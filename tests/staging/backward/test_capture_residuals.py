"""What a Function saved beside its inputs and outputs, in a captured backward pass."""

from __future__ import annotations

import torch
from capture_graphs import leaf

import fxforms


class Residual(fxforms.Function):
    """``sin(exp(x))``, which saves the exponential."""

    @staticmethod
    def forward(ctx, x):
        saved = x.exp()
        ctx.save_for_backward(saved)
        return saved.sin()

    @staticmethod
    def backward(ctx, g):
        (saved,) = ctx.saved_tensors
        return g * saved.cos() * saved


def test_a_second_derivative_through_a_residual() -> None:
    def second(op, through):
        x = torch.linspace(-1.0, 1.0, 3, dtype=torch.double).requires_grad_()
        (found,) = torch.autograd.grad(through(op(x) * x, x).sum(), x)
        return found

    def eager(y, x):
        return torch.autograd.grad(y.sum(), x, create_graph=True)[0]

    def captured(y, x):
        return fxforms.capture_backward(y, x)(torch.ones_like(y))

    def compiled(y, x):
        with fxforms.compiled_backward(lambda graph, examples: graph):
            return eager(y, x)

    wanted = second(lambda x: x.exp().sin(), eager)
    for through in (captured, compiled):
        torch.testing.assert_close(second(Residual.apply, through), wanted)
    x = leaf(3)
    backward = fxforms.capture_backward(Residual.apply(x), x)
    other = backward.saved[0].detach() + 1
    found = backward(torch.ones_like(x), [other, *backward.saved[1:]])
    torch.testing.assert_close(found, other.cos() * other)  # what is given has no history
