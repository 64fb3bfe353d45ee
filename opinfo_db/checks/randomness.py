"""``vmap`` over a function that draws random numbers: ``same``, ``different`` and ``error``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from opinfo_db.checks import in_dims
from opinfo_db.checks.compare import Tally
from opinfo_db.checks.contract import Case, Check, CheckFailure, CheckResult, InDims, oracle
from opinfo_db.checks.flat import Problem, Tensors, problem
from opinfo_db.checks.transforms import Transforms
from opinfo_db.core import Capability, is_inexact

_SIZE = 3


def _noisy_place(tensors: tuple[Tensor, ...]) -> int | None:
    """The first tensor that noise can be put on."""
    inexact = (i for i, x in enumerate(tensors) if is_inexact(x.dtype))
    return next((i for i in inexact if tensors[i].numel()), None)


def _all_mapped(tensors: tuple[Tensor, ...]) -> tuple[InDims, ...]:
    """All mapped at 0, if there is a tensor to put noise on."""
    return () if _noisy_place(tensors) is None else ((0,) * len(tensors),)


def _with_noise(tensors: Tensors, place: int, noise: Tensor) -> Tensors:
    """``tensors`` with one of them up to 1 % larger, by ``noise`` in [0, 1)."""
    noisy = tensors[place] * (1 + 0.01 * noise)
    return (*tensors[:place], noisy, *tensors[place + 1 :])


def _drawing(posed: Problem, place: int) -> Any:
    """The op on inputs with fresh noise; also returns the noise."""

    def draw(*tensors: Tensor) -> tuple[Tensors, Tensor]:
        x = tensors[place]
        real = x.real.dtype if x.is_complex() else x.dtype
        noise = torch.rand(x.shape, dtype=real, device=x.device)
        return posed.op.call(*_with_noise(tensors, place, noise)), noise

    return draw


def _refuses(transforms: Transforms, function: Any, batched: Tensors) -> bool:
    """True if ``randomness="error"`` raises, as it must."""
    try:
        transforms.vmap(function, randomness="error")(*batched)
    except RuntimeError:
        return True
    return False


def _compare(
    tally: Tally, posed: Problem, place: int, batched: Tensors, mapped: tuple[Tensors, Tensor]
) -> None:
    """Compare with a loop that puts the noise that was drawn on each sample."""
    outputs, noise = mapped
    with oracle("a loop"):
        rows = []
        for index in range(_SIZE):
            sample = tuple(x[index] for x in batched)
            rows.append(posed.plain.call(*_with_noise(sample, place, noise[index])))
        expected = tuple(torch.stack(column) for column in zip(*rows, strict=True))
    tally.all_equal("vmap of noisy inputs", outputs, expected)


def run(case: Case, transforms: Transforms) -> CheckResult:
    """Check each mode; an entry that is random itself draws, any other gets noisy inputs."""
    posed, tally = problem(case), Tally(case.entry)
    if case.entry.random:
        return _run_random(posed, transforms, tally)
    place = _noisy_place(posed.inputs)
    if place is None:
        raise CheckFailure("no floating tensor to put noise on")
    batched = tuple(in_dims.batch(case.entry, x, 0, _SIZE) for x in posed.inputs)
    function = _drawing(posed, place)
    for mode in ("same", "different"):
        mapped = transforms.vmap(function, randomness=mode)(*batched)
        tally.true(_alike(mapped[1]) == (mode == "same"), f"randomness={mode!r}: {mapped[1]}")
        _compare(tally, posed, place, batched, mapped)
    tally.true(_refuses(transforms, function, batched), 'randomness="error" draws numbers')
    return tally.result()


def _alike(batch: Tensor) -> bool:
    """True if all members of a batch are equal."""
    return bool((batch == batch[:1]).all())


def _run_random(posed: Problem, transforms: Transforms, tally: Tally) -> CheckResult:
    """A random op on a batch of equal members: alike under ``same``, not under ``different``."""
    batched = tuple(torch.stack([x] * _SIZE) for x in posed.inputs)
    for mode in ("same", "different"):
        outputs = transforms.vmap(posed.op.call, randomness=mode)(*batched)
        alike = all(_alike(y) for y in outputs)
        tally.true(alike == (mode == "same"), f"randomness={mode!r}: {outputs}")
    refused = _refuses(transforms, posed.op.call, batched)
    tally.true(refused, 'randomness="error" draws numbers')
    return tally.result()


RANDOMNESS = Check(
    "randomness",
    "vmap with each randomness, against a loop",
    run,
    frozenset({Capability.VMAP}),
    _all_mapped,
)
