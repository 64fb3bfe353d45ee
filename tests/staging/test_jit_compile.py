"""``torch.compile`` around ``jit`` and around transforms, and Inductor behind ``jit``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from custom import Cube
from torch import Tensor

import fxforms

X = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def compiled(f: Callable[..., Any]) -> Any:
    return torch.compile(f, backend="eager")


@pytest.mark.parametrize(
    "program",
    [
        lambda jit: jit(lambda x: x**3),
        lambda jit: jit(Cube.apply),
        lambda jit: fxforms.grad(lambda x: jit(Cube.apply)(x).sum()),
        lambda jit: jit(fxforms.grad(lambda x: Cube.apply(x).sum())),
        lambda jit: fxforms.vmap(fxforms.grad(jit(Cube.apply))),
    ],
)
def test_torch_compile_around_jit(program: Any) -> None:
    jitted = program(lambda f: fxforms.jit(f, backend="eager"))
    expected = program(lambda f: f)
    f = compiled(lambda x: jitted(x * 2) + 1)
    for x in (X, X + 1):
        torch.testing.assert_close(f(x), expected(x * 2) + 1)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # Dynamo's own
def test_gradients_through_torch_compile_around_jit() -> None:
    jitted = fxforms.jit(Cube.apply, backend="eager")
    f = compiled(lambda x: (jitted(x) * 2).sum())
    x = X.clone().requires_grad_()
    f(x).backward()
    torch.testing.assert_close(x.grad, 6 * X**2)


def test_jit_around_torch_compile() -> None:
    inner = compiled(lambda x: x.sin() * 2)
    f = fxforms.jit(lambda x: inner(x) + 1, backend="eager")
    for x in (X, X + 1):
        torch.testing.assert_close(f(x), x.sin() * 2 + 1)


def test_the_compiled_code_takes_over() -> None:
    f = fxforms.jit(lambda x: (x.sin() * x).cos())
    expected = (X.sin() * X).cos()
    deadline = time.monotonic() + 120
    torch.testing.assert_close(f(X), expected)
    program = f._last_entry[1].program
    while program.compiled_in is None:
        assert time.monotonic() < deadline
        torch.testing.assert_close(f(X), expected)
        time.sleep(0.05)
    for x in (X, X + 1):
        torch.testing.assert_close(f(x), (x.sin() * x).cos())
    assert f.cache_info().misses == 1


def test_after_a_compiler_thread_that_could_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    deadline = time.monotonic() + 120
    while any(t.name == "fxforms.jit compiler" for t in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    first = fxforms.jit(lambda x: x.sin() * 3)
    with monkeypatch.context() as few:
        few.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            first(X)
    f = fxforms.jit(lambda x: x.cos() * 3)
    torch.testing.assert_close(f(X), X.cos() * 3)
    while f._last_entry[1].program.compiled_in is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_layouts_and_aliases_through_inductor() -> None:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        return x.t(), x.t() + 1, x, (x * 2).expand(2, *x.shape), x.sum(), x[:1] * 3

    g = fxforms.jit(f, compile="wait")
    for x in (torch.randn(2, 3), torch.randn(2, 3)):
        got, expected = g(x), f(x)
        for a, b in zip(got, expected):
            torch.testing.assert_close(a, b)
            assert a.stride() == b.stride()
        assert got[2] is x


def test_dynamic_sizes_through_inductor() -> None:
    g = fxforms.jit(lambda x: (x.exp() / x.shape[0]).sum(0), dynamic=True, compile="wait")
    for n in (3, 5, 17):
        x = torch.randn(n, 2)
        torch.testing.assert_close(g(x), x.exp().mean(0))
    assert g.cache_info().misses == 1


def test_a_program_without_operators() -> None:
    """Inductor gives another kind of result for it."""
    f = fxforms.jit(lambda x: torch.cat([x]), compile="wait")
    x = torch.arange(3.0)
    for _ in range(2):
        assert torch.equal(f(x), x)
