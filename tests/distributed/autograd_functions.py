"""The functions that the tests of autograd and of remote functions run on workers."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch

import fxforms
from fxforms import distributed as fd
from fxforms.distributed import register

Tensor = torch.Tensor


@register
def smooth(x: Tensor, y: Tensor) -> Tensor:
    return (x.sin() * y).exp() * x


@register
def power(x: Tensor, exponent: float = 3.0) -> Tensor:
    return x**exponent


@register
def tree(data: dict[str, Tensor], scale: float, *, shift: Tensor) -> dict[str, Any]:
    moved = data["x"] * scale + shift
    return {"moved": moved, "parts": [data["y"].sin(), torch.arange(3)], "name": "tree"}


@register
def shapes(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A differentiable output, an integer one and one without a gradient."""
    return x.exp(), x.argmax(), x.detach() * 2


@register
def relay(worker: str, x: Tensor) -> Tensor:
    """A call of this worker to another, inside a remote function."""
    return fd.rpc_sync(worker, smooth, (x, x.cos()))


@register
def back_and_forth(path: list[str], x: Tensor) -> Tensor:
    """Work here before and after a call of the next worker of ``path``."""
    here = (x * 1.5).sin()
    if path:
        here = fd.rpc_sync(path[0], back_and_forth, (path[1:], here)) + here
    return here.cos() * x


@register
def apart(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.sin() * y, x.cos() + y


@register
def bent(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Piecewise linear."""
    return x.abs() - y.relu(), x - y


class Swish(fxforms.Function):
    """A custom Function, run on a worker."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return cotangent * s * (1 + x * (1 - s))


@register
def swish(x: Tensor) -> Tensor:
    result: Tensor = Swish.apply(x)
    return result


WEIGHT = torch.tensor([2.0, -3.0, 0.5], dtype=torch.float64, requires_grad=True)


@register
def weighted(x: Tensor) -> Tensor:
    return x * WEIGHT


@register
def weight() -> Tensor:
    return WEIGHT


@register
def weight_gradient(context_id: int) -> Tensor | None:
    """What has accumulated on this worker, and that nothing is in ``.grad``."""
    assert WEIGHT.grad is None
    return fd.get_gradients(context_id).get(WEIGHT)


@register
def rref_product(rref: Any, x: Tensor) -> Tensor:
    return rref.to_here() * x.sin()


class Refusing(torch.autograd.Function):
    """Raises in its backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        raise KeyError("no gradient today")


class Stopping(torch.autograd.Function):
    """Ends the process, or sleeps, in its backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        if ctx.seconds < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(ctx.seconds)
        return grad, None


@register
def refuse_backward(x: Tensor) -> Tensor:
    result: Tensor = Refusing.apply(x)
    return result


@register
def stop_in_backward(x: Tensor, seconds: float) -> Tensor:
    result: Tensor = Stopping.apply(x, seconds)
    return result


@register
def plain_backward(x: Tensor) -> Tensor:
    x.sum().backward()
    return x


@register
def counted(x: Tensor) -> Tensor:
    CALLS.append(tuple(x.shape))
    return x.sin()


CALLS: list[tuple[int, ...]] = []


@register
def mean_square(w: Tensor, x: Tensor) -> Tensor:
    return ((x @ w) ** 2).mean()


@register
def noisy(x: Tensor) -> Tensor:
    return x + torch.rand_like(x)


@register
def dropped_square(x: Tensor) -> Tensor:
    return torch.nn.functional.dropout(x, 0.5) * x


@register
def changed_in_place(x: Tensor) -> Tensor:
    return x.mul_(2).sin()


@register
def first_alone(x: Tensor, y: Tensor) -> Tensor:
    return x * 2


@register
def slow_sine(x: Tensor) -> Tensor:
    time.sleep(0.2)
    return x.sin()


@register
def parameter(value: Tensor) -> Tensor:
    return value.clone().requires_grad_()


@register
def bent_through(path: list[str], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Piecewise linear, with the work between passed on to the workers of ``path``."""
    a, b = bent(x, y)
    if path:
        c, d = fd.rpc_sync(path[0], bent_through, (path[1:], a, b))
        a, b = c + x, d - a
    return a, b


@register
def make_rref_late(seconds: float) -> Any:
    time.sleep(seconds)
    return fd.RRef(torch.ones(2))


@register
def relay_late(worker: str, x: Tensor, seconds: float) -> Tensor:
    time.sleep(seconds)
    result: Tensor = fd.rpc_sync(worker, smooth, (x, x.cos()))
    return result


@register
def one_object(x: Tensor, parts: dict[str, Tensor]) -> tuple[Tensor, Tensor, bool]:
    """Arguments that are one tensor, changed in place; and a result that is there twice."""
    y = parts["y"]
    x.mul_(2)
    result = x.sin() * y
    return result, result, x is y


@register
def tree_product(x: Tensor, parts: list[Tensor]) -> Tensor:
    return (x + parts[0] + parts[1]) @ parts[2]


@register
def looked_up(table: Tensor, rows: Tensor) -> Tensor:
    """Its gradient is sparse."""
    return torch.nn.functional.embedding(rows, table, sparse=True).sin()


@register
def rref_minus(rref: Any, y: Tensor) -> Tensor:
    result: Tensor = rref.to_here() - y
    return result
