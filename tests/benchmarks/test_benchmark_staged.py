"""The staged workloads compute the same on all sides; a small slice is compiled and timed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmarks import staged
from benchmarks.staged import first_call, new_batch, peers
from benchmarks.staged.peers import FXFORMS, JAX, TORCH_COMPILE, TORCH_FUNC
from benchmarks.workload import Workload, check, run

pytestmark = pytest.mark.filterwarnings(
    # torch.compile and Inductor warn of what concerns their own authors.
    "ignore::FutureWarning:torch",
    "ignore::DeprecationWarning:torch",
    "ignore::UserWarning:torch",
)
needs_jax = pytest.mark.skipif(peers.jax is None, reason="jax is not installed")

WORKLOADS = {workload.title: workload for workload in staged.workloads()}
UNCOMPILED = [w for w in WORKLOADS.values() if {JAX, TORCH_FUNC} <= set(w.sides)]
SLICE = ["tiny: grad", "custom Function: vmap(grad)"]


def test_titles_are_unique() -> None:
    assert len(WORKLOADS) == len(staged.workloads())


@needs_jax
@pytest.mark.parametrize("workload", UNCOMPILED, ids=lambda workload: workload.title)
def test_jax_and_torch_do_the_same_work(workload: Workload) -> None:
    sides = {label: workload.sides[label] for label in (TORCH_FUNC, JAX)}
    plain = Workload("", "", sides, expected=workload.expected, tolerance=workload.tolerance)
    assert check(plain) == {}


@pytest.mark.parametrize("title", SLICE)
def test_a_slice_is_compiled_and_timed(title: str) -> None:
    torch.compiler.reset()
    result = run(WORKLOADS[title], 2)
    assert result.error is None
    assert result.timing is not None
    missing = set() if peers.jax else {JAX}
    assert result.refused.keys() == missing
    assert result.timing.seconds.keys() == {FXFORMS, JAX, TORCH_COMPILE, TORCH_FUNC} - missing
    assert {c.against for c in result.comparisons} == {JAX, TORCH_COMPILE} - missing


def test_without_jax_the_rows_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "jax", None)

    def build(api: Any, xp: Any) -> Any:
        return lambda x: xp.sin(x)

    side = peers.jax_side(build, [torch.ones(2)])
    ones = Workload("f", "n", {"a": lambda: torch.ones(2), JAX: side, "b": lambda: torch.ones(2)})
    result = run(ones, 1)
    assert result.refused == {JAX: "ModuleNotFoundError: jax is not installed"}
    assert result.timing is not None


@needs_jax
def test_a_first_call_is_made_in_a_process_of_its_own() -> None:
    seconds, (output,) = first_call.measured("grad, n=5", JAX)
    x = torch.linspace(0.1, 1.1, 5)
    assert 0 < seconds < 60
    torch.testing.assert_close(output, x.cos() * x + x.sin())


def test_a_first_call_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match="KeyError: 'nothing'"):
        first_call.measured("nothing", FXFORMS)


def test_a_second_trace_fails_the_new_batch() -> None:
    (workload,) = new_batch.workloads()
    assert isinstance(workload, new_batch.NewBatch)
    one = {"a": lambda: torch.ones(2), "b": lambda: torch.ones(2)}
    assert run(replace(workload, sides=one, traces=lambda: 1), 1).error is None
    error = run(replace(workload, sides=one, traces=lambda: 2), 1).error
    assert error == "AssertionError: traced 2 times for 128 batch sizes"
