"""A vmap rule derived from the other rules: the Function mapped over a batch.

The mapped Function is an instance of the operator of its own. Its ``forward``, ``setup_context``,
``backward`` and ``jvp`` run the user's under a vmap level of their own, so the levels below
differentiate it by the user's rules, with physical tensors saved on the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms._tree import map_tensors
from fxforms.errors import GradientError, describe
from fxforms.functions.batch_dims import (
    batch,
    move_batch,
    place_gradient,
    unbatch,
)
from fxforms.functions.context import as_tuple, attributes_of
from fxforms.functions.contract import Rules
from fxforms.functions.mapping import Mapping, Record, SetupContext, SharedRecord, Slot
from fxforms.functions.once import once_differentiable
from fxforms.functions.unseen import first_hidden, opaque_leaves
from fxforms.interpreters import vmap_level


def mapped_class(rules: Rules) -> Any:
    """The Function that applies ``rules``' Function to a batch; operand 0 is a Mapping."""

    def forward(mapping: Mapping, *operands: Any) -> Any:
        size, randomness = mapping.info
        level = substrate.enter_vmap(size, randomness)  # vmap_level, without its object
        try:
            return run_forward(rules, mapping, operands, level)
        finally:
            substrate.exit_vmap()

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        mapping = ctx._fx_mapping = inputs[0]
        if mapping.shared is not None:
            mapping.shared.save(ctx, inputs, output, forward=True)
        else:
            with vmap_level(*mapping.info) as level:
                run_setup(rules, mapping, ctx, inputs[1:], output, level)

    def backward(ctx: Any, *cotangents: Any) -> Any:
        return run_backward(rules, ctx, cotangents)

    def jvp(ctx: Any, _: None, *tangents: Any) -> Any:
        return run_jvp(rules, ctx, tangents)

    methods: dict[str, Callable[..., Any]] = {"forward": forward, "setup_context": setup_context}
    if rules.backward is not None:
        methods["backward"] = once_differentiable(backward) if rules.once else backward
    if rules.jvp is not None:
        methods["jvp"] = jvp
    return substrate.make_function(rules.__name__, torch.autograd.Function, methods)


def run_forward(rules: Rules, mapping: Mapping, operands: tuple[Any, ...], level: int) -> Any:
    """The user's ``forward`` on one batch; records ``out_dims`` on ``mapping``."""
    inputs = batch(operands, mapping.in_dims, level)
    shapes: list[torch.Size | None] = []
    for x in operands:
        shapes.append(x.shape if isinstance(x, torch.Tensor) else None)
    mapping.shapes = shapes
    outputs = rules.function.forward(*inputs)
    if isinstance(outputs, tuple):
        pairs = [unbatch_output(output, mapping, operands, level) for output in outputs]
        mapping.out_dims = tuple([dim for _, dim in pairs])
        values: Any = tuple([value for value, _ in pairs])
    else:
        values, mapping.out_dims = unbatch_output(outputs, mapping, operands, level)
    mapping.shared = None
    if rules.root.shares_setup and rules.watches and not mapping.has_run:
        mapping.shared = share_setup(rules, mapping, inputs, outputs)
    mapping.has_run = True
    return values


def share_setup(
    rules: Rules, mapping: Mapping, inputs: tuple[Any, ...], outputs: Any
) -> SharedRecord | None:
    """What the user's ``setup_context`` leaves, run once for all levels.

    If this call leaves other things than earlier ones, or an error is to be raised, each level
    runs it anew.
    """
    ctx = SetupContext()
    last: SharedRecord | None = rules.last_shared
    flat = as_tuple(outputs)
    try:
        rules.function.setup_context(ctx, inputs, outputs)
        if last is not None and last.fits(ctx, inputs, flat, mapping):
            return last
        found = rules.last_shared = SharedRecord.of(ctx, inputs, flat, mapping)
    except Exception:
        found = None
    if found is None:
        rules.root.shares_setup = False
    return found


def unbatch_output(
    output: Any, mapping: Mapping, operands: tuple[Any, ...], level: int
) -> tuple[Any, int | None]:
    """The physical output and its batch dim.

    An output that no sample changes is expanded to the batch: its cotangent then arrives one a
    sample, and summing the gradients of unbatched inputs counts it once.
    """
    if not isinstance(output, torch.Tensor):
        return output, None
    value, dim = substrate.unwrap_batched(output, level)
    if dim is None and not any(value is x for x in operands):
        return value.unsqueeze(0).expand(mapping.info.batch_size, *value.shape), 0
    return value, dim


def run_setup(
    rules: Rules,
    mapping: Mapping,
    ctx: Any,
    operands: tuple[Any, ...],
    output: Any,
    level: int,
) -> None:
    """The user's ``setup_context`` on one batch, its effects carried over to the real ``ctx``."""
    inputs = batch(operands, mapping.in_dims, level)
    single = not isinstance(output, tuple)
    outputs = batch(as_tuple(output), as_tuple(mapping.out_dims), level)
    context = SetupContext()
    context._fx_needs, context._fx_lowered = ctx.needs_input_grad[1:], ctx._fx_lowered
    context._fx_plain = ctx._fx_plain or not (ctx._fx_lowered or substrate.level_depth() > 1)
    rules.function.setup_context(context, inputs, outputs[0] if single else outputs)
    if rules.root.shares_setup is None:
        found = SharedRecord.of(context, inputs, outputs, mapping)
        rules.root.shares_setup = found is not None

    attributes: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> Slot:
        attributes.append(tensor)
        return Slot(len(attributes) - 1)

    record = Record({k: map_tensors(keep, v) for k, v in attributes_of(context).items()})
    first_hidden(opaque_leaves(record.attributes, Slot))
    record.attribute_count = len(attributes)
    saved = [unbatch(x, level) for x in (*attributes, *context.to_save)]
    values = [value for value, _ in saved]
    ctx.save_for_backward(*values)
    record.backward_dims = record.forward_dims = tuple([dim for _, dim in saved])
    if context.saved_for_forward is not None:
        saved = [unbatch(x, level) for x in (*attributes, *context.saved_for_forward)]
        values = [value for value, _ in saved]
        record.forward_dims = tuple([dim for _, dim in saved])
    ctx.save_for_forward(*values)
    if context.dirty_tensors:
        ctx.mark_dirty(*[unbatch(x, level)[0] for x in context.dirty_tensors])
    if context.non_differentiable:
        ctx.mark_non_differentiable(*[unbatch(x, level)[0] for x in context.non_differentiable])
    if not context.materialize_grads:
        ctx.set_materialize_grads(False)
    ctx._fx_record = record


def run_backward(
    rules: Rules, ctx: Any, cotangents: tuple[Any, ...]
) -> tuple[torch.Tensor | None, ...]:
    """The user's ``backward`` on one batch, after None for the Mapping.

    Gradients of unbatched inputs are summed over the batch.
    """
    record: Record = ctx._fx_record
    mapping: Mapping = ctx._fx_mapping
    saved = ctx.saved_tensors
    size, randomness = mapping.info
    level = substrate.enter_vmap(size, randomness)  # vmap_level, without its object
    try:
        context = record.restore(ctx, saved, record.backward_dims, level)
        given = batch(cotangents, as_tuple(mapping.out_dims), level)
        placed: list[torch.Tensor | None] = [None]
        for g, to, shape in zip(rules.gradients(context, given), mapping.in_dims, mapping.shapes):
            placed.append(None if g is None else place_gradient(g, level, to, shape, size))
        return tuple(placed)
    finally:
        substrate.exit_vmap()


def run_jvp(rules: Rules, ctx: Any, tangents: tuple[Any, ...]) -> tuple[Any, ...]:
    """The user's ``jvp`` on one batch."""
    record: Record = ctx._fx_record
    mapping: Mapping = ctx._fx_mapping
    saved = ctx.saved_tensors
    assert rules.jvp is not None
    with vmap_level(*mapping.info) as level:
        context = record.restore(ctx, saved, record.forward_dims, level)
        found = rules.run_rule(rules.jvp, context, batch(tangents, mapping.in_dims, level))
        check_tangents(rules.__name__, found)
        pairs = [unbatch(x, level) for x in found]
    size = mapping.info.batch_size
    return tuple(
        [
            t if t is None or to is None else move_batch(t, d, to, size)
            for (t, d), to in zip(pairs, as_tuple(mapping.out_dims))
        ]
    )


def check_tangents(name: str, tangents: Sequence[Any]) -> None:
    """Raise GradientError if a jvp rule returned anything but tensors and None."""
    for index, tangent in enumerate(tangents):
        if not (tangent is None or isinstance(tangent, torch.Tensor)):
            raise GradientError(
                f"{name}.jvp returned as tangent of output {index} {describe(tangent)}. Return a "
                f"tensor, or None where it is zero."
            )
