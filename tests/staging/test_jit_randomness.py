"""Random numbers under ``jit``: the stream of eager, fresh at every call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fxforms

X = torch.linspace(1, 2, 20, dtype=torch.float64)
OPTIONS: list[dict[str, str]] = [{"backend": "eager"}, {"compile": "wait"}]


def noisy(x: Tensor) -> Tensor:
    return (x * torch.rand_like(x)).sin() + torch.randn(x.shape, dtype=x.dtype)


def dropped(x: Tensor) -> Tensor:
    return torch.nn.functional.dropout(x.exp(), 0.5).pow(2).sum()


def seeded(f: Callable[..., Any], *args: Any) -> Any:
    torch.manual_seed(3)
    return f(*args)


@pytest.mark.parametrize("options", OPTIONS)
def test_the_stream_is_that_of_eager(options: dict[str, str]) -> None:
    f = fxforms.jit(noisy, **options)
    torch.manual_seed(3)
    got = [f(X) for _ in range(3)]
    torch.manual_seed(3)
    expected = [noisy(X) for _ in range(3)]
    torch.testing.assert_close(got, expected)
    assert not torch.equal(got[1], got[2])
    assert f.cache_info().misses == 1


@pytest.mark.parametrize("options", OPTIONS)
def test_tracing_and_compiling_draw_nothing(options: dict[str, str]) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    fxforms.jit(lambda x: x * 2, **options)(X)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("options", OPTIONS)
def test_a_gradient_belongs_to_the_mask_of_the_value(options: dict[str, str]) -> None:
    f = fxforms.jit(dropped, **options)
    for _ in range(2):
        x = X.clone().requires_grad_()
        value = f(x)
        value.backward()
        torch.testing.assert_close(x.grad.sum(), 2 * value.detach())  # homogeneous in exp(x)


@pytest.mark.parametrize(
    "program",
    [
        lambda f: fxforms.grad(f),
        lambda f: fxforms.grad(lambda x: fxforms.grad(f)(x).sum()),
        lambda f: lambda x: fxforms.jvp(f, (x,), (x,)),
        lambda f: lambda x: fxforms.jvp(fxforms.grad(f), (x,), (x,)),
        lambda f: fxforms.grad(lambda x: fxforms.jvp(f, (x,), (x,))[1]),
        lambda f: fxforms.vmap(f, randomness="different"),
        lambda f: fxforms.vmap(f, randomness="same"),
        lambda f: fxforms.vmap(fxforms.grad(f), randomness="different"),
    ],
)
def test_transforms_draw_what_eager_draws(program: Any) -> None:
    jitted = fxforms.jit(dropped, backend="eager")
    for _ in range(2):
        x = X.clone()
        expected = seeded(program(dropped), x)
        torch.testing.assert_close(seeded(program(jitted), x), expected)
        outside = fxforms.jit(program(dropped), backend="eager")
        torch.testing.assert_close(seeded(outside, x), expected)
        torch.testing.assert_close(seeded(outside, x), expected)


def test_double_backward_uses_one_mask() -> None:
    def second(f: Callable[[Tensor], Tensor]) -> Tensor:
        x = X.clone().requires_grad_()
        (first,) = torch.autograd.grad(f(x), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]

    f = fxforms.jit(dropped, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(seeded(second, f), seeded(second, dropped))


def test_the_state_after_a_derivative_is_that_of_eager() -> None:
    def run(f: Callable[[Tensor], Tensor]) -> Tensor:
        fxforms.hessian(lambda x: f(x[:2]))(X)
        return torch.rand(3)

    f = fxforms.jit(lambda x: (x * torch.rand_like(x)).pow(2).sum(), backend="eager")
    plain = lambda x: (x * torch.rand_like(x)).pow(2).sum()  # noqa: E731
    seeded(run, f)
    fxforms.grad(f)(X)
    assert torch.equal(
        seeded(lambda: (fxforms.grad(f)(X), torch.rand(3))[1]),
        seeded(lambda: (fxforms.grad(plain)(X), torch.rand(3))[1]),
    )


def test_a_generator_of_the_callers() -> None:
    generator = torch.Generator().manual_seed(5)
    f = fxforms.jit(lambda x: x * torch.rand(x.shape, generator=generator), backend="eager")
    one, two = f(torch.ones(3)), f(torch.ones(3))
    generator.manual_seed(5)
    expected = [torch.rand(3, generator=generator) for _ in range(2)]
    assert torch.equal(torch.stack([one, two]), torch.stack(expected))


def test_an_opaque_body_draws_at_each_call() -> None:
    class Noise(fxforms.Function):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x * torch.rand(len(x)) + 0 * float(x[0])

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

    f = fxforms.jit(Noise.apply, backend="eager")
    x = torch.ones(4)
    torch.manual_seed(3)
    got = [f(x), f(x)]
    torch.manual_seed(3)
    assert torch.equal(torch.stack(got), torch.stack([torch.rand(4), torch.rand(4)]))
