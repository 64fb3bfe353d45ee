"""`python -m benchmarks` as a user starts it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import machine
from benchmarks.workload import Workload

ROOT = Path(__file__).parent.parent.parent


def start(*arguments: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=240)


def test_eager_prints_a_table_and_writes_the_same_numbers(tmp_path: Path) -> None:
    path = tmp_path / "eager.json"
    ran = start("eager", "--rounds", "3", "--only", "transforms: grad", "--json", str(path))
    assert ran.returncode == 0, ran.stderr
    record = json.loads(path.read_text())
    assert [result["name"] for result in record["results"]] == ["grad", "grad(grad)"]
    assert record["rounds"] == 3
    assert record["machine"]["torch"] == torch.__version__
    assert record["machine"]["threads"] == "1"
    for result in record["results"]:
        assert set(result["seconds"]) == {"fxforms", "torch.func", "torch.autograd"}
        assert f"{result['seconds']['fxforms'] * 1e6:.1f}" in ran.stdout
        (comparison,) = result["comparisons"]
        assert comparison["against"] == "torch.func"
        assert f"{comparison['ratio']:.3f}" in ran.stdout
        assert comparison["reached"] == (comparison["ratio"] <= comparison["bound"])
    assert f"torch {torch.__version__}" in ran.stdout


def test_a_series_has_a_growth() -> None:
    ran = start("eager", "--rounds", "1", "--only", "depth of vmap")
    assert ran.returncode == 0, ran.stderr
    assert "Growth along a series" in ran.stdout


def test_memory_counts_every_side(tmp_path: Path) -> None:
    path = tmp_path / "memory.json"
    ran = start("memory", "--calls", "20", "--only", "transforms: vjp", "--json", str(path))
    assert ran.returncode == 0, ran.stderr
    gains = json.loads(path.read_text())["gains"]
    assert [gain["side"] for gain in gains] == ["fxforms", "torch.func", "torch.autograd"]
    assert {gain["calls"] for gain in gains} == {20}


def test_a_name_that_selects_nothing_lists_the_names() -> None:
    ran = start("eager", "--only", "grda")
    assert ran.returncode == 1
    assert "'grda' selects nothing" in ran.stderr
    assert "transforms: grad(grad)" in ran.stderr


def test_a_failed_workload_does_not_hide_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = (lambda: torch.zeros(2)), (lambda: torch.ones(2))
    good = Workload("f", "good", {"a": one, "b": one}, {"b": 100.0})
    bad = Workload("f", "bad", {"a": one, "b": two}, {"b": 100.0})
    monkeypatch.setitem(command.SUITES, "eager", lambda: [bad, good])
    monkeypatch.setattr(machine, "keep_freed_memory", lambda: None)  # it would hold for all tests
    threads = torch.get_num_threads()
    try:
        assert command.main(["eager", "--rounds", "3"]) == 1
    finally:
        torch.set_num_threads(threads)
    printed = capsys.readouterr().out
    assert "f: bad failed: AssertionError: a and b differ" in printed
    assert "1 of 2 bounds reached" in printed
