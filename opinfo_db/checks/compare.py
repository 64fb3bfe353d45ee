"""Comparing tensors, and counting what was compared."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from opinfo_db.checks.contract import CheckFailure, CheckResult, Difference
from opinfo_db.core import OpInfo, is_inexact


def _wide(value: Tensor) -> Tensor:
    """``value`` in a dtype in which its differences are exact enough."""
    return value.detach().to(torch.complex128 if value.is_complex() else torch.float64)


def largest(value: Tensor) -> float:
    """The largest finite absolute value in ``value``; 0 if there is none."""
    sizes = _wide(value).abs()
    sizes = sizes[sizes.isfinite()]
    return float(sizes.max()) if sizes.numel() else 0.0


def largest_difference(actual: Tensor, expected: Tensor) -> float:
    """The largest absolute difference; equal infinities and NaN in one place do not differ."""
    if actual.numel() == 0:
        return 0.0
    a, e = _wide(actual), _wide(expected)
    same = (a == e) | (a.isnan() & e.isnan())
    gap = torch.where(same, torch.zeros_like(a), a - e).abs()
    amount = float(gap.nan_to_num(nan=math.inf, posinf=math.inf).max())
    # Large integers can differ by less than a double can tell.
    unequal = not is_inexact(actual.dtype) and not torch.equal(actual, expected)
    return max(amount, 1.0) if unequal else amount


def inner(x: Tensor, y: Tensor) -> float:
    """The real inner product, the sum of ``Re(conj(x) * y)``, in double precision."""
    return float((_wide(x).conj() * _wide(y)).real.sum())


def inner_size(x: Tensor, y: Tensor) -> float:
    """The sum of ``abs(x * y)``: how large the terms of :func:`inner` are."""
    return float((_wide(x) * _wide(y)).abs().sum())


# torch.func.vmap(out_dims=-1) can return a tensor far outside its storage: do not read that.
_MOST_SHOWN = 1_000_000


class Tally:
    """Compares values for one case, counts the assertions and keeps the worst difference."""

    def __init__(self, entry: OpInfo) -> None:
        """Start at zero, with the tolerances of ``entry``."""
        self._entry = entry
        self._assertions = 0
        self._worst: Difference | None = None

    def true(self, condition: bool, message: str) -> None:
        """Count one assertion; fail with ``message`` unless ``condition``."""
        self._assertions += 1
        if not condition:
            raise CheckFailure(message)

    def equal(self, where: str, actual: Tensor, expected: Tensor) -> None:
        """``actual`` has the shape, the dtype and, within the tolerance, the values."""
        actual, expected = actual.detach(), expected.detach()
        for what in ("shape", "dtype", "device"):
            seen, wanted = getattr(actual, what), getattr(expected, what)
            if seen != wanted:
                message = f"{where}: {what} is {_plain(seen)}, expected {_plain(wanted)}"
                raise CheckFailure(message, Difference(where, expected, actual, math.inf, math.inf))
        tolerance = self._entry.tolerance(expected.dtype)
        limit = tolerance.atol + tolerance.rtol * largest(expected)
        self._record(
            Difference(where, expected, actual, largest_difference(actual, expected), limit)
        )

    def all_equal(self, where: str, actual: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
        """Each of ``actual`` equals its partner in ``expected``, and there are as many."""
        self.true(
            len(actual) == len(expected),
            f"{where}: {len(actual)} tensors, expected {len(expected)}",
        )
        for index, (a, e) in enumerate(zip(actual, expected, strict=True)):
            self.equal(f"{where}[{index}]", a, e)

    def near(self, where: str, actual: float, expected: float, limit: float) -> None:
        """The numbers differ by at most ``limit``."""
        amount = abs(actual - expected)
        amount = math.inf if math.isnan(amount) else amount
        wanted, seen = (torch.tensor(v, dtype=torch.float64) for v in (expected, actual))
        self._record(Difference(where, wanted, seen, amount, limit))

    def _record(self, difference: Difference) -> None:
        """Count ``difference``, keep it if it is the worst, fail if it is too large."""
        self._assertions += 1
        if self._worst is None or difference.ratio > self._worst.ratio:
            self._worst = difference
        if difference.ratio > 1:
            raise CheckFailure(describe(difference), difference)

    def result(self) -> CheckResult:
        """What was done."""
        return CheckResult(self._assertions, self._worst)


def _plain(value: object) -> object:
    """A shape as a tuple; anything else as it is."""
    return tuple(value) if isinstance(value, torch.Size) else value


def show(value: Tensor) -> str:
    """A tensor on one line, shortened."""
    if value.numel() > _MOST_SHOWN:
        return f"a tensor of shape {tuple(value.shape)}"
    value = value.detach().cpu()
    if is_inexact(value.dtype):
        value = _wide(value)
    text = np.array2string(value.resolve_conj().resolve_neg().numpy(), threshold=12, edgeitems=2)
    return " ".join(text.split())


def describe(difference: Difference) -> str:
    """One line: where, both values, the largest difference and what is allowed."""
    return (
        f"{difference.where}: expected {show(difference.expected)}, got "
        f"{show(difference.actual)}; the largest difference is {difference.amount:.3g}, "
        f"allowed {difference.limit:.3g}"
    )
