"""When a graph is compiled, and what happens where it cannot be."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time

import torch

import fxforms

WITHOUT_A_COMPILER = """
import warnings, torch, fxforms
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always", fxforms.errors.CompileWarning)
    for factor in (2.0, 3.0):
        f = fxforms.jit(lambda x, k=factor: x.sin() * k, compile="wait")
        assert torch.equal(f(torch.ones(2)), torch.ones(2).sin() * factor)
told = [w for w in caught if issubclass(w.category, fxforms.errors.CompileWarning)]
print(len(told))
"""


def test_the_graph_answers_until_the_compiled_code_is_ready() -> None:
    f = fxforms.jit(lambda x: (x.sin() * 3.25).sum())
    x = torch.ones(4)
    wanted = (x.sin() * 3.25).sum()
    deadline = time.monotonic() + 120
    while fxforms.explain(f, x).compile_seconds is None:
        torch.testing.assert_close(f(x), wanted)
        assert time.monotonic() < deadline, "never compiled"
        time.sleep(0.05)
    torch.testing.assert_close(f(x), wanted)
    assert f.cache_info().misses == 1


def test_without_a_compiler_the_graph_runs_and_one_warning_says_so() -> None:
    environment = {
        **os.environ,
        "CXX": "no-such-compiler",
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_A_COMPILER],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "1"


def test_a_dropped_function_is_not_compiled() -> None:
    f = fxforms.jit(lambda x: x + 1)
    programs = [e for found in f._entries.values() for e in found]
    f(torch.ones(2))
    del f, programs
    gc.collect()
    g = fxforms.jit(lambda x: x + 2, compile="wait")
    assert torch.equal(g(torch.ones(2)), torch.full((2,), 3.0))


EXITS = """
import torch, fxforms
f = fxforms.jit(lambda x: (x.sin() * x).exp() * {number})
x = torch.ones(3)
f(x), fxforms.jit(fxforms.hessian(lambda x: f(x).sum()))(x)
print("answered")
"""


def test_a_process_ends_while_something_compiles() -> None:
    """The number is new, so that nothing of it has been compiled before."""
    program = EXITS.format(number=1 + time.time())
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "answered\n", "")
