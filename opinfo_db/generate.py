"""Entries times checks, as pytest tests.

:func:`generate_tests` puts one parametrized test a check into a module. The ids depend on the
entries alone, so that pytest-xdist sees the same tests in each worker, and ``-k`` can pick by
check, entry, dtype, sample or ``in_dims``. Each test is marked ``full`` and ``shard(index=...)``;
a small fixed sample of them is marked ``quick``.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from typing import Any

import pytest
import torch

from opinfo_db.checks import BY_NAME, CHECKS
from opinfo_db.checks.contract import (
    Case,
    Check,
    CheckFailure,
    capable,
    cases,
    run_check,
)
from opinfo_db.checks.transforms import FXFORMS, Transforms
from opinfo_db.core import OpInfo, Waiver

#: ``-m "shard(index=0)"`` to ``-m "shard(index=15)"`` are all the generated tests.
SHARDS = 16
#: What a generated test records, and the summary of the plugin adds up.
ASSERTIONS = "opinfo_db_assertions"
# torch's own warning, at the first torch.func.jvp of a process: not about the code under test.
_TORCH_WARNING = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")


def generate_tests(
    namespace: MutableMapping[str, Any],
    entries: Iterable[OpInfo],
    *,
    checks: Iterable[str | Check] | None = None,
    dtypes: Iterable[torch.dtype] | None = None,
    transforms: Transforms = FXFORMS,
    device: torch.device | str = "cpu",
) -> None:
    """Put the tests of ``entries`` into ``namespace``, the ``globals()`` of a test module.

    A test is generated for each check, entry, dtype, sample and choice of ``in_dims``, where the
    entry supports what the check needs. A skip or an expected failure of an entry becomes a mark.

    Args:
        namespace: where the functions ``test_<check>`` go.
        entries: what to test.
        checks: names of checks or checks; all of ``opinfo_db.checks.CHECKS`` if ``None``.
        dtypes: only these of the dtypes of each entry; all if ``None``.
        transforms: the transforms under test.
        device: where the samples are made.

    Raises:
        ValueError: two entries or two samples have one name; a waiver or ``checks`` names an
            unknown check; a waiver covers no test; a name in ``namespace`` is taken; or nothing
            is generated.

    Example:
        >>> import torch
        >>> from opinfo_db import OpInfo, SampleInput
        >>> def samples(device, dtype, requires_grad):
        ...     yield SampleInput((torch.rand(3, dtype=dtype, requires_grad=requires_grad),))
        >>> module = {}
        >>> generate_tests(module, [OpInfo("sin", torch.sin, samples)], checks=["grad", "vmapvjp"])
        >>> sorted(module)
        ['test_grad', 'test_vmapvjp']
    """
    entries, selected = tuple(entries), _selected(checks)
    wanted = None if dtypes is None else frozenset(dtypes)
    _refuse_repeated("entries", [entry.name for entry in entries])
    found: dict[str, list[Case]] = {check.name: [] for check in selected}
    for entry in entries:
        _add_cases(found, selected, entry, wanted, torch.device(device))
        _refuse_waivers(entry, found)
    if not any(found.values()):
        raise ValueError(
            "generate_tests: no test at all. Look at supports, dtypes and sample_inputs of the "
            "entries, and at the checks and dtypes asked for."
        )
    for check in selected:
        if found[check.name]:
            _put(namespace, check, found[check.name], transforms)


def ops(
    entries: Iterable[OpInfo], dtypes: Iterable[torch.dtype] | None = None
) -> pytest.MarkDecorator:
    """A decorator that runs a test once an entry and dtype, as arguments ``entry`` and ``dtype``.

    Args:
        entries: what to run the test on.
        dtypes: only these of the dtypes of each entry; all if ``None``.

    Raises:
        ValueError: no entry has one of ``dtypes``, so that the test would never run.

    Example:
        >>> import torch
        >>> from opinfo_db import OpInfo, SampleInput
        >>> sin = OpInfo("sin", torch.sin, lambda device, dtype, requires_grad: ())
        >>> @ops([sin], dtypes=[torch.float64])
        ... def test_something(entry, dtype):
        ...     assert entry.name == "sin"
    """
    wanted = None if dtypes is None else frozenset(dtypes)
    pairs = [(e, dtype) for e in entries for dtype in _dtypes(e, wanted)]
    if not pairs:
        raise ValueError("ops: no entry in any of the dtypes asked for, so nothing would run.")
    params = [pytest.param(e, d, id=f"{e.name}-{str(d)[len('torch.') :]}") for e, d in pairs]
    return pytest.mark.parametrize(("entry", "dtype"), params)


def _selected(checks: Iterable[str | Check] | None) -> tuple[Check, ...]:
    """The checks asked for."""
    if checks is None:
        return CHECKS
    asked = tuple(checks)
    _known("generate_tests(checks=...)", [c for c in asked if isinstance(c, str)])
    return tuple(BY_NAME[c] if isinstance(c, str) else c for c in asked)


def _known(where: str, names: Iterable[str]) -> None:
    """Refuse names of checks that do not exist."""
    if unknown := sorted(set(names) - set(BY_NAME)):
        raise ValueError(f"{where}: no check {unknown}. The checks are {sorted(BY_NAME)}.")


def _refuse_repeated(what: str, names: Sequence[str]) -> None:
    """Refuse a name that occurs twice: one test would hide the other."""
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise ValueError(f"generate_tests: {what} named twice: {repeated}. Rename them.")


def _dtypes(entry: OpInfo, wanted: frozenset[torch.dtype] | None) -> list[torch.dtype]:
    """The dtypes of ``entry`` that are wanted."""
    return [dtype for dtype in entry.dtypes if wanted is None or dtype in wanted]


def _add_cases(
    found: dict[str, list[Case]],
    checks: Sequence[Check],
    entry: OpInfo,
    wanted: frozenset[torch.dtype] | None,
    device: torch.device,
) -> None:
    """Add the cases of ``entry`` to those found; check by check, so that ids do not repeat."""
    for dtype in _dtypes(entry, wanted):
        for check in checks:
            if capable(check, entry, dtype):
                new = list(cases(check, entry, dtype, device))
                _refuse_repeated(f"tests of {check.name}", [case.id for case in new])
                found[check.name] += new


def _refuse_waivers(entry: OpInfo, found: dict[str, list[Case]]) -> None:
    """Refuse a waiver of ``entry`` that names no check, or covers no test."""
    for waiver in (*entry.skips, *entry.expected_failures):
        _known(f"{entry.name}, waiver ({waiver.reason})", [waiver.check])
        own = [case for case in found.get(waiver.check, ()) if case.entry is entry]
        asked = waiver.check in found and (
            not waiver.dtypes or any(case.dtype in waiver.dtypes for case in own)
        )
        if asked and not any(_covers(waiver, case) for case in own):
            raise ValueError(
                f"{entry.name}: {waiver} covers no test. Remove it, or correct its check, dtypes "
                "or samples."
            )


def _covers(waiver: Waiver, case: Case) -> bool:
    """True if ``waiver`` is about ``case``, given that it is about its check."""
    return waiver.covers(waiver.check, case.dtype, case.sample_name)


def _marks(check: Check, case: Case, quick: bool) -> list[pytest.MarkDecorator]:
    """The marks of one test."""
    shard = zlib.crc32(f"{check.name}[{case.id}]".encode()) % SHARDS
    marks = [pytest.mark.full, pytest.mark.shard(index=shard), _TORCH_WARNING]
    if quick:
        marks.append(pytest.mark.quick)
    for waiver in case.entry.skips:
        if waiver.check == check.name and _covers(waiver, case):
            marks.append(pytest.mark.skip(reason=waiver.reason))
    for waiver in case.entry.expected_failures:
        if waiver.check == check.name and _covers(waiver, case):
            # Not OracleError: a test whose oracle is broken must not hide here.
            marks.append(pytest.mark.xfail(raises=CheckFailure, strict=True, reason=waiver.reason))
    return marks


def _params(check: Check, found: Sequence[Case]) -> list[Any]:
    """The parameters of the test of ``check``; the first case of an entry is quick."""
    seen: set[str] = set()
    params = []
    for case in found:
        turn = zlib.crc32(f"{check.name}-{case.entry.name}".encode()) % check.quick_share
        quick = case.entry.name not in seen and turn == 0
        seen.add(case.entry.name)
        params.append(pytest.param(case, id=case.id, marks=_marks(check, case, quick)))
    return params


def _put(
    namespace: MutableMapping[str, Any],
    check: Check,
    found: Sequence[Case],
    transforms: Transforms,
) -> None:
    """Put the test of ``check`` on the cases ``found`` into ``namespace``."""
    name = f"test_{check.name}"
    if name in namespace:
        raise ValueError(
            f"generate_tests: {name} is there already. Give all entries in one call, or call it "
            "from another module."
        )
    test = _test_of(check, transforms)
    test.__name__ = test.__qualname__ = name
    test.__module__ = namespace.get("__name__", __name__)
    namespace[name] = pytest.mark.parametrize("case", _params(check, found))(test)


def _test_of(check: Check, transforms: Transforms) -> Callable[..., None]:
    """The test function of ``check``."""

    def test(case: Case, record_property: Callable[[str, object], None]) -> None:
        record_property(ASSERTIONS, run_check(check, case, transforms).assertions)

    test.__doc__ = check.description
    return test
