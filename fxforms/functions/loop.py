"""A Function whose body cannot be mapped: one call a sample, the results stacked."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from fxforms.errors import RuleError
from fxforms.interpreters import VmapInfo

# What torch says where a body needs the numbers of one sample: NumPy and C code ask for the
# storage, Python control flow and indexing for a value or a shape.
_UNMAPPABLE = (
    "Cannot access data pointer of Tensor",
    "calling .item() on a Tensor",
    "Tensor in some data-dependent control flow",
    "We do not support batching operators that can",
)


class UnmappableWarning(UserWarning):
    """A Function is applied to the samples of a batch one by one.

    Example:
        >>> import warnings, fxforms
        >>> warnings.simplefilter("ignore", fxforms.UnmappableWarning)
    """


def is_unmappable(error: RuntimeError) -> bool:
    """True if ``error`` says that a body cannot run on batched tensors."""
    text = str(error)
    return any(mark in text for mark in _UNMAPPABLE)


def warn_once(name: str, error: RuntimeError) -> None:
    """Say that the Function ``name`` is looped over, and why."""
    reason = str(error).split(". ")[0]
    warnings.warn(
        f"{name} cannot be mapped over a batch ({reason}), so vmap calls it once for each sample. "
        f'Give it a vmap rule to make it fast, or vmap_method = "loop" to accept the loop.',
        UnmappableWarning,
        stacklevel=2,
    )


def loop(
    call: Callable[..., Any],
    name: str,
    info: VmapInfo,
    in_dims: tuple[int | None, ...],
    operands: tuple[Any, ...],
) -> tuple[Any, Any]:
    """``call`` on each sample; ``(outputs, out_dims)`` with the batch first."""
    if info.batch_size == 0:
        raise RuleError(
            f"{name} cannot be mapped over a batch, and a loop over a batch of size 0 does not "
            f"tell the shape of its output. Give it a vmap rule, or skip the empty batch."
        )
    samples = []
    for index in range(info.batch_size):
        sample = [x if d is None else x.select(d, index) for x, d in zip(operands, in_dims)]
        result = call(*sample)
        samples.append(result if isinstance(result, tuple) else (result,))
    outputs = tuple([stack(values) for values in zip(*samples)])
    dims = tuple([0 if isinstance(x, torch.Tensor) else None for x in outputs])
    return (outputs, dims) if isinstance(result, tuple) else (outputs[0], dims[0])


def stack(values: tuple[Any, ...]) -> Any:
    """One output of all samples: tensors stacked, anything else as the first sample gave it."""
    return torch.stack(values) if isinstance(values[0], torch.Tensor) else values[0]
