"""``torch.utils.checkpoint``: right of every order inside transforms, unchanged outside."""

from __future__ import annotations

from typing import Any

import oracle
import pytest
import torch
from combined_cases import Sine
from oracle import vec
from torch import Tensor
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from unary import PROGRAMS, check, rows

import fxforms

reentrant_or_not = pytest.mark.parametrize("reentrant", [True, False])


def block(x: Tensor) -> Tensor:
    return x.sin() * x.exp()


@reentrant_or_not
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_block(program: str, reentrant: bool) -> None:
    check(program, lambda x: checkpoint(block, x, use_reentrant=reentrant), block)


@reentrant_or_not
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_function_with_residuals_in_a_block(program: str, reentrant: bool) -> None:
    check(
        program,
        lambda x: checkpoint(lambda x: Sine.apply(x) * 2, x, use_reentrant=reentrant),
        lambda x: 2 * x.sin(),
    )


@reentrant_or_not
@pytest.mark.parametrize("program", ["grad", "vmap_grad", "grad_grad", "vmap_grad_grad"])
def test_blocks_inside_each_other(program: str, reentrant: bool) -> None:
    inner = lambda x: checkpoint(torch.sin, x, use_reentrant=not reentrant)  # noqa: E731
    outer = lambda x: checkpoint(lambda x: inner(x) * x, x, use_reentrant=reentrant)  # noqa: E731
    check(program, outer, lambda x: x.sin() * x)


@reentrant_or_not
def test_jacobians(reentrant: bool) -> None:
    f = lambda x: checkpoint(block, x, use_reentrant=reentrant)  # noqa: E731
    x = vec(3)
    first, second = x.exp() * (x.sin() + x.cos()), 2 * x.exp() * x.cos()
    assert_close(fxforms.jacrev(f)(x), first.diag())
    assert_close(fxforms.jacfwd(f)(x), first.diag())
    assert_close(fxforms.hessian(lambda x: f(x).sum())(x), second.diag())
    assert_close(fxforms.vmap(fxforms.jacrev(f))(rows(x))[0], first.diag())
    assert_close(fxforms.jacrev(f, chunk_size=2)(x), first.diag())


@reentrant_or_not
def test_arguments_that_are_no_tensors(reentrant: bool) -> None:
    def run(x: Tensor) -> Tensor:
        scaled, label = checkpoint(
            lambda a, k, none, s: (a * k, s), x, 3.0, None, "s", use_reentrant=reentrant
        )
        assert label == "s"
        return scaled.pow(2).sum()

    assert_close(fxforms.grad(run)(torch.ones(2)), torch.full((2,), 18.0))


def test_keywords() -> None:
    run = lambda x: checkpoint(lambda a, b=1: a * b, x, b=x.detach(), use_reentrant=False).sum()  # noqa: E731
    assert_close(fxforms.grad(run)(torch.full((2,), 3.0)), torch.full((2,), 3.0))


@reentrant_or_not
def test_modules(reentrant: bool) -> None:
    layers = [torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh()) for _ in range(4)]
    model = torch.nn.Sequential(*layers).double()

    class Checkpointed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint_sequential(self.model, 2, x, use_reentrant=reentrant)

    X = vec(2, 3)
    weights = {f"model.{name}": p.detach() for name, p in model.named_parameters()}

    def loss(weights: Any, x: Tensor) -> Tensor:
        return fxforms.functional_call(Checkpointed(), weights, (x,)).sum()

    per_sample = fxforms.vmap(fxforms.grad(loss), (None, 0))(weights, X)
    for index, x in enumerate(X):
        expected = torch.autograd.grad(model(x).sum(), list(model.parameters()))
        for actual, one in zip(per_sample.values(), expected):
            assert_close(actual[index], one)


@reentrant_or_not
def test_random_numbers_are_drawn_once(reentrant: bool) -> None:
    drop = lambda x: torch.nn.functional.dropout(x**2, 0.5)  # noqa: E731
    x = vec(20)
    torch.manual_seed(1)
    actual = fxforms.grad(lambda x: checkpoint(drop, x, use_reentrant=reentrant).sum())(x)
    after = torch.rand(1)
    torch.manual_seed(1)
    mask = torch.nn.functional.dropout(torch.ones_like(x), 0.5)
    assert_close(actual, 2 * x * mask)
    assert_close(after, torch.rand(1))


@reentrant_or_not
def test_outside_it_recomputes_as_before(reentrant: bool) -> None:
    calls = []

    def counted(x: Tensor) -> Tensor:
        calls.append(torch.is_grad_enabled())
        return block(x)

    x = vec(3).requires_grad_()
    y = checkpoint(counted, x, use_reentrant=reentrant)
    assert calls == [not reentrant]
    y.sum().backward()
    assert len(calls) == 2
    assert_close(x.grad, oracle.grad(lambda x: block(x).sum())(x.detach()).detach())
    assert y.grad_fn.name() == ("CheckpointFunctionBackward" if reentrant else "MulBackward0")


def test_second_order_outside() -> None:
    x = vec(3).requires_grad_()
    y = checkpoint(block, x, use_reentrant=False)
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert_close(second, (2 * x.exp() * x.cos()).detach())


def test_nothing_is_kept_for_a_backward_outside() -> None:
    """The memory that a checkpoint is for: the block's intermediates are not saved."""
    saved = []
    x = vec(3).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        block(x)
        plain = len(saved)
        checkpoint(block, x, use_reentrant=True)
    assert plain > 0
    assert len(saved) - plain <= 1  # the input


def total(x: Tensor) -> Tensor:
    return block(x).sum()


WITHIN: dict[str, tuple[Any, int]] = {  # a transform, and the order of the derivative it takes
    "grad": (fxforms.grad(total), 1),
    "vjp": (lambda x: fxforms.vjp(block, x)[1](torch.ones_like(x))[0], 1),
    "jvp": (lambda x: fxforms.jvp(block, (x,), (torch.ones_like(x),))[1], 1),
    "jacrev": (lambda x: fxforms.jacrev(block)(x).sum(0), 1),
    "linearize": (lambda x: fxforms.linearize(block, x)[1](torch.ones_like(x)), 1),
    "vmap(grad)": (fxforms.vmap(fxforms.grad(block)), 1),
    "hvp": (lambda x: fxforms.hvp(total, (x,), (torch.ones_like(x),))[1][0], 2),
    "hessian": (lambda x: fxforms.hessian(total)(x).sum(0), 2),
    "jacfwd(jacrev)": (lambda x: fxforms.jacfwd(fxforms.jacrev(total))(x).sum(0), 2),
    "grad(grad)": (fxforms.grad(lambda x: fxforms.grad(total)(x).sum()), 2),
    "Function": (lambda x: fxforms.grad(lambda x: (Sine.apply(x) * x.exp()).sum())(x), 1),
}


def derivative(x: Tensor, order: int) -> Tensor:
    """Of ``block``, whose derivatives are ``exp(x) * sqrt(2)**order * sin(x + order * pi / 4)``."""
    return x.exp() * 2 ** (order / 2) * (x + order * torch.pi / 4).sin()


@reentrant_or_not
@pytest.mark.parametrize("name", WITHIN)
def test_a_transform_inside_a_block(name: str, reentrant: bool) -> None:
    inner, order = WITHIN[name]
    x = vec(3).requires_grad_()
    y = checkpoint(lambda x: inner(x.sin()) * x, x, use_reentrant=reentrant) + x
    sine = x.detach().sin()
    assert_close(y.detach(), (derivative(sine, order) * x + x).detach())
    slope = derivative(sine, order + 1) * x.cos() * x + derivative(sine, order) + 1
    if reentrant:
        y.sum().backward()
        assert_close(x.grad, slope.detach())
        return
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    assert_close(first.detach(), slope.detach())
    (second,) = torch.autograd.grad(first.sum(), x)
    expected = (
        derivative(sine, order + 2) * x.cos() ** 2 * x - derivative(sine, order + 1) * sine * x
    )
    assert_close(second, (expected + 2 * derivative(sine, order + 1) * x.cos()).detach())


@pytest.mark.parametrize("name", WITHIN)
def test_a_transform_inside_a_block_that_nothing_differentiates(name: str) -> None:
    inner, order = WITHIN[name]
    x = vec(3)
    assert_close(checkpoint(inner, x, use_reentrant=False), derivative(x, order))


def test_a_block_and_what_surrounds_it_keep_their_hooks() -> None:
    """The hooks are off within the transform alone, also where it raises."""
    x, packed = vec(3).requires_grad_(), []

    def inner(x: Tensor) -> Tensor:
        with pytest.raises(ZeroDivisionError):
            fxforms.grad(lambda x: x.sum() / (1 // 0))(x)
        return fxforms.grad(total)(x).exp()

    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        y = checkpoint(lambda x: checkpoint(inner, x, use_reentrant=False), x, use_reentrant=False)
        before = len(packed)
        y.sin()
    assert len(packed) == before + 1
    assert all(not fxforms._substrate.is_wrapped(t) for t in packed)
    expected = derivative(x, 2) * derivative(x, 1).exp()
    assert_close(torch.autograd.grad(y.sum(), x)[0], expected.detach())


@reentrant_or_not
def test_a_block_with_a_transform_runs_twice(reentrant: bool) -> None:
    calls = []

    def inner(x: Tensor) -> Tensor:
        calls.append(1)
        return fxforms.grad(total)(x.sin())

    checkpoint(inner, vec(3).requires_grad_(), use_reentrant=reentrant).sum().backward()
    assert len(calls) == 2


def test_a_vmap_inside_a_block() -> None:
    for reentrant in (True, False):
        x = vec(2, 3).requires_grad_()
        y = checkpoint(lambda x: fxforms.vmap(Sine.apply)(x), x, use_reentrant=reentrant)
        y.sum().backward()
        assert_close(x.grad, x.detach().cos())


def test_torchs_own_transforms_are_served_too() -> None:
    f = lambda x: checkpoint(block, x, use_reentrant=False).sum()  # noqa: E731
    x = vec(3)
    assert_close(torch.func.hessian(f)(x), (2 * x.exp() * x.cos()).diag())
