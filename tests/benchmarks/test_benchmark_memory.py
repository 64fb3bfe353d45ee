"""The memory count finds what is left behind, and only that."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import torch

from benchmarks.memory import gain

ROOT = Path(__file__).parent.parent.parent


def test_nothing_is_left_by_a_clean_call() -> None:
    found = gain(lambda: torch.ones(3) + 1, 300)
    assert found.tensors == 0
    assert found.objects < 50


def test_tensors_that_are_kept_are_counted() -> None:
    kept: list[torch.Tensor] = []
    found = gain(lambda: kept.append(torch.ones(3)), 300)
    assert found.tensors == 300


def test_a_cycle_counts_until_the_collector_runs() -> None:
    def cycle() -> None:
        knot: list[object] = [torch.ones(3)]
        knot.append(knot)

    found = gain(cycle, 300)
    gc.collect()
    assert found.tensors == 300
    assert found.objects >= 600


KEEPS_40_MB_A_CALL = """
import torch
from benchmarks.memory import WARM_UP_CALLS, gain

kept, calls = [], iter(range(WARM_UP_CALLS + 5))
print(gain(lambda: next(calls) < WARM_UP_CALLS or kept.append(torch.ones(10_000_000)), 5))
"""


def test_resident_memory_grows_with_what_is_kept() -> None:
    # A process of its own: in this one, memory that other tests freed would be used again.
    words = [sys.executable, "-c", KEEPS_40_MB_A_CALL]
    ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "tensors=5," in ran.stdout
    assert int(ran.stdout.partition("resident_bytes=")[2].strip(")\n")) > 190_000_000
