"""A Function whose body cannot be mapped: one call a sample, the results stacked."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms._tree import is_atom, map_tensors
from fxforms.errors import (
    RANDOM,
    UNBATCHED,
    ArgumentError,
    MutationError,
    RuleError,
    describe,
)
from fxforms.functions.batch_dims import unbatch
from fxforms.functions.context import RuleContext, as_tuple, attributes_of
from fxforms.interpreters import VmapInfo, current_interpreter
from fxforms.interpreters.vmap import VmapInterpreter


class UnmappableWarning(UserWarning):
    """A Function is applied to the samples of a batch one by one.

    Example:
        >>> import warnings, fxforms
        >>> warnings.simplefilter("ignore", fxforms.UnmappableWarning)
    """


def warn_once(name: str, error: RuntimeError) -> None:
    """Say that the Function ``name`` is looped over, and why."""
    reason = str(error.__cause__ or error).split(". ")[0]
    warnings.warn(
        f"{name} cannot be mapped over a batch ({reason}), so vmap calls it once for each sample. "
        f'Give it a vmap rule to make it fast, or vmap_method = "loop" to accept the loop.',
        UnmappableWarning,
        stacklevel=2,
    )


class Unmappable(Exception):
    """A body did not run on batched tensors."""


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
    given: list[tuple[Any, ...]] = []
    shared = tuple([x for x, dim in zip(operands, in_dims) if dim is None])
    versions = substrate.versions(shared)
    state = torch.get_rng_state()
    watched = info.randomness != "different" and not substrate.dispatch_modes()
    for index in range(info.batch_size):
        sample = tuple([own_sample(x, d, index) for x, d in zip(operands, in_dims)])
        given.append(sample)
        result = call(*sample)
        samples.append(as_tuple(result))
        if versions != substrate.versions(shared):
            raise MutationError(f"{name} changed in place a tensor without a batch. {UNBATCHED}")
        if watched and not torch.equal(state, torch.get_rng_state()):
            if info.randomness == "error":
                raise ArgumentError(f"{name}: a random operation in a loop over a batch. {RANDOM}")
            if index + 1 < info.batch_size:
                torch.set_rng_state(state)
    outputs, dims = collect(name, samples, given, in_dims, operands)
    return (outputs, dims) if isinstance(result, tuple) else (outputs[0], dims[0])


def collect(
    name: str,
    samples: list[tuple[Any, ...]],
    given: list[tuple[Any, ...]],
    in_dims: tuple[int | None, ...],
    operands: tuple[Any, ...],
) -> tuple[tuple[Any, ...], tuple[int | None, ...]]:
    """Outputs and batch dims of all ``samples``, which were ``given`` their parts of ``operands``.

    An operand whose samples were changed in place and returned gets their values, and is returned.
    """
    check_counts(samples, name)
    pairs: list[tuple[Any, int | None]] = []
    changes = []
    for values in zip(*samples):
        index = changed_operand(values, given, in_dims)
        if index is None:
            output = stack(values, name)
            pairs.append((output, 0 if isinstance(output, torch.Tensor) else None))
        else:
            pairs.append((operands[index], in_dims[index]))
            changes.append((operands[index], torch.stack(values, in_dims[index] or 0)))
    for operand, value in changes:
        operand.copy_(value)
    return tuple([x for x, _ in pairs]), tuple([dim for _, dim in pairs])


def own_sample(value: Any, dim: int | None, index: int) -> Any:
    """Sample ``index`` of ``value`` in memory of its own, for a body may change it in place."""
    return value if dim is None else value.select(dim, index).clone()


def changed_operand(
    values: tuple[Any, ...], given: list[tuple[Any, ...]], in_dims: tuple[int | None, ...]
) -> int | None:
    """The operand whose samples ``values`` are, if the body changed them in place."""
    for index, dim in enumerate(in_dims):
        if dim is not None and all(v is sample[index] for v, sample in zip(values, given)):
            fresh = substrate.versions((values[0].clone(),))
            return index if substrate.versions(values[:1]) != fresh else None
    return None


def loop_rule(
    name: str,
    rule: Callable[[RuleContext, tuple[Any, ...]], tuple[Any, ...]],
    ctx: Any,
    args: tuple[Any, ...],
) -> tuple[Any, ...]:
    """``rule``, met at a vmap level, on each sample of ``ctx`` and ``args`` one level down."""
    interpreter = current_interpreter()
    assert isinstance(interpreter, VmapInterpreter)
    level, size = interpreter.level, interpreter.info().batch_size

    given = [unbatch(x, level) for x in args]
    samples = []
    with interpreter.lower():
        for index in range(size):
            context = sample_context(ctx, level, index)
            samples.append(rule(context, tuple([pick(x, d, index) for x, d in given])))
        columns = [stack_present(values, name) for values in zip(*samples)]
    return tuple([None if x is None else substrate.add_batch_dim(x, 0, level) for x in columns])


def sample_context(ctx: Any, level: int, index: int) -> RuleContext:
    """``ctx`` of sample ``index`` at vmap ``level``."""

    def put(value: Any) -> Any:
        return pick(*unbatch(value, level), index)

    of_samples = getattr(ctx, "_fx_samples", None)
    if of_samples is not None:
        own, place = of_samples
        context: RuleContext = place(index if own == level else None, put)
        return context
    context = RuleContext(ctx.needs_input_grad, ctx._fx_lowered)
    context.to_save = tuple([put(x) for x in ctx.saved_tensors])
    context._fx_input_likes = getattr(ctx, "_fx_input_likes", ())
    for name, value in attributes_of(ctx).items():
        setattr(context, name, map_tensors(put, value))
    return context


def pick(value: Any, dim: int | None, index: int) -> Any:
    """Sample ``index`` of ``value``, or all of it if it has no batch."""
    return value if dim is None else value.select(dim, index)


def stack(values: tuple[Any, ...], name: str) -> Any:
    """One output of all samples: tensors stacked, anything else if it is the same for all."""
    if isinstance(values[0], torch.Tensor):
        check_shapes(values, f"{name} returned outputs")
        return torch.stack(values)
    if not all(x is values[0] or (is_atom(x) and x == values[0]) for x in values):
        raise RuleError(
            f"{name} returned a {type(values[0]).__name__} that differs between samples. Return a "
            f"tensor, which can hold one value for each."
        )
    return values[0]


def check_counts(samples: list[tuple[Any, ...]], name: str) -> None:
    """Raise RuleError unless every sample has as many outputs as the first."""
    counts = sorted({len(sample) for sample in samples})
    if len(counts) > 1:
        raise RuleError(
            f"{name} returned different numbers of outputs ({', '.join(map(str, counts))}) for the "
            f"samples of a batch. Return the same for every sample."
        )


def check_shapes(values: tuple[Any, ...], what: str) -> None:
    """Raise RuleError unless ``values``, one a sample, are tensors of one shape."""
    shapes = {tuple(x.shape) if isinstance(x, torch.Tensor) else describe(x) for x in values}
    if len(shapes) > 1:
        raise RuleError(
            f"{what} of different shapes ({', '.join(sorted(map(str, shapes)))}) for the samples "
            f"of a batch, which one tensor cannot hold. Pad them to one shape."
        )


def stack_present(values: tuple[torch.Tensor | None, ...], name: str) -> torch.Tensor | None:
    """The results of one rule on all samples, absent ones as zeros; None if all are absent."""
    like = next((value for value in values if value is not None), None)
    if like is None:
        return None
    check_shapes(tuple([x for x in values if x is not None]), f"A rule of {name} gave derivatives")
    return torch.stack([torch.zeros_like(like) if v is None else v for v in values])
