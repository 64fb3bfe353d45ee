"""torch's own autograd inside a transform: hooks, and inner calls of ``torch.autograd.grad``."""

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


def copied(x: Tensor) -> Tensor:
    """Saves a copy: what the pack hook returns is computed from the saved tensor."""
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t):
        return (x.sin() * x).sum()


def test_saved_tensor_hooks_leave_no_graph_on_the_result() -> None:
    f = lambda x: (x.sin() * x).sum()  # noqa: E731
    with torch.autograd.graph.save_on_cpu():
        results = fxforms.grad(f)(X), fxforms.vjp(f, X)[1](torch.ones(()).double())[0]
    for result in (*results, fxforms.grad(copied)(X)):
        assert torch.allclose(result, X.cos() * X + X.sin())
        assert not result.requires_grad
    w = X.clone().requires_grad_()
    slope = fxforms.grad(lambda x: (x.sin() * w).sum())(X)
    assert torch.allclose(torch.autograd.grad(slope.sum(), w)[0], X.cos())


def test_saved_tensor_hooks_at_the_first_derivative() -> None:
    expected = X.cos() * X + X.sin()
    assert torch.allclose(fxforms.grad(copied)(X), expected)
    assert torch.allclose(fxforms.vmap(fxforms.grad(lambda x: copied(x[None])))(X), expected)
    with torch.autograd.graph.save_on_cpu():
        assert torch.allclose(fxforms.grad(lambda x: (x.sin() * x).sum())(X), expected)


def nested(f: Callable[[Tensor], Tensor]) -> Tensor:
    return fxforms.grad(lambda x: fxforms.grad(f)(x).sum())(X)


def offloaded() -> Tensor:
    with torch.autograd.graph.save_on_cpu():
        return nested(lambda x: x.sin().sum())


def over_plain_autograd() -> Tensor:
    with torch.autograd.graph.save_on_cpu():
        w = X.clone().requires_grad_()
        return fxforms.grad(lambda x: (x.sin() * w).sum())(X)


def around(run: Callable[[], Any]) -> Any:
    with torch.autograd.graph.save_on_cpu():
        return run()


FORWARD_OVER_REVERSE: dict[str, Callable[[Callable[[Tensor], Tensor]], Any]] = {
    "hvp": lambda f: fxforms.hvp(f, (X,), (X,)),
    "jvp(grad)": lambda f: fxforms.jvp(fxforms.grad(f), (X,), (X,)),
    "jacfwd(grad)": lambda f: fxforms.jacfwd(fxforms.grad(f))(X),
    "jacfwd(jacrev)": lambda f: fxforms.jacfwd(fxforms.jacrev(f))(X),
    "jvp(vjp)": lambda f: fxforms.jvp(lambda x: fxforms.vjp(f, x)[1](X.sum())[0], (X,), (X,)),
}


@pytest.mark.parametrize("program", FORWARD_OVER_REVERSE)
def test_saved_tensor_hooks_below_a_forward_derivative_are_refused(program: str) -> None:
    """They would keep the tangent of a jvp level from the gradient."""
    run, plain = FORWARD_OVER_REVERSE[program], lambda x: (x.sin() * x).sum()
    for hooked in (lambda: run(copied), lambda: around(lambda: run(plain))):
        with pytest.raises(UnsupportedError, match="would be a silent zero"):
            hooked()
    tangent = fxforms.jvp(fxforms.grad(plain), (X,), (torch.ones_like(X),))[1]
    assert torch.allclose(tangent, 2 * X.cos() - X * X.sin())
    with torch.autograd.graph.save_on_cpu():  # first derivatives, of one mode and of the other
        assert torch.allclose(fxforms.jvp(plain, (X,), (X,))[1], (X.cos() * X + X.sin()) @ X)
    slope = fxforms.grad(lambda x: fxforms.jvp(copied, (x,), (torch.ones_like(X),))[1])(X)
    assert torch.allclose(slope, 2 * X.cos() - X * X.sin())


@pytest.mark.parametrize("run", [lambda: nested(copied), offloaded, over_plain_autograd])
def test_saved_tensor_hooks_below_a_second_derivative_are_refused(run: Callable[[], Any]) -> None:
    """torch runs them without recording: the derivative through them would be zero."""
    with pytest.raises(UnsupportedError, match="would be a silent zero"):
        run()
    assert torch.allclose(nested(lambda x: x.sin().sum()), -X.sin())
    assert torch.allclose(fxforms.grad(copied)(X), X.cos() * X + X.sin())


def test_saved_tensor_hooks_around_a_function() -> None:
    def f(x: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(torch.neg, lambda t: t):
            return Sine.apply(x).prod()

    assert torch.allclose(
        fxforms.grad(lambda x: f(x[:1]))(X), (-X).cos() * torch.tensor([1.0, 0.0])
    )
    assert torch.allclose(fxforms.vmap(fxforms.grad(lambda x: f(x[None])))(X), (-X).cos())


def test_an_unpack_hook_that_computes_under_vmap() -> None:
    def f(x: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, torch.neg):
            return Sine.apply(x)

    assert torch.allclose(fxforms.vmap(fxforms.grad(f))(X), (-X).cos())


class Wave(fxforms.Function):
    """``sin(x * w)``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return (x * w).sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        slope = g * (x * w).cos()
        return slope * w, slope * x


HOOKS: dict[str, tuple[Any, Any]] = {
    "nothing": (lambda t: t, lambda t: t),
    "pack copies": (torch.clone, lambda t: t),
    "unpack copies": (lambda t: t, torch.clone),
    "halves": (lambda t: 2 * t, lambda t: t / 2),
}


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("hooks", HOOKS)
def test_what_a_function_saves_is_packed_with_recording(hooks: str, mapped: bool) -> None:
    def f(x: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(*HOOKS[hooks]):
            return Wave.apply(x, w).sum()

    w, x = X.clone().requires_grad_(), X.expand(2, *X.shape)
    slopes = fxforms.vmap(fxforms.grad(f))(x)[0] if mapped else fxforms.grad(f)(x[0])
    expected = (X * w).cos() * w
    assert torch.allclose(slopes, expected)
    found = torch.autograd.grad(slopes.sum(), w)
    assert torch.allclose(found[0], torch.autograd.grad(expected.sum(), w)[0])


def test_packed_by_hooks_and_differentiated_twice_at_one_level() -> None:
    def f(x: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone):
            y = Sine.apply(x).sum()
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        return g.sum()

    with pytest.raises(UnsupportedError, match="would be a silent zero"):
        fxforms.grad(f)(X)


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
