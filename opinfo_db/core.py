"""The records of the database: an operation, its samples, its errors and its tolerances.

An :class:`OpInfo` says what an operation is, on what it can be tried and what it is able to do.
Everything here is immutable and lazy: making an entry runs no operation and makes no tensor; the
samples are made when a test asks for them. Expected failures are data of the entry, each with its
reason, so nothing decorates or edits the database afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch import Tensor

Op: TypeAlias = Callable[..., Any] | type[torch.autograd.Function]


class Capability(StrEnum):
    """What must work on an entry, by a rule its author wrote or by one that was derived."""

    BACKWARD = "backward"  #: reverse mode, once
    DOUBLE_BACKWARD = "double backward"  #: reverse mode through a backward
    JVP = "jvp"  #: forward mode, once
    DOUBLE_JVP = "double jvp"  #: forward mode through a jvp
    FORWARD_OVER_REVERSE = "forward over reverse"  #: forward mode through a backward
    REVERSE_OVER_FORWARD = "reverse over forward"  #: reverse mode through a jvp
    VMAP = "vmap"  #: a batch of samples, nested too


ALL_CAPABILITIES: frozenset[Capability] = frozenset(Capability)
DERIVATIVES: frozenset[Capability] = ALL_CAPABILITIES - {Capability.VMAP}


class Rule(StrEnum):
    """A rule that the author of a Function can write."""

    BACKWARD = "backward"
    JVP = "jvp"
    VMAP = "vmap"


@dataclass(frozen=True, slots=True, eq=False)
class SampleInput:
    """One call of an operation: ``op(*args, **kwargs)``.

    Args:
        args: the positional arguments. Tensors may sit inside pytrees.
        kwargs: the keyword arguments.
        name: a short name for test ids; empty for ``sample<index>``.

    Example:
        >>> import torch
        >>> SampleInput((torch.ones(2), 3), name="small").name
        'small'
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""

    def __post_init__(self) -> None:
        """Freeze ``kwargs``."""
        object.__setattr__(self, "kwargs", MappingProxyType(dict(self.kwargs)))


@dataclass(frozen=True, slots=True, eq=False)
class ErrorInput:
    """A bad call and the error it must get.

    Args:
        sample: the call.
        error: the exception class; a subclass of it is right as well.
        regex: a pattern found in the message (``re.search``).
    """

    sample: SampleInput
    error: type[Exception]
    regex: str


@dataclass(frozen=True, slots=True)
class Tolerance:
    """``actual`` is right within ``atol + rtol * max(abs(expected))`` of a tensor."""

    atol: float
    rtol: float


#: Used where an entry gives no tolerance of its own. A dtype that is not here compares exactly.
TOLERANCES: Mapping[torch.dtype, Tolerance] = MappingProxyType(
    {
        torch.float64: Tolerance(1e-9, 1e-8),
        torch.complex128: Tolerance(1e-9, 1e-8),
        torch.float32: Tolerance(1e-5, 1e-4),
        torch.complex64: Tolerance(1e-5, 1e-4),
        torch.float16: Tolerance(1e-2, 1e-2),
        torch.bfloat16: Tolerance(5e-2, 5e-2),
    }
)
EXACT = Tolerance(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Waiver:
    """Tests of one check that an entry does not have to pass, and why.

    Args:
        check: the name of the check. An unknown name is an error when tests are generated.
        reason: one sentence for the report.
        dtypes: only for these dtypes; empty for all.
        samples: only for the samples with these names (``sample0``, or the name of the
            :class:`SampleInput`); empty for all.

    Raises:
        ValueError: the reason is empty.

    Example:
        >>> Waiver("jvpjvp", "the body is opaque to forward mode").covers("jvpjvp", None, "sample0")
        True
    """

    check: str
    reason: str
    dtypes: frozenset[torch.dtype] = frozenset()
    samples: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Refuse a waiver without a reason."""
        if not self.reason.strip():
            raise ValueError(f"Waiver(check={self.check!r}): the reason is empty. Say why.")

    def covers(self, check: str, dtype: torch.dtype | None, sample: str) -> bool:
        """True if this waiver is about that check on that dtype and sample."""
        return (
            self.check == check
            and (not self.dtypes or dtype in self.dtypes)
            and (not self.samples or sample in self.samples)
        )


def is_inexact(dtype: torch.dtype) -> bool:
    """True if values of ``dtype`` can be differentiated: floating or complex."""
    return dtype.is_floating_point or dtype.is_complex


def vary_values(tensor: Tensor, member: int) -> Tensor:
    """The ``member``-th variant of ``tensor``, to make a batch whose members differ.

    Floating and complex values shrink by up to 3 % a member, so that they stay in the domain of
    most operations; other values are rolled, so that indices stay valid. Member 0 is ``tensor``.
    """
    if is_inexact(tensor.dtype):
        # Small values shrink more: operations that no common scale changes see a difference too.
        return tensor * (1 - 0.03 * member / (1 + tensor.abs()))
    return tensor.flatten().roll(member).view(tensor.shape)


def roll_values(tensor: Tensor, member: int) -> Tensor:
    """As :func:`vary_values` for operations that look at the order of values, such as a sort.

    All values are rolled, and then they shrink as there, so that no two of them become equal.
    """
    rolled = tensor.flatten().roll(member).view(tensor.shape)
    return vary_values(rolled, member) if is_inexact(tensor.dtype) else rolled


def _no_errors(device: torch.device, dtype: torch.dtype) -> Iterable[ErrorInput]:
    """The error inputs of an entry that has none."""
    return ()


def written_rules(op: Op) -> frozenset[Rule]:
    """The rules that the author of ``op`` wrote; none are seen on a plain callable.

    Example:
        >>> sorted(written_rules(torch.sin))
        []
    """
    if not isinstance(op, type):
        return frozenset()
    base = torch.autograd.Function
    names = {"backward": Rule.BACKWARD, "vjp": Rule.BACKWARD, "jvp": Rule.JVP, "vmap": Rule.VMAP}
    owners = {n: next((k for k in op.__mro__ if n in vars(k)), base) for n in names}
    written = {names[n] for n, k in owners.items() if _is_written(k)}
    if getattr(op, "generate_vmap_rule", False):
        written.add(Rule.VMAP)
    return frozenset(written)


def _is_written(owner: type) -> bool:
    """True if ``owner`` is a user's class: neither torch's Function nor the one of fxforms."""
    return owner.__module__.partition(".")[0] not in ("torch", "fxforms")


@dataclass(frozen=True, slots=True, eq=False)
class OpInfo:
    """An operation with all that is needed to test it.

    Args:
        name: unique in a list of entries; the first part of each test id.
        op: a callable, or a subclass of ``torch.autograd.Function`` whose ``apply`` is called. An
            op that changes its arguments in place must clone them first, in a small wrapper.
        sample_inputs: a generator function ``(device, dtype, requires_grad) -> SampleInputs``. If
            ``requires_grad``, the tensors to be differentiated require grad, and no others do. It
            is called with a fixed seed, and it must be deterministic under that seed. Keep the
            values some 1e-3 away from kinks: derivatives are compared with finite differences.
        reference: the same function out of plain torch operations, each differentiable twice, or
            ``None``. With one, values and derivatives are checked against plain autograd of it;
            without, against plain autograd of ``op``; and in both cases against finite differences.
        dtypes: the dtypes that the samples are made in.
        supports: what must work on it.
        rules: the rules its author wrote, for the report; found from a Function class.
        error_inputs: a generator function ``(device, dtype) -> ErrorInputs``.
        finite_differences: false if the derivative is by design not that of the forward, as in a
            straight-through estimator. It needs a ``reference`` with the designed derivative.
        random: the op draws random numbers. Each call is made with the same seed, and ``vmap``
            runs with ``randomness="same"``.
        vary: ``(tensor, member) -> tensor``, how to make the members of a batch differ. Use
            :func:`roll_values` where only the order of values tells, as in a sort.
        tolerances: by dtype, over :data:`TOLERANCES`.
        skips: tests not to run.
        expected_failures: tests that must fail; one that passes is reported as a failure.

    Raises:
        ValueError: no finite differences and no reference, so that nothing would be checked.

    Example:
        >>> def samples(device, dtype, requires_grad):
        ...     x = torch.rand(3, device=device, dtype=dtype)
        ...     yield SampleInput((x.requires_grad_(requires_grad),))
        >>> OpInfo("sin", torch.sin, samples, dtypes=(torch.float64,)).call(torch.zeros(1))
        tensor([0.])
    """

    name: str
    op: Op
    sample_inputs: Callable[[torch.device, torch.dtype, bool], Iterable[SampleInput]]
    reference: Callable[..., Any] | None = None
    dtypes: tuple[torch.dtype, ...] = (torch.float64, torch.float32)
    supports: frozenset[Capability] = ALL_CAPABILITIES
    rules: frozenset[Rule] | None = None
    error_inputs: Callable[[torch.device, torch.dtype], Iterable[ErrorInput]] = _no_errors
    finite_differences: bool = True
    random: bool = False
    vary: Callable[[Tensor, int], Tensor] = vary_values
    tolerances: Mapping[torch.dtype, Tolerance] = field(default_factory=dict)
    skips: tuple[Waiver, ...] = ()
    expected_failures: tuple[Waiver, ...] = ()

    def __post_init__(self) -> None:
        """Freeze the mapping, find the rules, and refuse an entry without an oracle."""
        object.__setattr__(self, "tolerances", MappingProxyType(dict(self.tolerances)))
        if self.rules is None:
            object.__setattr__(self, "rules", written_rules(self.op))
        if not self.finite_differences and self.reference is None:
            raise ValueError(
                f"OpInfo({self.name!r}): finite_differences=False and no reference, so nothing is "
                "left to check its derivatives against. Give a reference with the designed "
                "derivative."
            )

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """``op(*args, **kwargs)``, through ``apply`` if ``op`` is a Function."""
        if isinstance(self.op, type) and issubclass(self.op, torch.autograd.Function):
            return self.op.apply(*args, **kwargs)  # type: ignore[no-untyped-call]
        return self.op(*args, **kwargs)

    def tolerance(self, dtype: torch.dtype) -> Tolerance:
        """The tolerance for values of ``dtype``; exact for integers and booleans."""
        return self.tolerances.get(dtype) or TOLERANCES.get(dtype, EXACT)
