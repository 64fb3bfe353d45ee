"""Methods, partials, callable objects and modules under ``jit``: what they read is seen."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import fxforms

X = torch.tensor([0.5, -1.0, 2.0])
SCALE = 2.0
WEIGHT = torch.ones(3)
TABLE: dict[str, Any] = {"scale": 2.0}


def jit(f: Callable[..., Any]) -> Any:
    return fxforms.jit(f, backend="eager")


def traces(jitted: Any) -> int:
    return int(jitted.cache_info().misses)


class Shift:
    """An object with a jitted method."""

    def __init__(self, amount: float) -> None:
        self.amount = amount

    @fxforms.jit
    def __call__(self, x: Tensor) -> Tensor:
        return x + self.amount

    @functools.partial(fxforms.jit, backend="eager")
    def twice(self, x: Tensor) -> Tensor:
        return x + 2 * self.amount


class TestCallables:
    def test_partial(self) -> None:
        w = torch.ones(3)
        f = jit(functools.partial(lambda w, x, scale: w * x * scale, w, scale=2.0))
        assert torch.equal(f(X), 2 * X)
        w.mul_(2)
        assert torch.equal(f(X), 4 * X)

    def test_defaults(self) -> None:
        w = torch.ones(3)

        def f(x: Tensor, w: Tensor = w, *, scale: float = 2.0) -> Tensor:
            return x * w * scale

        jitted = jit(f)
        assert torch.equal(jitted(X), 2 * X)
        w.mul_(2)
        assert torch.equal(jitted(X), 4 * X)

    def test_a_dict_and_an_object_among_defaults_and_bound_arguments(self) -> None:
        config, options = {"scale": 2.0}, types.SimpleNamespace(scale=1.0)

        def f(x: Tensor, config: Any = config, *, options: Any = options) -> Tensor:
            return x * config["scale"] * options.scale

        one, two = jit(f), jit(functools.partial(f, config=config, options=options))
        for jitted in (one, two):
            assert torch.equal(jitted(X), X * config["scale"] * options.scale)
            config["scale"] *= 2
            assert torch.equal(jitted(X), X * config["scale"] * options.scale)
            options.scale *= 2
            assert torch.equal(jitted(X), X * config["scale"] * options.scale)

    def test_an_object_that_is_handed_on(self) -> None:
        config = types.SimpleNamespace(model=types.SimpleNamespace(scale=2.0))

        def helper(settings: Any, x: Tensor) -> Tensor:
            return x * settings.model.scale

        f = jit(lambda x: helper(config, x))
        assert torch.equal(f(X), 2 * X)
        config.model.scale = 3.0
        assert torch.equal(f(X), 3 * X)
        config.model = types.SimpleNamespace(scale=4.0)
        assert torch.equal(f(X), 4 * X)
        assert torch.equal(f(X), 4 * X)
        assert traces(f) == 3

    def test_an_object_as_a_static_argument(self) -> None:
        class Config:
            scale = 2.0

        config = Config()
        f = fxforms.jit(lambda x, config: x * config.scale, static_argnums=1, backend="eager")
        assert torch.equal(f(X, config), 2 * X)
        config.scale = 3.0
        assert torch.equal(f(X, config), 3 * X)
        config.unused = 1
        assert torch.equal(f(X, config), 3 * X)
        assert traces(f) == 2

    def test_a_method_and_a_decorated_method(self) -> None:
        one, two = Shift(1.0), Shift(2.0)
        assert torch.equal(one.twice(X), X + 2)
        assert torch.equal(two.twice(X), X + 4)
        one.amount = 5.0
        assert torch.equal(one.twice(X), X + 10)
        assert torch.equal(two.twice(X), X + 4)
        bound = jit(Shift(3.0).twice)
        assert torch.equal(bound(X), X + 6)

    def test_a_callable_object(self) -> None:
        class Scale:
            scale = 2.0

            def __call__(self, x: Tensor) -> Tensor:
                return x * self.scale

        scale = Scale()
        f = jit(scale)
        assert torch.equal(f(X), 2 * X)
        scale.scale = 3.0
        assert torch.equal(f(X), 3 * X)

    def test_a_transform_of_a_closure(self) -> None:
        scale = 2.0
        f = jit(fxforms.vmap(fxforms.grad(lambda x: x**2 * scale)))
        assert torch.equal(f(X), 4 * X)
        scale = 3.0
        assert torch.equal(f(X), 6 * X)

    def test_a_transform_made_inside(self) -> None:
        scale = 2.0
        f = jit(lambda x: fxforms.grad(lambda y: (y**2 * scale).sum())(x))
        assert torch.equal(f(X), 4 * X)
        scale = 3.0
        assert torch.equal(f(X), 6 * X)

    def test_a_builtin(self) -> None:
        assert torch.equal(jit(torch.sin)(X), X.sin())


class Net(torch.nn.Module):
    """A module with an attribute, a list of layers and a dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)])
        self.drop = torch.nn.Dropout(0.9)
        self.scale = 2.0

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.drop(x) * self.scale


class TestModules:
    def test_train_and_eval(self) -> None:
        net = Net()
        f = jit(net)
        assert (f(torch.ones(50, 3)) == 0).any()
        net.eval()
        assert torch.equal(f(X), net(X))
        net.train()
        assert (f(torch.ones(50, 3)) == 0).any()

    def test_an_attribute_and_a_replaced_layer(self) -> None:
        net = Net().eval()
        f = jit(net)
        assert torch.equal(f(X), net(X))
        net.scale = 3.0
        assert torch.equal(f(X), net(X))
        net.layers[1] = torch.nn.Identity()
        assert torch.equal(f(X), net(X))
        net.layers.append(torch.nn.Tanh())
        assert torch.equal(f(X), net(X))
        net.layers[0].weight = torch.nn.Parameter(torch.eye(3))
        assert torch.equal(f(X), net(X))
        net.double()
        assert torch.equal(f(X.double()), net(X.double()))

    def test_a_hook(self) -> None:
        net = Net().eval()
        f = jit(net)
        f(X)
        hook = net.register_forward_hook(lambda module, args, output: output + 1)
        assert torch.equal(f(X), net(X))
        hook.remove()
        assert torch.equal(f(X), net(X))

    def test_a_module_in_a_closure_and_as_functional_call(self) -> None:
        net = Net().eval()
        f = jit(lambda x: net(x).sum())
        torch.testing.assert_close(f(X), net(X).sum())
        f(X).backward()
        got = [p.grad.clone() for p in net.parameters()]
        net.zero_grad()
        net(X).sum().backward()
        torch.testing.assert_close(got, [p.grad for p in net.parameters()])
        g = jit(lambda params, x: torch.func.functional_call(net, params, (x,)))
        params = {name: 2 * p.detach() for name, p in net.named_parameters()}
        expected = torch.func.functional_call(net, params, (X,))
        torch.testing.assert_close(g(params, X), expected)
        net.scale = 5.0
        expected = torch.func.functional_call(net, params, (X,))
        torch.testing.assert_close(g(params, X), expected)
