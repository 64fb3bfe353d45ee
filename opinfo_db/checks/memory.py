"""No use of an entry keeps a tensor alive, and none needs the garbage collector to let go."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from opinfo_db.checks.compare import Tally
from opinfo_db.checks.contract import Case, Check, CheckResult
from opinfo_db.checks.flat import Fun, Tensors, problem
from opinfo_db.checks.transforms import Transforms
from opinfo_db.checks.uses import Use, uses


@contextmanager
def collector_off() -> Iterator[None]:
    """Inside, cycles are not collected, and ``gc.get_objects`` lists new objects only."""
    enabled = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()


def kept_by(use: Use, fun: Fun, inputs: Tensors) -> tuple[int, list[tuple[int, ...]]]:
    """How many inputs outlive one use, and the shapes of all new tensors that do.

    The first use is a warm-up: what a cache makes once is not a leak.
    """
    use(fun, tuple(x.clone() for x in inputs))
    with collector_off():
        fresh = tuple(x.clone() for x in inputs)
        references = [weakref.ref(x) for x in fresh]
        use(fun, fresh)
        del fresh
        inputs_kept = sum(reference() is not None for reference in references)
        kept = [x for x in gc.get_objects() if issubclass(type(x), torch.Tensor)]
        return inputs_kept, [tuple(x.shape) for x in kept]


def run(case: Case, transforms: Transforms) -> CheckResult:
    """Count what each use keeps."""
    posed, tally = problem(case), Tally(case.entry)
    for name, use in uses(posed, transforms).items():
        inputs_kept, others = kept_by(use, posed.op, posed.inputs)
        tally.true(inputs_kept == 0, f"{name} keeps {inputs_kept} of its inputs alive")
        tally.true(not others, f"{name} keeps tensors of shapes {others} alive")
    return tally.result()


MEMORY = Check("memory", "no tensor is kept, with the garbage collector off", run)
