"""Many signatures, many threads, and memory."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from state import modes
from threads import run_threads
from torch import Tensor

import fxforms

THREADS = 8


def resident() -> int:
    """The resident memory of the process, in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def storm(sizes: range) -> Any:
    f = fxforms.jit(lambda x: x.sin() * 2, backend="eager")
    for n in sizes:
        x = torch.ones(n)
        assert torch.equal(f(x), x.sin() * 2)
        assert f.cache_info().size <= f.cache_info().bound
    return f


def test_a_storm_of_signatures_keeps_what_the_bound_says() -> None:
    f = storm(range(400))
    assert f.cache_info().misses == 400
    assert f.cache_info().size == f.cache_info().bound


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_ten_thousand_signatures_in_bounded_memory() -> None:
    storm(range(1000))
    gc.collect()
    before = resident()
    storm(range(1000, 10_000))
    gc.collect()
    assert resident() < before + 100e6


def test_a_captured_value_that_changes_all_the_time() -> None:
    step = 0
    f = fxforms.jit(lambda x: x * step, backend="eager")
    for step in range(50):
        assert torch.equal(f(torch.ones(2)), torch.full((2,), float(step)))
    assert f.cache_info().size <= 8


def test_nothing_is_kept_alive() -> None:
    class Big:
        pass

    def make() -> tuple[Any, ...]:
        w, x = torch.ones(3), torch.ones(3)
        f = fxforms.jit(lambda x: x * w, backend="eager")
        f(x)
        fxforms.grad(lambda x: f(x).sum())(x)
        y = x.clone().requires_grad_()
        f(y).sum().backward()
        return tuple(map(weakref.ref, (w, x, f, y)))

    refs = make()
    gc.collect()
    assert [ref() for ref in refs] == [None] * 4


def test_arguments_are_not_kept_by_the_cache() -> None:
    f = fxforms.jit(lambda x: x * 2, backend="eager")
    x = torch.ones(3)
    ref = weakref.ref(x)
    f(x)
    del x
    gc.collect()
    assert ref() is None


def run_checked(body: Callable[[int], None]) -> None:
    """Run ``body`` in all threads; each must end with no level active."""

    def checked(index: int) -> None:
        body(index)
        assert modes()["levels"] == 0

    run_threads(THREADS, checked)


def test_threads_that_call_and_retrace_one_function() -> None:
    f = fxforms.jit(fxforms.grad(lambda x: (x**3).sum()), backend="eager")

    def body(index: int) -> None:
        for n in range(1, 20):
            x = torch.full((1 + (n + index) % 10,), float(index))
            assert torch.equal(f(x), 3 * x**2)

    run_checked(body)
    assert f.cache_info().misses == 10
    assert f.cache_info().size == 10


def test_threads_with_functions_of_their_own_under_transforms() -> None:
    def body(index: int) -> None:
        scale = float(index + 1)
        f = fxforms.jit(lambda x: (x**2 * scale).sum(), backend="eager")
        for n in range(2, 6):
            x = torch.arange(float(n))
            assert torch.equal(fxforms.grad(f)(x), 2 * scale * x)
            assert torch.equal(fxforms.jvp(f, (x,), (x,))[1], 2 * scale * (x * x).sum())
            assert torch.equal(fxforms.vmap(f)(x[:, None]), scale * x**2)
            y = x.clone().requires_grad_()
            f(y).backward()
            assert torch.equal(y.grad, 2 * scale * x)

    run_checked(body)


def test_threads_and_a_value_that_changes() -> None:
    """Whichever value a call sees, it is one that the variable has had."""
    scale = 1.0
    f = fxforms.jit(lambda x: x * scale, backend="eager")
    done = threading.Event()

    def change() -> None:
        nonlocal scale
        while not done.is_set():
            scale = 3.0 - scale

    changer = threading.Thread(target=change)
    changer.start()
    try:
        for _ in range(200):
            assert f(torch.ones(1)).item() in (1.0, 2.0)
    finally:
        done.set()
        changer.join()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_in_the_function_leaves_the_cache_sound(error: type[BaseException]) -> None:
    fail = True

    def f(x: Tensor) -> Tensor:
        return fxforms.vmap(fxforms.grad(lambda z: stop(z) ** 2))(x)

    def stop(z: Tensor) -> Tensor:
        if fail:
            raise error("no")
        return z

    jitted = fxforms.jit(f, backend="eager")
    x = torch.ones(3)
    before = modes()
    for _ in range(2):
        with pytest.raises(error):
            jitted(x)
        assert modes() == before
        assert jitted.cache_info().size == 0
    fail = False
    assert torch.equal(jitted(x), 2 * x)
    assert torch.equal(jitted(x), 2 * x)
    assert jitted.cache_info()[1:3] == (1, 1)
