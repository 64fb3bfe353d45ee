"""The database as a whole: how much it has, how little it skips, and that it is cheap to import."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import test_entries
import torch

from opinfo_db import Capability, OpInfo
from opinfo_db.checks.contract import samples_of, tensors_of
from opinfo_db.core import DERIVATIVES, Rule
from opinfo_db.entries import ENTRIES, FAMILIES

IMPORT = """
import torch
import fxforms
import opinfo_db.core
from torch.utils._python_dispatch import TorchDispatchMode

class Refuse(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        raise AssertionError(f"the import runs {func}")

with Refuse():
    import opinfo_db.entries
assert opinfo_db.entries.ENTRIES
"""


def generated() -> Iterator[Any]:
    """The parameters of every generated test."""
    for name, test in vars(test_entries).items():
        if name.startswith("test_"):
            for mark in test.pytestmark:
                if mark.name == "parametrize":
                    yield from mark.args[1]


def test_importing_it_runs_no_operation() -> None:
    subprocess.run([sys.executable, "-c", IMPORT], check=True, timeout=120)


def test_it_has_enough_entries() -> None:
    assert len(ENTRIES) >= 60
    assert all(family.ENTRIES for family in FAMILIES)


def test_few_tests_are_skipped() -> None:
    marks = [{mark.name for mark in param.marks} for param in generated()]
    assert len(marks) > 10_000
    assert sum("skip" in names for names in marks) < 0.02 * len(marks)


@pytest.mark.parametrize("rules", [(), *((rule,) for rule in Rule), (Rule.JVP, Rule.VMAP)])
def test_each_combination_of_rules_is_there(rules: tuple[Rule, ...]) -> None:
    assert any(entry.rules == frozenset(rules) for entry in ENTRIES)


@pytest.mark.parametrize("capability", sorted(DERIVATIVES))
def test_each_derivative_is_there_and_is_missing(capability: Capability) -> None:
    assert {capability in entry.supports for entry in ENTRIES} == {True, False}


def test_every_entry_can_be_mapped() -> None:
    assert all(Capability.VMAP in entry.supports for entry in ENTRIES)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_the_first_sample_is_small(entry: OpInfo) -> None:
    """The quick run takes it."""
    made = samples_of(entry, entry.dtypes[0], torch.device("cpu"))
    assert 0 < sum(t.numel() for t in tensors_of(next(made))) <= 9
