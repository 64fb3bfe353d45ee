"""What ``jit`` refuses at once, what it says of itself, and jitted methods."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fxforms
from fxforms.errors import ArgumentError, CompileWarning, OutputError
from fxforms.staging import compiler

X = torch.tensor([0.5, -1.0, 2.0])


def jit(f: Callable[..., Any], **options: Any) -> Any:
    return fxforms.jit(f, **{"backend": "eager", **options})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"static_argnums": 2}, "position 2"),
        ({"static_argnums": (0, -3)}, "position -3"),
        ({"donate_argnums": 7}, "position 7"),
        ({"static_argnums": "a"}, "position 'a'"),
        ({"static_argnames": "mode"}, "'mode'"),
    ],
)
def test_an_option_that_names_no_argument(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        jit(lambda x, n: x, **options)
    jit(lambda *xs, **rest: xs, **options)
    jit(torch.sin, static_argnums=0)  # tells no signature


def test_what_is_no_function() -> None:
    with pytest.raises(ArgumentError, match="takes a function, got 3"):
        fxforms.jit(3)


class Scaled:
    def __init__(self, scale: float) -> None:
        self.scale = scale

    @fxforms.jit(backend="eager")
    def by(self, x: Tensor) -> Tensor:
        return x * self.scale


def test_a_method() -> None:
    Scaled.by.clear_cache()
    two, three = Scaled(2.0), Scaled(3.0)
    for _ in range(2):
        assert torch.equal(two.by(X), 2 * X)
        assert torch.equal(three.by(X), 3 * X)
    assert two.by.cache_info()[:3] == Scaled.by.cache_info()[:3] == (2, 2, 2)
    assert "mul" in two.by.trace(X).code
    assert "mul" in two.by.lower(X).code
    assert fxforms.explain(two.by, X).name == "partial(by)"
    assert fxforms.eval_shape(two.by, X).shape == (3,)
    assert torch.equal(fxforms.grad(lambda x: two.by(x).sum())(X), torch.full((3,), 2.0))
    two.by.clear_cache()
    assert two.by.cache_info().size == 0


def test_looking_at_a_graph_is_no_call() -> None:
    f = jit(lambda x: x * 2)
    f.trace(X), f.trace(X), f.lower(X)
    assert f.cache_info()[:3] == (0, 0, 1)
    f(X)
    assert f.cache_info()[:3] == (1, 0, 1)


def test_the_bound_is_of_graphs() -> None:
    step = 0
    f = jit(lambda x: x * step)
    bound = f.cache_info().bound
    for n in range(bound // 4):
        for step in range(6):  # noqa: B007
            f(torch.ones(n))
    assert bound - 8 < f.cache_info().size <= bound


def test_recording_where_the_caller_records_nothing_is_tried_once() -> None:
    w = torch.ones(3, requires_grad=True)
    calls: list[int] = []

    def f(x: Tensor) -> Tensor:
        calls.append(1)
        with torch.enable_grad():
            return w * x

    jitted = jit(f)
    with torch.no_grad():
        for _ in range(5):
            assert jitted(X).requires_grad
    assert len(calls) == 6


def test_the_node_tells_the_function() -> None:
    def energy(x: Tensor) -> Tensor:
        return (x**2).sum()

    x = X.clone().requires_grad_()
    assert jit(energy)(x).grad_fn.name() == "jit(energy)Backward"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_tensors_that_no_graph_is_traced_for() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    twice = jit(lambda x: x * 2)(nested)
    assert [torch.equal(x, torch.full_like(x, 2.0)) for x in twice.unbind()] == [True, True]
    quantised = torch.quantize_per_tensor(X, 0.5, 0, torch.qint8)
    assert torch.equal(jit(lambda x: x.dequantize() * 2)(quantised), 2 * X)
    sparse = torch.eye(3).to_sparse()
    assert torch.equal(jit(lambda x: sparse @ x)(torch.ones(3, 3)), torch.ones(3, 3))


@pytest.mark.parametrize("jitted", [True, False])
def test_a_callback_that_does_not_keep_its_promise(jitted: bool) -> None:
    def call(callback: Callable[..., Any], like: Any) -> Any:
        f = lambda x: fxforms.pure_callback(callback, like, x)  # noqa: E731
        return (jit(f) if jitted else f)(X)

    with pytest.raises(ArgumentError, match="result_shape holds 3"):
        call(torch.sin, (3,))
    for output, said in ((3.0, "returned 3.0"), (None, "returned None")):
        with pytest.raises(OutputError, match=said):
            call(lambda x, output=output: output, X)


def test_an_identity_seen_as_other_numbers_is_none() -> None:
    f = jit(lambda m: torch.eye(3).view(torch.int32) @ m)
    ones = torch.ones(3, 3, dtype=torch.int32)
    one = torch.ones((), dtype=torch.float32).view(torch.int32)
    assert torch.equal(f(ones), ones * one)


class Broken:
    """A program that no compiler takes."""

    def __init__(self, name: str) -> None:
        self.__name__, self.traced, self.executable, self.compiled_in = name, None, None, None


def test_each_function_that_is_not_compiled_is_told_of_once() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for told in (set(), set()):  # two functions of one name
            for _ in range(2):
                compiler.compile_now(Broken("f"), told)
    assert [w.category for w in seen] == [CompileWarning, CompileWarning]


def test_a_warning_that_is_an_error_leaves_the_compiler_running() -> None:
    """Warnings are errors in this run."""
    programs = [Broken("f"), Broken("g")]
    for program in programs:
        compiler.compile_soon(program, set())
    good = fxforms.jit(lambda x: x * 3 + 1)
    good(X)
    program = good.entry((X,), {}).program
    for _ in range(1200):
        if program.compiled_in is not None:
            break
        time.sleep(0.05)
    assert program.compiled_in is not None
