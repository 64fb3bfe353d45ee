"""Symbolic sizes, and the modes of the process in which a jitted function is called."""

from __future__ import annotations

import warnings
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fxforms
from fxforms.errors import ArgumentError

X = torch.tensor([0.5, -1.0, 2.0])
Pair = namedtuple("Pair", ["a", "b"])


def jit(f: Callable[..., Any], **options: Any) -> Any:
    return fxforms.jit(f, backend="eager", **options)


class TestDynamic:
    def test_one_trace_for_many_batch_sizes(self) -> None:
        f = jit(lambda x, w: (x @ w).softmax(-1).sum(0) / x.shape[0], dynamic=True)
        w = torch.randn(3, 2)
        for n in (5, 2, 7, 100, 33):
            x = torch.randn(n, 3)
            torch.testing.assert_close(f(x, w), (x @ w).softmax(-1).sum(0) / n)
        assert f.cache_info().misses == 1

    def test_sizes_zero_and_one(self) -> None:
        f = jit(lambda x: x * 2 + len(x), dynamic=True)
        for n in (4, 1, 0, 3):
            assert torch.equal(f(torch.ones(n)), torch.full((n,), 2.0 + n))

    def test_a_size_taken_as_a_python_number(self) -> None:
        """``len`` and ``int`` fix the size: another one is traced again."""
        f = jit(lambda x: x.prod(0) * len(x) + int(x.shape[0]), dynamic=True)
        for n in (4, 3, 6, 3):
            x = torch.randn(n, 2)
            torch.testing.assert_close(f(x), x.prod(0) * n + n)

    def test_a_size_that_decides(self) -> None:
        f = jit(lambda x: x * 2 if x.shape[0] > 3 else -x, dynamic=True)
        for n in (2, 5, 3, 4, 10):
            x = torch.ones(n)
            assert torch.equal(f(x), x * 2 if n > 3 else -x)
        assert f.cache_info().misses == 2

    def test_transforms(self) -> None:
        f = jit(fxforms.vmap(fxforms.grad(lambda x: (x.sin() ** 2).sum())), dynamic=True)
        g = jit(lambda x: (x.sin() ** 2).sum(), dynamic=True)
        for n in (4, 3, 6):
            x = torch.randn(n, 2)
            torch.testing.assert_close(f(x), (2 * x).sin())
            y = x.clone().requires_grad_()
            g(y).backward()
            torch.testing.assert_close(y.grad, (2 * x).sin())
            torch.testing.assert_close(fxforms.grad(g)(x), (2 * x).sin())
        assert f.cache_info().misses == 1

    def test_sizes_asked_of_what_is_reshaped_in_place(self) -> None:
        """The batch rule of a product squeezes its result, whose sizes later nodes ask for."""

        def loss(w: Tensor, v: Tensor, x: Tensor) -> Tensor:
            return (((x @ w).tanh() @ v) ** 2).sum()

        f = jit(fxforms.vmap(fxforms.grad(loss, (0, 1)), in_dims=(None, None, 0)), dynamic=True)
        w, v = torch.randn(3, 4), torch.randn(4, 2)
        for n in (4, 2, 7):
            x = torch.randn(n, 3)
            h = (x @ w).tanh()
            y = 2 * h @ v
            slopes = (y @ v.t()) * (1 - h**2)
            found = f(w, v, x)
            torch.testing.assert_close(found[0], x[:, :, None] * slopes[:, None])
            torch.testing.assert_close(found[1], h[:, :, None] * y[:, None])
        assert f.cache_info().misses == 1

    def test_another_layout(self) -> None:
        f = jit(lambda x: (x * 2).reshape(-1), dynamic=True)
        for x in (torch.randn(3, 4), torch.randn(4, 3).t(), torch.randn(6, 8)[::2, ::2]):
            assert torch.equal(f(x), (x * 2).reshape(-1))


class TestModes:
    def test_grad_mode(self) -> None:
        f = jit(lambda x: x * 2)
        x = X.clone().requires_grad_()
        for _ in range(2):
            assert f(x).requires_grad
            with torch.no_grad():
                assert not f(x).requires_grad
            with torch.inference_mode():
                assert f(X).is_inference()
                assert torch.equal(f(x), x * 2)
        assert f(x).requires_grad

    def test_grad_mode_inside(self) -> None:
        def f(x: Tensor) -> tuple[Tensor, Tensor]:
            with torch.no_grad():
                y = x * 2
            return y, y * x

        x = X.clone().requires_grad_()
        y, z = jit(f)(x)
        assert not y.requires_grad
        z.sum().backward()
        assert torch.equal(x.grad, 2 * X)
        with torch.no_grad():
            assert torch.is_grad_enabled() is False

        def on(x: Tensor) -> Tensor:
            with torch.enable_grad():
                return x * 2

        with torch.no_grad():
            assert jit(on)(x).requires_grad == on(x).requires_grad

    def test_autocast(self) -> None:
        f = jit(lambda x: x @ x)
        x = torch.randn(3, 3)
        for _ in range(2):
            assert f(x).dtype == torch.float32
            with torch.autocast("cpu", dtype=torch.bfloat16):
                assert f(x).dtype == torch.bfloat16
            with torch.autocast("cpu", dtype=torch.float16):
                assert f(x).dtype == torch.float16

    def test_autocast_inside(self) -> None:
        def f(x: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return x @ x

        x = torch.randn(3, 3, requires_grad=True)
        got, expected = jit(f)(x), f(x)
        assert got.dtype == expected.dtype == torch.bfloat16
        grads = [torch.autograd.grad(y.float().sum(), x)[0] for y in (got, expected)]
        torch.testing.assert_close(*grads, rtol=2e-2, atol=2e-2)  # eager sums in bfloat16

    def test_default_dtype(self) -> None:
        f = jit(lambda x: x + torch.ones(3))
        assert f(X).dtype == torch.float32
        torch.set_default_dtype(torch.float64)
        try:
            assert f(X).dtype == torch.float64
        finally:
            torch.set_default_dtype(torch.float32)
        assert f(X).dtype == torch.float32

    def test_inference_tensors(self) -> None:
        with torch.inference_mode():
            x = torch.ones(3)
        f = jit(lambda x: x * 2)
        assert torch.equal(f(x), x * 2)
        assert torch.equal(f(X), X * 2)
        with torch.inference_mode():
            assert torch.equal(f(x), x * 2)

    def test_inside_other_modes(self) -> None:
        from torch.utils._python_dispatch import TorchDispatchMode  # a user's own mode

        seen = []

        class See(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
                seen.append(func)
                return func(*args, **(kwargs or {}))

        f = jit(lambda x: x.sin())
        f(X)
        with See():
            assert torch.equal(f(X), X.sin())
        assert torch.ops.aten.sin.default in seen

    def test_as_decorator(self) -> None:
        @fxforms.jit
        def plain(x: Tensor) -> Tensor:
            """Doubled."""
            return x * 2

        @fxforms.jit(backend="eager", static_argnames=("n",))
        def with_options(x: Tensor, *, n: int) -> Tensor:
            return x * n

        assert plain.__name__ == "plain"
        assert plain.__doc__ == "Doubled."
        assert torch.equal(with_options(X, n=3), 3 * X)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert torch.equal(plain(X), 2 * X)

    def test_unknown_options(self) -> None:
        with pytest.raises(ArgumentError, match="'inductor' and 'eager'"):
            fxforms.jit(torch.sin, backend="cuda")
        with pytest.raises(ArgumentError, match="'background' or 'wait'"):
            fxforms.jit(torch.sin, compile="never")
