"""torch's own autograd inside a transform: hooks of tensors and nodes, ``torch.autograd.grad``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fxforms
from fxforms.errors import UnsupportedError

X = torch.tensor([0.5, 1.5], dtype=torch.float64)


def tensor_hook(x: Tensor) -> Tensor:
    y = x.sin()
    y.register_hook(lambda g: 5 * g)
    return y.sum()


def node_hook(x: Tensor) -> Tensor:
    y = x.sin()
    assert y.grad_fn is not None
    y.grad_fn.register_hook(lambda inputs, outputs: tuple([5 * g for g in inputs]))
    return y.sum()


def node_prehook(x: Tensor) -> Tensor:
    y = x.sin()
    assert y.grad_fn is not None
    y.grad_fn.register_prehook(lambda outputs: tuple([5 * g for g in outputs]))
    return y.sum()


def leaf_hook(x: Tensor) -> Tensor:
    x.register_hook(lambda g: 5 * g)
    return x.sin().sum()


class Sine(fxforms.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.saved_tensors[0].cos()


def hook_of_a_function(x: Tensor) -> Tensor:
    y = Sine.apply(x)
    y.grad_fn.register_hook(lambda inputs, outputs: tuple([5 * g for g in inputs]))
    return y.sum()


class SineByCosine(fxforms.Function):
    """Saves a residual, which is an output of its node at each level."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x.cos())
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.saved_tensors[0]


def prehook_sees_outputs_alone(x: Tensor) -> Tensor:
    y = SineByCosine.apply(x)
    y.grad_fn.register_prehook(lambda outputs: tuple([5 * g for g in outputs]))
    return y.sum()


def hook_sees_outputs_alone(x: Tensor) -> Tensor:
    y = SineByCosine.apply(x)

    def hook(inputs: Any, outputs: Any) -> Any:
        assert [g.shape for g in outputs] == [y.shape]
        return tuple([5 * g for g in inputs])

    y.grad_fn.register_hook(hook)
    return y.sum()


HOOKED = [
    tensor_hook,
    leaf_hook,
    node_hook,
    node_prehook,
    hook_of_a_function,
    prehook_sees_outputs_alone,
    hook_sees_outputs_alone,
]


@pytest.mark.parametrize("f", HOOKED)
def test_a_hook_changes_the_gradient_at_its_own_level(f: Callable[[Tensor], Tensor]) -> None:
    assert torch.allclose(fxforms.grad(f)(X), 5 * X.cos())
    assert torch.allclose(fxforms.vmap(fxforms.grad(lambda x: f(x[None])))(X), 5 * X.cos())
    second = fxforms.grad(lambda x: fxforms.grad(f)(x).sum())(X)
    assert torch.allclose(second, -5 * X.sin())


def inner_grad(x: Tensor) -> Tensor:
    (g,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    return g.sum()


def test_autograd_grad_inside_grad_differentiates_at_that_level() -> None:
    assert torch.allclose(fxforms.grad(inner_grad)(X), 6 * X)
    assert torch.allclose(fxforms.vmap(fxforms.grad(inner_grad))(X), 6 * X)


def test_an_own_leaf_inside_grad() -> None:
    def f(x: Tensor) -> Tensor:
        v = x.detach().requires_grad_()
        (g,) = torch.autograd.grad((v**3).sum(), v)
        return (g * x).sum()

    assert torch.allclose(fxforms.grad(f)(X), 3 * X**2)


def own_leaf(x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    return torch.autograd.grad((x**3).sum(), x)[0]


def own_backward(x: Tensor) -> Tensor:
    v = x.detach().clone().requires_grad_()
    (v**3).sum().backward()
    assert v.grad is not None
    return (v.grad * x).sum()


@pytest.mark.parametrize(
    "run",
    [
        lambda: fxforms.vmap(own_leaf)(X),
        lambda: fxforms.vmap(own_backward)(X),
        lambda: fxforms.grad(own_backward)(X),
    ],
)
def test_an_own_leaf_elsewhere_shows_what_to_write(run: Callable[[], Any]) -> None:
    with pytest.raises(UnsupportedError, match=r"write fxforms\.grad\(g\)\(v\) in place of"):
        run()
    assert torch.allclose(fxforms.vmap(fxforms.grad(lambda v: (v**3).sum()))(X), 3 * X**2)


def test_data_inside_vmap_shows_what_to_write() -> None:
    with pytest.raises(UnsupportedError, match=r"x\.detach\(\) in place of x\.data"):
        fxforms.vmap(lambda x: x.data)(X)
