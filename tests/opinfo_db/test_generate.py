"""Generated tests in another project: a small one in a temporary folder, run by a real pytest."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from opinfo_db import ErrorInput, OpInfo, SampleInput, Waiver, generate_tests, ops
from opinfo_db.checks.contract import Check, CheckResult, cases
from opinfo_db.generate import SHARDS

ROOT = Path(__file__).parents[2]
LIBRARY = """
import torch
import fxforms
from opinfo_db import OpInfo, SampleInput, Waiver

class Cube(fxforms.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return FACTOR * x**2 * g

    @staticmethod
    def jvp(ctx, t):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * t

FACTOR = 3

def samples(device, dtype, requires_grad):
    def x(*shape):
        return torch.rand(shape, device=device, dtype=dtype).requires_grad_(requires_grad)
    yield SampleInput((x(3),))
    yield SampleInput((x(2, 2),), name="square")

ENTRIES = [OpInfo("Cube", Cube, samples)]
"""
THREE_LINES = """
from mylib import ENTRIES
from opinfo_db import generate_tests
generate_tests(globals(), ENTRIES)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project that uses the database with three lines."""
    (tmp_path / "mylib.py").write_text(LIBRARY)
    (tmp_path / "test_mylib.py").write_text(THREE_LINES)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
    return tmp_path


def edit(project: Path, old: str, new: str, file: str = "mylib.py") -> None:
    text = (project / file).read_text()
    assert old in text
    (project / file).write_text(text.replace(old, new))


def run(project: Path, *arguments: str) -> tuple[dict[str, int], str]:
    """The counts of the summary line of a pytest run, and all it printed."""
    command = [sys.executable, "-m", "pytest", "-p", "opinfo_db.plugin", "-p", "no:cacheprovider"]
    path = os.pathsep.join([str(ROOT), str(project)])
    result = subprocess.run(
        [*command, "-q", *arguments],
        cwd=project,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=250,
    )
    last = result.stdout.strip().splitlines()[-1]
    counts = {word: int(n) for n, word in re.findall(r"(\d+) ([a-z]+)", last)}
    return counts, result.stdout + result.stderr


def collected(project: Path, *arguments: str) -> list[str]:
    """The ids that pytest collects."""
    _, text = run(project, "--collect-only", *arguments)
    return [line for line in text.splitlines() if line.startswith("test_mylib.py::")]


def test_three_lines_give_tests_that_pass_in_one_process_and_in_two(project: Path) -> None:
    alone, text = run(project)
    assert alone.keys() <= {"passed", "warnings"}
    assert alone["passed"] > 100
    summary = re.search(r"opinfo_db: (\d+) generated tests passed, with (\d+) assertions", text)
    assert summary is not None
    assert int(summary[1]) == alone["passed"] < int(summary[2])
    shared, text = run(project, "-n", "2")
    assert shared["passed"] == alone["passed"]
    assert summary[0] in text


def test_ids_name_check_entry_dtype_sample_and_in_dims(project: Path) -> None:
    ids = collected(project)
    assert ids == collected(project)
    assert len(ids) == len(set(ids))
    assert "test_mylib.py::test_vmapvjp[Cube-float64-sample0-in_dims(-1)]" in ids
    assert "test_mylib.py::test_grad[Cube-float32-square]" in ids


def test_k_picks_by_parts_of_the_id(project: Path) -> None:
    counts, _ = run(project, "-k", "test_vmapvjp[ and float64 and square")
    assert counts["passed"] == 3


def test_markers_pick_a_quick_sample_and_shards(project: Path) -> None:
    everything = collected(project, "-m", "full")
    assert everything == collected(project)
    quick = collected(project, "-m", "quick")
    names = {name.split("[")[0] for name in everything}
    always = {name for name in names if "::test_jit" not in name}  # jit: one entry in ten
    assert len(quick) == len({name.split("[")[0] for name in quick})
    assert always <= {name.split("[")[0] for name in quick} <= names
    shard = collected(project, "-m", "shard(index=3)")
    assert 0 < len(shard) < len(everything) / 4


def test_a_wrong_backward_fails_with_both_values(project: Path) -> None:
    edit(project, "FACTOR = 3", "FACTOR = 2")
    counts, text = run(project, "-k", "test_vjp[ and float64 and sample0")
    assert counts["failed"] == 1
    assert "by finite differences: expected" in text
    assert "the largest difference is" in text


def waived(project: Path, waivers: str) -> None:
    edit(project, "Cube, samples)", f"Cube, samples, {waivers})")


def test_a_skip_shows_its_reason(project: Path) -> None:
    waived(project, 'skips=(Waiver("grad", "too slow", samples=frozenset({"square"})),)')
    counts, text = run(project, "-k", "test_grad[", "-rs")
    assert counts == {"skipped": 2, "passed": 2, "deselected": counts["deselected"]}
    assert "too slow" in text


def test_an_expected_failure_must_fail(project: Path) -> None:
    edit(project, "FACTOR = 3", "FACTOR = 2")
    waived(
        project,
        'expected_failures=(Waiver("vjp", "known", dtypes=frozenset({torch.float64})),)',
    )
    counts, _ = run(project, "-k", "test_vjp[")
    assert counts["xfailed"] == 2
    edit(project, "FACTOR = 2", "FACTOR = 3")
    counts, text = run(project, "-k", "test_vjp[")
    assert counts["failed"] == 2
    assert "XPASS(strict)" in text


def test_a_broken_oracle_fails_though_a_failure_is_expected(project: Path) -> None:
    waived(
        project,
        'reference=lambda x: 1 / 0, expected_failures=(Waiver("vjp", "a known fault"),)',
    )
    counts, text = run(project, "-k", "test_vjp[")
    assert counts["failed"] == 4
    assert "OracleError" in text


@pytest.mark.parametrize(
    ("waiver", "message"),
    [
        ('Waiver("vjb", "a typo")', "no check ['vjb']"),
        ('Waiver("vjp", "a typo", samples=frozenset({"sqare"}))', "covers no test"),
        ('Waiver("vjp", " ")', "the reason is empty"),
    ],
)
def test_a_waiver_with_a_mistake_fails_the_collection(
    project: Path, waiver: str, message: str
) -> None:
    waived(project, f"skips=({waiver},)")
    counts, text = run(project)
    assert counts["error"] == 1
    assert message in text


# --- in this process ---


def samples(device: Any, dtype: torch.dtype, requires_grad: bool) -> Iterator[SampleInput]:
    yield SampleInput((torch.rand(3, dtype=dtype, device=device).requires_grad_(requires_grad),))


def twice(device: Any, dtype: torch.dtype, requires_grad: bool) -> Iterator[SampleInput]:
    for _ in range(2):
        yield SampleInput((torch.rand(3, dtype=dtype).requires_grad_(requires_grad),), name="one")


SIN = OpInfo("sin", torch.sin, samples)


@pytest.mark.parametrize(
    ("entries", "options", "message"),
    [
        ([SIN, SIN], {}, r"named twice: \['sin'\]"),
        ([OpInfo("sin", torch.sin, twice)], {}, "named twice"),
        ([SIN], {"checks": ["vjb"]}, r"no check \['vjb'\]"),
        ([SIN], {"dtypes": [torch.int64]}, "no test at all"),
        ([], {}, "no test at all"),
        ([SIN], {"checks": ["errors"]}, "no test at all"),
    ],
)
def test_mistakes_are_refused(entries: list[OpInfo], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        generate_tests({}, entries, **options)


def test_a_name_that_is_taken_is_refused() -> None:
    module: dict[str, Any] = {}
    generate_tests(module, [SIN], checks=["grad"])
    with pytest.raises(ValueError, match="test_grad is there already"):
        generate_tests(module, [SIN], checks=["grad"])


def test_a_check_that_compares_nothing_fails() -> None:
    module: dict[str, Any] = {}
    idle = Check("idle", "does nothing", lambda case, transforms: CheckResult(0))
    generate_tests(module, [SIN], checks=[idle])
    case = next(cases(idle, SIN, torch.float64))
    with pytest.raises(Exception, match="compared nothing"):
        module["test_idle"](case, lambda name, value: None)


def test_each_test_is_in_one_shard() -> None:
    module: dict[str, Any] = {}
    generate_tests(module, [SIN])
    for test in module.values():
        for param in test.pytestmark[0].args[1]:
            (shard,) = [mark for mark in param.marks if mark.name == "shard"]
            assert shard.kwargs["index"] in range(SHARDS)


def test_dtypes_are_the_ones_of_the_entry_that_are_asked_for() -> None:
    module: dict[str, Any] = {}
    generate_tests(module, [SIN], checks=["grad"], dtypes=[torch.float32, torch.float16])
    (mark,) = module["test_grad"].pytestmark
    assert [p.id for p in mark.args[1]] == ["sin-float32-sample0"]


def errors(device: Any, dtype: torch.dtype) -> Iterator[ErrorInput]:
    yield ErrorInput(SampleInput(("text",)), TypeError, "must be Tensor")


generate_tests(
    globals(),
    [
        OpInfo("sin", torch.sin, samples, error_inputs=errors),
        OpInfo(
            "wrong",
            torch.sin,
            samples,
            reference=torch.cos,
            expected_failures=tuple(Waiver(c, "planted") for c in ("forward", "grad")),
        ),
    ],
    checks=["forward", "grad", "errors"],
)


@ops([SIN], dtypes=[torch.float64, torch.int64])
def test_ops_gives_entry_and_dtype(
    entry: OpInfo, dtype: torch.dtype, request: pytest.FixtureRequest
) -> None:
    assert (entry, dtype) == (SIN, torch.float64)
    assert request.node.name == "test_ops_gives_entry_and_dtype[sin-float64]"


def test_ops_refuses_to_run_nothing() -> None:
    with pytest.raises(ValueError, match="nothing would run"):
        ops([SIN], dtypes=[torch.int64])
