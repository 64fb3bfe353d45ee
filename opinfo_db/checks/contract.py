"""What a check is: the contract between checks, the pytest generator and the command line.

A :class:`Check` is one property with its own oracle. :func:`cases` lists what an entry gives it to
do, :func:`run_check` does one of them. A check that is wrong about something raises
:class:`CheckFailure`, with both values; one whose oracle cannot run raises :class:`OracleError`;
and one that compared nothing is an error as well, never a pass.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from itertools import islice
from typing import TypeAlias

import torch
from torch import Tensor

from fxforms._tree import leaves
from opinfo_db.checks.transforms import Transforms
from opinfo_db.core import DERIVATIVES, Capability, ErrorInput, OpInfo, SampleInput, is_inexact

#: One entry a tensor of the sample, in the order of its leaves.
InDims: TypeAlias = tuple[int | None, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Difference:
    """Two values that were compared: where, both, and the largest difference between them.

    ``amount`` is the largest absolute difference and ``limit`` what the tolerance allows; both
    are ``inf`` where shapes or dtypes differ or only one side is finite.
    """

    where: str
    expected: Tensor
    actual: Tensor
    amount: float
    limit: float

    @property
    def ratio(self) -> float:
        """The difference in units of what is allowed; more than 1 is a failure."""
        if self.amount == 0:
            return 0.0
        exact = self.limit == 0 or math.isinf(self.amount)
        return math.inf if exact else self.amount / self.limit


@dataclass(frozen=True, slots=True, eq=False)
class CheckResult:
    """A check that passed: how many assertions it made, and the worst difference it saw."""

    assertions: int
    worst: Difference | None = None


class CheckFailure(AssertionError):
    """What was checked is wrong, or raised. ``difference`` has both values if there are any."""

    def __init__(self, message: str, difference: Difference | None = None) -> None:
        """Keep the values beside the message."""
        super().__init__(message)
        self.difference = difference


class OracleError(Exception):
    """The oracle could not run, so nothing was checked. An expected failure does not cover it."""


class MissingCapability(Exception):
    """A check was asked to run on an entry that does not declare what the check needs."""


class Source(Enum):
    """What a check runs over."""

    SAMPLES = "sample_inputs"
    ERRORS = "error_inputs"


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One thing for a check to do: a sample of an entry in one dtype, and ``in_dims`` if it maps.

    It holds no tensor. ``sample()`` makes the sample anew, the same each time.
    """

    entry: OpInfo
    dtype: torch.dtype
    device: torch.device
    index: int
    sample_name: str
    in_dims: InDims | None = None

    @property
    def id(self) -> str:
        """The part of a test id in brackets, such as ``Cube-float64-sample3-in_dims(0,None)``."""
        parts = [self.entry.name, str(self.dtype).removeprefix("torch."), self.sample_name]
        if self.in_dims is not None:
            parts.append(f"in_dims({','.join(map(str, self.in_dims))})")
        return "-".join(parts)

    @property
    def seed(self) -> int:
        """A seed that depends on the id alone, so that it is the same in each process."""
        return zlib.crc32(self.id.encode())

    def sample(self) -> SampleInput:
        """The sample, made anew."""
        with _seeded(self.entry, self.dtype):
            made = samples_of(self.entry, self.dtype, self.device)
            return next(islice(made, self.index, None))

    def error_input(self) -> ErrorInput:
        """The error input, made anew."""
        with _seeded(self.entry, self.dtype):
            made = self.entry.error_inputs(self.device, self.dtype)
            return next(islice(iter(made), self.index, None))


def _without_in_dims(tensors: tuple[Tensor, ...]) -> Iterable[InDims | None]:
    """The variants of a check that maps nothing."""
    return (None,)


def _always(entry: OpInfo, dtype: torch.dtype) -> bool:
    """A check with an oracle for every entry and dtype."""
    return True


@dataclass(frozen=True, slots=True, eq=False)
class Check:
    """One property of an operation, with an oracle of its own.

    Args:
        name: in test ids and waivers.
        description: one line for the list that the command line prints.
        run: does one case under the given transforms and returns what it did. It raises
            :class:`CheckFailure`, or any exception of the code under test; what the oracle runs
            goes inside :func:`oracle`.
        needs: what an entry must support to be checked.
        variants: from the tensors of a sample, the ``in_dims`` to try; ``None`` for no mapping.
        source: whether it runs over the samples or over the error inputs.
        applies: whether there is an oracle for that entry in that dtype.
        quick_share: of so many entries, one has its first case in the quick sample.
    """

    name: str
    description: str
    run: Callable[[Case, Transforms], CheckResult]
    needs: frozenset[Capability] = frozenset()
    variants: Callable[[tuple[Tensor, ...]], Iterable[InDims | None]] = _without_in_dims
    source: Source = Source.SAMPLES
    applies: Callable[[OpInfo, torch.dtype], bool] = _always
    quick_share: int = 1

    @property
    def differentiates(self) -> bool:
        """True if it needs a derivative, and so floating or complex inputs."""
        return bool(self.needs & DERIVATIVES)


@contextmanager
def _seeded(entry: OpInfo, dtype: torch.dtype) -> Iterator[None]:
    """Inside, the random numbers depend on the entry and dtype only; outside, nothing changed."""
    with torch.random.fork_rng():
        torch.manual_seed(zlib.crc32(f"{entry.name}-{dtype}".encode()))
        yield


@contextmanager
def oracle(what: str) -> Iterator[None]:
    """Any exception inside is an :class:`OracleError`: the oracle's fault, not the op's."""
    try:
        yield
    except (OracleError, CheckFailure):
        raise
    except Exception as error:
        raise OracleError(f"{what}: {type(error).__name__}: {error}") from error


def tensors_of(sample: SampleInput) -> tuple[Tensor, ...]:
    """The tensors of a sample, in the order of its leaves."""
    found = leaves((sample.args, dict(sample.kwargs)))
    return tuple(leaf for leaf in found if isinstance(leaf, Tensor))


def samples_of(entry: OpInfo, dtype: torch.dtype, device: torch.device) -> Iterator[SampleInput]:
    """The samples of an entry; what can be differentiated requires grad."""
    differentiable = is_inexact(dtype) and bool(entry.supports & DERIVATIVES)
    for index, sample in enumerate(entry.sample_inputs(device, dtype, differentiable)):
        yield replace(sample, name=sample.name or f"sample{index}")


@lru_cache(maxsize=1)
def _all_samples(
    entry: OpInfo, dtype: torch.dtype, device: torch.device
) -> tuple[SampleInput, ...]:
    """All samples, made once for the checks of one entry in turn; no test runs on these."""
    with _seeded(entry, dtype):
        return tuple(samples_of(entry, dtype, device))


def capable(check: Check, entry: OpInfo, dtype: torch.dtype) -> bool:
    """True if ``entry`` in ``dtype`` has what ``check`` needs."""
    able = check.needs <= entry.supports and (is_inexact(dtype) or not check.differentiates)
    return able and check.applies(entry, dtype)


def cases(
    check: Check, entry: OpInfo, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> Iterator[Case]:
    """What ``entry`` gives ``check`` to do in ``dtype``; nothing if it lacks a capability.

    The samples are made, to know how many there are and what tensors they have; no op runs.
    A check of a derivative passes over samples in which nothing requires grad.
    """
    device = torch.device(device)
    if not capable(check, entry, dtype):
        return
    if check.source is Source.ERRORS:
        with _seeded(entry, dtype):
            errors = list(entry.error_inputs(device, dtype))
        for index, error in enumerate(errors):
            yield Case(entry, dtype, device, index, error.sample.name or f"error{index}")
        return
    for index, sample in enumerate(_all_samples(entry, dtype, device)):
        tensors = tensors_of(sample)
        if check.differentiates and not any(t.requires_grad for t in tensors):
            continue
        for in_dims in check.variants(tensors):
            yield Case(entry, dtype, device, index, sample.name, in_dims)


def run_check(check: Check, case: Case, transforms: Transforms) -> CheckResult:
    """Run one case.

    Raises:
        CheckFailure: what was checked is wrong, or raised an exception.
        OracleError: the oracle could not run, or nothing was compared.
        MissingCapability: the entry does not support what the check needs.
    """
    where = f"{check.name}[{case.id}] under {transforms.name}"
    if missing := check.needs - case.entry.supports:
        raise MissingCapability(f"{where}: {case.entry.name} does not declare {sorted(missing)}")
    try:
        with torch.random.fork_rng():
            torch.manual_seed(case.seed)
            result = check.run(case, transforms)
    except CheckFailure as failure:
        raise CheckFailure(f"{where}: {failure}", failure.difference) from failure.__cause__
    except OracleError as error:
        raise OracleError(f"{where}: {error}") from error.__cause__
    except Exception as error:
        raise CheckFailure(f"{where}: raised {type(error).__name__}: {error}") from error
    if result.assertions == 0:
        raise OracleError(f"{where}: it compared nothing. Every check must compare something.")
    return result
