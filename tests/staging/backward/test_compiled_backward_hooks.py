"""Hooks and errors in compiled passes: order and values are the engine's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from capture_graphs import assert_same, leaf
from compilers import Counter
from torch import nn

import fxforms


class Log:
    """Hooks of every kind on a small network, which write down that they were called."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.lines: list[str] = []
        layers = [nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 2)]
        self.net = nn.Sequential(*layers).double()
        for name, p in self.net.named_parameters():
            p.register_hook(lambda grad, name=name: self.lines.append(f"{name} gets a gradient"))
            p.register_post_accumulate_grad_hook(self.done(name))

    def done(self, name: str) -> Callable[[torch.Tensor], None]:
        def hook(leaf: torch.Tensor) -> None:
            self.lines.append(f"{name}.grad has sum {leaf.grad.sum():.6f}")

        return hook

    def say(self, name: str) -> Callable[..., None]:
        return lambda *args: self.lines.append(name)

    def losses(self) -> list[torch.Tensor]:
        """Two losses over two branches that meet."""
        h = self.net(torch.randn(3, 4, dtype=torch.double))
        a, b = h.exp(), h.sin()
        for name, tensor in {"h": h, "a": a, "b": b}.items():
            tensor.register_hook(self.say(f"hook of {name}"))
            tensor.grad_fn.register_prehook(self.say(f"before {name}"))
            tensor.grad_fn.register_hook(self.say(f"after {name}"))
        return [(a * b).sum(), (h * b).sum()]

    def run(self, together: bool) -> tuple[list[str], list[torch.Tensor]]:
        losses = self.losses()
        if together:
            torch.autograd.backward(losses)
        else:
            (losses[0] + losses[1]).backward()
        return self.lines, [p.grad for p in self.net.parameters()]


@pytest.mark.parametrize("together", [False, True])
def test_hooks_run_in_the_order_of_the_engine(together: bool) -> None:
    wanted, gradients = Log().run(together)
    for _ in range(2):
        with fxforms.compiled_backward(Counter()):
            found, again = Log().run(together)
        assert found == wanted
        assert_same(again, gradients)


def test_a_hook_registered_between_two_runs() -> None:
    x = leaf(3)
    cos = x.cos().detach()

    def run() -> torch.Tensor:
        x.grad = None
        with fxforms.compiled_backward(Counter()):
            x.sin().sum().backward()
        return x.grad

    torch.testing.assert_close(run(), cos)
    handle = x.register_hook(lambda grad: 2 * grad)
    torch.testing.assert_close(run(), 2 * cos)
    handle.remove()
    handle = x.register_hook(lambda grad: 5 * grad)
    torch.testing.assert_close(run(), 5 * cos)
    handle.remove()
    torch.testing.assert_close(run(), cos)
    handle = x.register_post_accumulate_grad_hook(lambda leaf: leaf.grad.neg_() and None)
    with pytest.raises(RuntimeError, match="ambiguous"):
        run()
    handle.remove()
    torch.testing.assert_close(run(), cos)


def test_a_backward_pass_inside_a_hook() -> None:
    x, w = leaf(3), leaf(3)

    def hook(grad: torch.Tensor) -> None:
        with torch.enable_grad():
            w.exp().sum().backward()

    y = x.sin()
    y.register_hook(hook)
    with fxforms.compiled_backward(Counter()):
        y.sum().backward()
    torch.testing.assert_close(x.grad, x.cos().detach())
    torch.testing.assert_close(w.grad, w.exp().detach())


def test_an_error_leaves_nothing_behind() -> None:
    x = leaf(3)
    for _ in range(2):
        y = x.sin()
        y.register_hook(lambda grad: 1 / 0)
        with pytest.raises(ZeroDivisionError), fxforms.compiled_backward(Counter()):
            y.exp().sum().backward()
    assert x.grad is None
    x.sin().exp().sum().backward()  # eager
    with fxforms.compiled_backward(Counter()):
        x.sin().exp().sum().backward()
    torch.testing.assert_close(x.grad, (2 * x.cos() * x.sin().exp()).detach())


def test_an_error_of_the_compiler() -> None:
    def broken(graph: torch.fx.GraphModule, examples: Sequence[Any]) -> Any:
        raise ZeroDivisionError("no compiler today")

    x = leaf(3)
    with pytest.raises(ZeroDivisionError, match="today"), fxforms.compiled_backward(broken):
        x.tanh().sum().backward()
    assert x.grad is None
    with fxforms.compiled_backward(Counter()):
        x.tanh().sum().backward()
    torch.testing.assert_close(x.grad, (1 - x.tanh() ** 2).detach())
