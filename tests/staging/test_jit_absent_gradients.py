"""A gradient that eager leaves out is left out by a jitted function: None, and no zeros."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fxforms


def leaf(value: float = 1.0) -> Tensor:
    return torch.full((2,), value, requires_grad=True)


def found(f: Callable[..., Any], used: int | None, jitted: bool) -> list[Any]:
    """The gradients of two arguments and a captured tensor; ``used``: which output, else all."""
    a, b, w = leaf(2.0), leaf(3.0), leaf(5.0)
    g = (lambda a, b: f(a, b, w)) if not jitted else fxforms.jit(lambda a, b: f(a, b, w))
    outputs = g(a, b)
    chosen = [x for i, x in enumerate(outputs) if used in (None, i) and x.requires_grad]
    torch.autograd.backward([x.sum() for x in chosen])
    return [a.grad, b.grad, w.grad]


class Half(torch.autograd.Function):
    """Gives no gradient to its second argument."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        return x * y.detach()

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        return cotangent, None


@pytest.mark.parametrize("used", [None, 0, 1])
@pytest.mark.parametrize(
    "f",
    [
        lambda a, b, w: (a * 2, b * 3),
        lambda a, b, w: (a * 2 + b.detach(), w * a),
        lambda a, b, w: (a * w, b.detach() * w),
        lambda a, b, w: ((a * 0).sum(), b.sign()),  # zeros that are there
        lambda a, b, w: (Half.apply(a, b) * w, a * 2),
        lambda a, b, w: (a.argmax(), a + b, w),
    ],
)
def test_gradients_are_there_where_eager_has_them(f: Callable[..., Any], used: int | None) -> None:
    if used == 0 and not f(leaf(), leaf(), leaf())[0].requires_grad:
        return  # a whole number
    expected, got = found(f, used, jitted=False), found(f, used, jitted=True)
    assert [x is None for x in got] == [x is None for x in expected]
    pairs = [(x, y) for x, y in zip(got, expected) if y is not None]
    torch.testing.assert_close([x for x, _ in pairs], [y for _, y in pairs])


def test_a_captured_tensor_that_is_returned_is_itself() -> None:
    w = leaf()
    out = fxforms.jit(lambda x: (x * 2, w), backend="eager")(leaf())
    assert out[1] is w


def test_a_parameter_that_is_only_read() -> None:
    net, frozen = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    f = fxforms.jit(lambda x: net(x).sum() + frozen.weight.detach().sum(), backend="eager")
    f(torch.ones(1, 2)).backward()
    assert frozen.weight.grad is None
    assert torch.equal(net.weight.grad, torch.ones(2, 2))


def test_an_unused_input_is_an_error_of_autograd_as_in_eager() -> None:
    a, b = leaf(), leaf()
    out = fxforms.jit(lambda a, b: a * 2 + b.detach(), backend="eager")(a, b).sum()
    with pytest.raises(RuntimeError, match="to not have been used"):
        torch.autograd.grad(out, [a, b], retain_graph=True)
    assert torch.autograd.grad(out, [a, b], allow_unused=True)[1] is None


def test_a_second_derivative_keeps_them_out() -> None:
    a, b = leaf(2.0), leaf()
    f = fxforms.jit(lambda a, b: (a**3, b**2), backend="eager")
    first = torch.autograd.grad(f(a, b)[0].sum(), a, create_graph=True)[0]
    first.sum().backward()
    assert b.grad is None
    assert torch.equal(a.grad, 6 * a.detach())


def test_gradients_have_memory_of_their_own() -> None:
    """Equal ones too, and one that is the cotangent or a saved tensor: each becomes a ``.grad``."""
    a, b, w, x = leaf(), leaf(), leaf(), torch.ones(2)
    f = fxforms.jit(lambda a, b: (a + b + w * x, w.detach() * a), backend="eager")
    for cotangent in (torch.ones(2), torch.full((2,), 3.0)):
        f(a, b)[0].backward(cotangent)
    for gradient in (a.grad, b.grad, w.grad):
        assert torch.equal(gradient, torch.full((2,), 4.0))
        gradient.zero_()
    assert torch.equal(cotangent, torch.full((2,), 3.0))
    assert torch.equal(x, torch.ones(2))


def test_batched_cotangents() -> None:
    a = leaf(2.0)
    out = fxforms.jit(lambda a: a**2, backend="eager")(a)
    rows = torch.autograd.grad(out, a, torch.eye(2), is_grads_batched=True)[0]
    assert torch.equal(rows, 4 * torch.eye(2))
