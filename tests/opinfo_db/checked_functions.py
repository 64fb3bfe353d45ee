"""Functions as a user has them in a module, right and wrong, for the tests of the command."""

from __future__ import annotations

import torch

import fxforms


class Cube(fxforms.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g

    @staticmethod
    def jvp(ctx, t):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * t

    @staticmethod
    def sample_inputs(device, dtype, requires_grad):
        yield torch.zeros(3, device=device, dtype=dtype, requires_grad=requires_grad)
        yield torch.rand(3, device=device, dtype=dtype, requires_grad=requires_grad)


class WrongSign(Cube):
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return -3 * x**2 * g


class WrongSecond(Cube):
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x.detach() ** 2 * g


class Once(Cube):
    @staticmethod
    @fxforms.once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g


class Bare(torch.autograd.Function):
    @staticmethod
    def forward(x, n):
        return x**n

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.n = inputs[1]

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return ctx.n * x ** (ctx.n - 1) * g, None


class ForwardOnly(fxforms.Function):
    @staticmethod
    def forward(x):
        return x**2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass


def scaled(x, weight):
    return (x * weight).sin()


constant = 3
