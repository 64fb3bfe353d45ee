"""Gradients of what a jitted function captures: which tensors get them, and their hooks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxforms

X = torch.tensor([[0.5, -1.0, 2.0]])


def jit(f: Callable[..., Any]) -> Any:
    return fxforms.jit(f, backend="eager")


def layers(frozen: int | None = None) -> nn.Sequential:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3, bias=False), nn.Linear(3, 3))
    if frozen is not None:
        made[frozen].requires_grad_(False)
    return made


def loss_of(net: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda x: net(x).pow(2).sum()


def assert_same_gradients(net: nn.Module, plain: nn.Module) -> None:
    """The gradients that ``.backward()`` leaves, name by name, as autograd alone leaves them."""
    for (name, p), (_, q) in zip(net.named_parameters(), plain.named_parameters()):
        assert (p.grad is None) == (q.grad is None), name
        assert p.grad is None or torch.allclose(p.grad, q.grad), name


class TestRequiresGrad:
    @pytest.mark.parametrize("layer", [0, 2, 3])
    @pytest.mark.parametrize(("start", "then"), [(True, False), (False, True)])
    def test_a_layer_frozen_or_unfrozen_later(self, layer: int, start: bool, then: bool) -> None:
        net = layers(None if start else layer)
        loss, plain = jit(loss_of(net)), copy.deepcopy(net)
        loss(X).backward()
        for each in (net, plain):
            each.zero_grad()
            each[layer].requires_grad_(then)
        loss(X).backward()
        loss_of(plain)(X).backward()
        assert_same_gradients(net, plain)

    def test_back_and_forth_uses_the_graphs_that_are_there(self) -> None:
        first, second = layers(), layers()
        both = jit(lambda x: second(first(x)).sum())
        for _ in range(3):
            for frozen, trained in ((first, second), (second, first)):
                frozen.requires_grad_(False)
                trained.requires_grad_(True)
                both(X).backward()
        assert both.cache_info().misses == 2
        plain = copy.deepcopy(nn.ModuleList([first, second]))
        for module in (first, second, *plain):
            module.zero_grad()
        plain[1](plain[0](X)).sum().backward()
        both(X).backward()
        assert_same_gradients(nn.ModuleList([first, second]), plain)

    def test_frozen_between_the_call_and_its_backward(self) -> None:
        w, v = torch.ones(3, requires_grad=True), torch.full((3,), 2.0, requires_grad=True)
        out = jit(lambda x: (w * v * v * x).sum())(X)
        w.requires_grad_(False)
        (found,) = torch.autograd.grad(out, v, create_graph=True)
        assert torch.allclose(found, 4 * X[0])

    def test_what_the_function_asks_of_it(self) -> None:
        w = torch.ones(3)
        f = jit(lambda x: x * w if w.requires_grad else x)
        assert torch.equal(f(X), X)
        w.mul_(2).requires_grad_(True)
        assert torch.equal(f(X), 2 * X)


class TestHooks:
    def test_a_hook_of_a_leaf_runs_once(self) -> None:
        w, seen = torch.ones(3, requires_grad=True), []
        w.register_hook(lambda g: seen.append(type(g)) or 2 * g)
        f = jit(lambda x: (w * x).sum())
        for count in (1, 2):
            f(X).backward()
            assert torch.equal(w.grad, count * 2 * X[0])
            assert seen == [Tensor] * count

    def test_a_hook_of_a_captured_result_runs_once(self) -> None:
        w = torch.ones(3, requires_grad=True)
        v = 3 * w
        v.register_hook(lambda g: 2 * g)
        jit(lambda x: (v * x).sum())(X).backward()
        assert torch.equal(w.grad, 6 * X[0])

    def test_a_hook_taken_away_acts_no_longer(self) -> None:
        w = torch.ones(3, requires_grad=True)
        handle = w.register_hook(lambda g: 2 * g)
        f = jit(lambda x: (w * x).sum())
        f(X).backward()
        handle.remove()
        w.grad = None
        f(X).backward()
        assert torch.equal(w.grad, X[0])

    @pytest.mark.parametrize("outside", [True, False])
    def test_with_a_level_inside_or_outside(self, outside: bool) -> None:
        w = torch.ones(3, requires_grad=True)
        w.register_hook(lambda g: 2 * g)
        f: Callable[[Tensor], Tensor] = lambda x: (w * x * x).sum()  # noqa: E731
        found = fxforms.grad(jit(f)) if outside else jit(fxforms.grad(f))
        found(X[0]).sum().backward()
        assert torch.equal(w.grad, 2 * 2 * X[0])

    def test_a_hook_where_a_custom_function_takes_the_tensor(self) -> None:
        class Scale(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, w: Tensor, x: Tensor) -> Tensor:
                ctx.save_for_backward(w, x)
                return w * x

            @staticmethod
            def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
                w, x = ctx.saved_tensors
                return g * x, g * w

        w = torch.ones(3, requires_grad=True)
        w.register_hook(lambda g: 2 * g)
        jit(lambda x: Scale.apply(w, x).sum() + (3 * w).sum())(X[0]).backward()
        assert torch.equal(w.grad, 2 * (X[0] + 3))


@pytest.mark.parametrize("hooked", [True, False])
@pytest.mark.parametrize("mixed", [True, False])
def test_second_derivatives_through_a_custom_function(hooked: bool, mixed: bool) -> None:
    class Square(fxforms.Function):
        @staticmethod
        def forward(w: Tensor, x: Tensor) -> Tensor:
            return w * w * x

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            w, x = ctx.saved_tensors
            return 2 * g * w * x, g * w * w

    w = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    factor = 2.0 if hooked else 1.0
    if hooked:
        w.register_hook(lambda g: 2 * g)
    f = jit(lambda x: (Square.apply(w, x) + (w**3 if mixed else 0)).sum())
    (first,) = torch.autograd.grad(f(X[0]), w, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), w)
    v = w.detach()
    assert torch.allclose(first, factor * (2 * v * X[0] + 3 * v**2 * mixed))
    assert torch.allclose(second, factor**2 * (2 * X[0] + 6 * v * mixed))


def test_a_captured_result_and_what_it_is_made_of() -> None:
    w = torch.ones(3, requires_grad=True)
    v = 3 * w
    jit(lambda x: (v * x + w).sum())(X[0]).backward()
    assert torch.equal(w.grad, 3 * X[0] + 1)
