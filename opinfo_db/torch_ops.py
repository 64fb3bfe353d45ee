"""torch's own database of operators, as entries of this one.

The content stays in torch: each entry holds on to torch's record and asks it for samples when a
test does. What torch declares (autograd, forward mode, double backward) becomes ``supports``.

The import needs ``expecttest`` and ``numpy`` beside torch, and takes a few seconds. Some samples
need ``scipy``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch.testing._internal.common_methods_invocations import op_db

from opinfo_db.core import Capability, OpInfo, SampleInput

_PROCESS = "output_process_fn_grad"
# What torch calls a random operator through, to get the same numbers each time.
_SEEDING = "wrapper_set_seed"


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """An operator as torch's own gradient tests call it.

    The wrapper makes an input symmetric, positive definite and so on, where the derivative is only
    defined on such. ``output_process_fn_grad`` comes with a sample, and maps an output that is not
    unique (an eigenvector has no sign) to one that is.
    """

    record: Any

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The output of the operator, after both."""
        process = kwargs.pop(_PROCESS)
        return process(self.record.gradcheck_wrapper(self.record.op, *args, **kwargs))


@contextmanager
def _all_generators_seeded() -> Iterator[None]:
    """Inside, Python's and NumPy's random numbers follow torch's seed: some samples draw them."""
    seed = torch.initial_seed() % 2**32
    before, numpy_before = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(numpy_before)


def _adapted(sample: Any) -> SampleInput:
    """One of torch's samples as one of ours."""
    kwargs = {**sample.kwargs, _PROCESS: sample.output_process_fn_grad}
    return SampleInput((sample.input, *sample.args), kwargs)


def _samples(record: Any) -> Callable[..., Iterator[SampleInput]]:
    """The generator function of the samples of ``record``."""

    def sample_inputs(
        device: torch.device, dtype: torch.dtype, requires_grad: bool
    ) -> Iterator[SampleInput]:
        with _all_generators_seeded():
            made = record.sample_inputs(device, dtype, requires_grad=requires_grad)
            yield from map(_adapted, made)

    return sample_inputs


def _supports(record: Any) -> frozenset[Capability]:
    """What torch declares to work. It declares nothing about ``vmap``, so all must."""
    autograd, forward = record.supports_autograd, record.supports_forward_ad
    both = record.supports_fwgrad_bwgrad
    declared = {
        Capability.VMAP: True,
        Capability.BACKWARD: autograd,
        Capability.DOUBLE_BACKWARD: autograd and record.supports_gradgrad,
        Capability.JVP: forward,
        Capability.DOUBLE_JVP: both,
        Capability.FORWARD_OVER_REVERSE: both,
        Capability.REVERSE_OVER_FORWARD: both,
    }
    return frozenset(capability for capability, works in declared.items() if works)


def _is_random(record: Any) -> bool:
    """True if the operator draws random numbers: torch seeds it, or tags its kernel."""
    called = getattr(getattr(record.op, "__code__", None), "co_names", ())
    if _SEEDING in (*called, record.gradcheck_wrapper.__name__):
        return True
    packet = getattr(torch.ops.aten, record.aten_name or record.name.rpartition(".")[2], None)
    overloads = [getattr(packet, name) for name in packet.overloads()] if packet else []
    return any(torch.Tag.nondeterministic_seeded in overload.tags for overload in overloads)


def _entry(record: Any) -> OpInfo:
    """torch's ``record`` as an entry."""
    return OpInfo(
        record.full_name,
        _Call(record),
        _samples(record),
        dtypes=tuple(sorted(record.dtypes, key=str)),
        supports=_supports(record),
        random=_is_random(record),
    )


@lru_cache(maxsize=1)
def torch_ops() -> tuple[OpInfo, ...]:
    """Every operator of torch's database, with all its samples.

    The entries have no ``reference``: values and derivatives are checked against plain autograd of
    the operator, a loop over the batch, and finite differences.

    Example:
        >>> "sin" in {entry.name for entry in torch_ops()}
        True
    """
    return tuple(map(_entry, op_db))


def differentiable_ops(dtype: torch.dtype) -> tuple[OpInfo, ...]:
    """The operators of :func:`torch_ops` that exist in ``dtype`` and support autograd."""
    return tuple(
        entry
        for entry in torch_ops()
        if dtype in entry.dtypes and Capability.BACKWARD in entry.supports
    )
