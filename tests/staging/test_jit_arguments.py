"""Arguments and results of a jitted function: containers, static values, modes of the process."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fxforms
from fxforms.errors import ArgumentError

X = torch.tensor([0.5, -1.0, 2.0])
Pair = namedtuple("Pair", ["a", "b"])


def jit(f: Callable[..., Any], **options: Any) -> Any:
    return fxforms.jit(f, backend="eager", **options)


class TestContainers:
    @pytest.mark.parametrize(
        "make",
        [
            lambda x: x,
            lambda x: (x,),
            lambda x: [x, x * 2],
            lambda x: {"a": x, "b": (x, [x * 2])},
            lambda x: OrderedDict(b=x, a=x * 2),
            lambda x: Pair(x, (x, None)),
            lambda x: (x, 1, "text", None, 2.5, True),
            lambda x: (),
            lambda x: None,
            lambda x: 3,
        ],
    )
    def test_in_and_out(self, make: Callable[[Tensor], Any]) -> None:
        f = jit(lambda tree: tree)
        doubled = jit(lambda x: make(x * 2))
        for x in (X, X + 1):
            self.check(f(make(x)), make(x))
            self.check(doubled(x), make(x * 2))
        assert f.cache_info().misses == doubled.cache_info().misses == 1

    def check(self, got: Any, expected: Any) -> None:
        assert repr(got) == repr(expected)
        assert type(got) is type(expected)

    def test_the_same_tensor_twice(self) -> None:
        f = jit(lambda x, y: (x * y, x, y))
        product, x, y = f(X, X)
        assert torch.equal(product, X * X)
        assert x is X
        assert y is X
        assert torch.equal(f(X, 2 * X)[0], 2 * X * X)
        outputs = jit(lambda x: [x * 2] * 2)(X)
        assert torch.equal(outputs[0], outputs[1])

    def test_keyword_arguments_in_any_order(self) -> None:
        f = jit(lambda x, *, a, b: x * a + b)
        assert torch.equal(f(X, a=X, b=2 * X), X * X + 2 * X)
        assert torch.equal(f(X, b=2 * X, a=3 * X), 3 * X * X + 2 * X)
        assert torch.equal(f(x=X, b=X, a=X), X * X + X)

    def test_the_order_of_a_dict(self) -> None:
        f = jit(lambda d: next(iter(d.values())) * 1)
        assert torch.equal(f({"a": X, "b": 2 * X}), X)
        assert torch.equal(f({"b": 2 * X, "a": X}), 2 * X)

    def test_no_arguments(self) -> None:
        f = jit(lambda: X * 2)
        assert torch.equal(f(), X * 2)
        assert torch.equal(f(), X * 2)
        assert f.cache_info().misses == 1

    def test_a_registered_node(self) -> None:
        cache = jit(lambda batch: batch)(
            torch.nn.utils.rnn.PackedSequence(X, torch.tensor([1] * 3))
        )
        assert torch.equal(cache.data, X)


class TestStatic:
    def test_positions_and_names(self) -> None:
        def f(x: Tensor, n: int, mode: str = "sum") -> Tensor:
            y = x * n
            return y.sum() if mode == "sum" else y

        jitted = jit(f, static_argnums=1, static_argnames="mode")
        assert torch.equal(jitted(X, 2), 2 * X.sum())
        assert torch.equal(jitted(X, 2, mode="all"), 2 * X)
        assert torch.equal(jitted(X, 3), 3 * X.sum())
        assert jitted.cache_info().misses == 3
        assert torch.equal(jitted(X + 1, 3), 3 * (X + 1).sum())
        assert jitted.cache_info().misses == 3

    def test_a_negative_position(self) -> None:
        jitted = jit(lambda x, n: x * n, static_argnums=-1)
        assert torch.equal(jitted(X, 2), 2 * X)
        assert torch.equal(jitted(X, 3), 3 * X)

    def test_a_leaf_that_is_no_tensor_is_static(self) -> None:
        jitted = jit(lambda x, n: x * n["scale"])
        for scale in (2, 2.0, True, -0.0, 0.0):
            assert repr(jitted(X, {"scale": scale})) == repr(X * scale)

    def test_values_that_are_equal_but_not_the_same(self) -> None:
        jitted = jit(lambda x, n: x.to(torch.int64) * n[0], static_argnums=1)
        assert jitted(X, (1,)).dtype == torch.int64
        assert jitted(X, (1.0,)).dtype == torch.float32
        assert jitted(X, (True,)).dtype == torch.int64
        nan = jit(lambda x, n: x * n)
        assert nan(X, float("nan")).isnan().all()
        assert nan(X, float("nan")).isnan().all()
        assert nan.cache_info().misses == 1

    def test_an_unhashable_value(self) -> None:
        with pytest.raises(ArgumentError, match="hash"):
            jit(lambda x, s: x * len(s), static_argnums=1)(X, {1, 2})
        with pytest.raises(ArgumentError, match="ndarray"):
            jit(lambda x, s: x * s)(X, np.ones(3))

    def test_a_function_as_an_argument(self) -> None:
        jitted = jit(lambda g, x: g(x) * 2)
        assert torch.equal(jitted(torch.sin, X), X.sin() * 2)
        assert torch.equal(jitted(torch.cos, X), X.cos() * 2)
        scale = 2.0
        by_closure = lambda x: x * scale  # noqa: E731
        assert torch.equal(jitted(by_closure, X), X * 4)
        scale = 3.0
        assert torch.equal(jitted(by_closure, X), X * 6)

    def test_a_module_as_an_argument(self) -> None:
        net = torch.nn.Dropout(0.9)
        jitted = jit(lambda net, x: net(x))
        assert (jitted(net, torch.ones(100)) == 0).any()
        net.eval()
        assert torch.equal(jitted(net, X), X)


class TestSignatures:
    @pytest.mark.parametrize(
        "other",
        [
            X.double(),
            torch.ones(4),
            torch.ones(3, 1),
            torch.ones(6)[::2],
            torch.ones(3, dtype=torch.int64),
            torch.nn.Parameter(X),
            torch.tensor(2.0),
            torch.ones(0),
        ],
    )
    def test_another_tensor(self, other: Tensor) -> None:
        f = jit(lambda x: x * 2 + x.numel())
        for x in (X, other, X, other):
            result = f(x)
            assert torch.equal(result, x * 2 + x.numel())
            assert result.dtype == (x * 2 + 1).dtype
            assert result.requires_grad == x.requires_grad
        assert f.cache_info().misses == 2

    def test_a_conjugate_view(self) -> None:
        f = jit(lambda x: x * 1j)
        x = torch.tensor([1 + 2j, 3 - 1j])
        for z in (x, x.conj(), x, x.conj()):
            assert torch.equal(f(z), z * 1j)

    def test_strides_of_outputs(self) -> None:
        f = jit(lambda x: (x.t(), x.t() + 1, x.expand(2, 2, 3)))
        x = torch.randn(2, 3)
        for got, expected in zip(f(x), (x.t(), x.t() + 1, x.expand(2, 2, 3))):
            assert got.stride() == expected.stride()

    def test_a_subclass_of_tensor_runs_as_it_is(self) -> None:
        class Tagged(torch.Tensor):
            pass

        x = X.as_subclass(Tagged)
        assert type(jit(lambda x: x * 2)(x)) is Tagged

    def test_a_sparse_tensor_runs_as_it_is(self) -> None:
        x = torch.eye(3).to_sparse()
        assert torch.equal(jit(lambda x: (x * 2).to_dense())(x), torch.eye(3) * 2)

    def test_the_lru_bound(self) -> None:
        f = jit(lambda x: x * 2)
        bound = f.cache_info().bound
        for n in range(bound + 10):
            f(torch.ones(n))
        info = f.cache_info()
        assert info.size == bound
        assert info.misses == bound + 10
        f(torch.ones(bound + 9))
        assert f.cache_info().misses == bound + 10
        f(torch.ones(0))
        assert f.cache_info().misses == bound + 11
        f.clear_cache()
        assert f.cache_info()[:3] == (0, 0, 0)
        assert torch.equal(f(X), X * 2)
