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
from fxforms._tree import map_leaves, map_tensors
from fxforms.errors import GradientError, describe
from fxforms.functions.batch_dims import (
    Dims,
    batch,
    batch_one,
    move_batch,
    place_gradient,
    reduce_to,
)
from fxforms.functions.context import RuleContext, as_tuple, attributes_of
from fxforms.functions.contract import Rules
from fxforms.functions.once import once_differentiable
from fxforms.functions.unseen import first_hidden, opaque_leaves
from fxforms.interpreters import VmapInfo

Place = Callable[[Any, int | None], Any]


class Mapping:
    """One call of a mapped Function: how its operands are batched, and its outputs."""

    def __init__(self, info: VmapInfo, in_dims: Dims) -> None:
        self.info = info
        self.in_dims = in_dims
        self.out_dims: Any = None

    def flat_out_dims(self) -> Dims:
        """``out_dims`` as a tuple, also for a single output."""
        return as_tuple(self.out_dims)

    def run(self, body: Callable[[int], Any]) -> Any:
        """``body(level)`` under a vmap level of this call's batch."""
        size, randomness = self.info
        level = substrate.enter_vmap(size, randomness)  # vmap_level, without its object
        try:
            return body(level)
        finally:
            substrate.exit_vmap()


class Slot:
    """Where in the saved tensors an attribute of ``ctx`` is kept."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


def mapped_class(rules: Rules) -> Any:
    """The Function that applies ``rules``' Function to a batch; operand 0 is a Mapping."""

    def forward(mapping: Mapping, *operands: Any) -> Any:
        return mapping.run(lambda level: run_forward(rules, mapping, operands, level))

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        mapping, *operands = inputs
        plain = ctx._fx_plain or not (ctx._fx_lowered or substrate.transforms_active())
        mapping.run(
            lambda level: run_setup(rules, mapping, ctx, tuple(operands), output, level, plain)
        )

    def backward(ctx: Any, *cotangents: Any) -> Any:
        return (None, *run_backward(rules, ctx, cotangents))

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
    outputs = rules.function.forward(*batch(operands, mapping.in_dims, level))
    if not isinstance(outputs, tuple):
        value, mapping.out_dims = unbatch_output(outputs, mapping, operands, level)
        return value
    pairs = [unbatch_output(output, mapping, operands, level) for output in outputs]
    mapping.out_dims = tuple([dim for _, dim in pairs])
    return tuple([value for value, _ in pairs])


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


class Record:
    """What the mapped ``setup_context`` leaves for ``backward`` and ``jvp``.

    Tensors are kept by the real ``ctx``, those of attributes first, so that every level above wraps
    them; here are their batch dims and the attributes without them.
    """

    def __init__(self, mapping: Mapping, context: RuleContext, shapes: tuple[Any, ...]) -> None:
        self.mapping = mapping
        self.needs_input_grad = context.needs_input_grad
        self.lowered = context._fx_lowered
        self.shapes = shapes
        self.attributes: dict[str, Any] = {}
        self.attribute_count = 0
        self.backward_dims: Dims = ()
        self.forward_dims: Dims = ()

    def restore(self, saved: tuple[Any, ...], dims: Dims, place: Place) -> RuleContext:
        """The user's ``ctx``, each tensor and its batch dim put in place by ``place``."""
        tensors = list(map(place, saved, dims))
        context = RuleContext(self.needs_input_grad, self.lowered)
        context.save_for_backward(*tensors[self.attribute_count :])
        for name, value in self.attributes.items():
            restored = map_leaves(lambda x: tensors[x.index] if isinstance(x, Slot) else x, value)
            setattr(context, name, restored)
        return context


def run_setup(
    rules: Rules,
    mapping: Mapping,
    ctx: Any,
    operands: tuple[Any, ...],
    output: Any,
    level: int,
    plain: bool,
) -> None:
    """The user's ``setup_context`` on one batch, its effects carried over to the real ``ctx``."""
    inputs = batch(operands, mapping.in_dims, level)
    single = not isinstance(output, tuple)
    outputs = batch(as_tuple(output), mapping.flat_out_dims(), level)
    context = RuleContext(ctx.needs_input_grad[1:], ctx._fx_lowered)
    context._fx_plain = plain
    rules.function.setup_context(context, inputs, outputs[0] if single else outputs)

    def unbatch(tensors: tuple[Any, ...]) -> list[tuple[Any, int | None]]:
        return [(None, None) if x is None else substrate.unwrap_batched(x, level) for x in tensors]

    shapes = tuple([x.shape if isinstance(x, torch.Tensor) else None for x in inputs])
    record = Record(mapping, context, shapes)
    attributes: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> Slot:
        attributes.append(tensor)
        return Slot(len(attributes) - 1)

    record.attributes = {k: map_tensors(keep, v) for k, v in attributes_of(context).items()}
    first_hidden(opaque_leaves(record.attributes, Slot))
    record.attribute_count = len(attributes)
    saved = unbatch((*attributes, *context.to_save))
    values = [value for value, _ in saved]
    ctx.save_for_backward(*values)
    record.backward_dims = record.forward_dims = tuple([dim for _, dim in saved])
    if context.saved_for_forward is not None:
        saved = unbatch((*attributes, *context.saved_for_forward))
        values = [value for value, _ in saved]
        record.forward_dims = tuple([dim for _, dim in saved])
    ctx.save_for_forward(*values)
    if context.dirty_tensors:
        ctx.mark_dirty(*[value for value, _ in unbatch(context.dirty_tensors)])
    if context.non_differentiable:
        ctx.mark_non_differentiable(*[value for value, _ in unbatch(context.non_differentiable)])
    if not context.materialize_grads:
        ctx.set_materialize_grads(False)
    ctx._fx_record = record


def apply_rule(
    record: Record,
    saved: tuple[Any, ...],
    saved_dims: Dims,
    args: tuple[Any, ...],
    arg_dims: Dims,
    rule: Callable[[RuleContext, tuple[Any, ...]], Sequence[Any]],
) -> list[tuple[Any, int | None]]:
    """``rule`` on the whole batch: each result with its batch dim."""

    def batched(level: int) -> list[tuple[Any, int | None]]:
        context = record.restore(saved, saved_dims, lambda x, d: batch_one(x, d, level))
        results = rule(context, batch(args, arg_dims, level))
        return [(None, None) if x is None else substrate.unwrap_batched(x, level) for x in results]

    return record.mapping.run(batched)  # type: ignore[no-any-return]


def run_backward(
    rules: Rules, ctx: Any, cotangents: tuple[Any, ...]
) -> tuple[torch.Tensor | None, ...]:
    """The user's ``backward`` on one batch; gradients of unbatched inputs are summed over it.

    A rule may return a gradient that broadcasts to its input. Autograd cannot reduce that once the
    batch dim is in the way, so it is done here, sample by sample.
    """
    record: Record = ctx._fx_record
    mapping = record.mapping

    def rule(context: RuleContext, args: tuple[Any, ...]) -> list[Any]:
        gradients = rules.gradients(context, args)
        return [
            None if g is None or shape is None else reduce_to(g, shape)
            for g, shape in zip(gradients, record.shapes)
        ]

    dims = mapping.flat_out_dims()
    saved, saved_dims = ctx.saved_tensors, record.backward_dims
    pairs = apply_rule(record, saved, saved_dims, cotangents, dims, rule)
    size = mapping.info.batch_size
    return tuple([place_gradient(g, d, to, size) for (g, d), to in zip(pairs, mapping.in_dims)])


def run_jvp(rules: Rules, ctx: Any, tangents: tuple[Any, ...]) -> tuple[Any, ...]:
    """The user's ``jvp`` on one batch."""
    record: Record = ctx._fx_record
    mapping = record.mapping

    def rule(context: RuleContext, args: tuple[Any, ...]) -> tuple[Any, ...]:
        assert rules.jvp is not None
        tangents = rules.run_rule(rules.jvp, context, args)
        for index, tangent in enumerate(tangents):
            if not (tangent is None or isinstance(tangent, torch.Tensor)):
                raise GradientError(
                    f"{rules.__name__}.jvp returned as tangent of output {index} "
                    f"{describe(tangent)}. Return a tensor, or None where it is zero."
                )
        return tangents

    saved, saved_dims = ctx.saved_tensors, record.forward_dims
    pairs = apply_rule(record, saved, saved_dims, tangents, mapping.in_dims, rule)
    size = mapping.info.batch_size
    return tuple(
        [
            t if t is None or to is None else move_batch(t, d, to, size)
            for (t, d), to in zip(pairs, mapping.flat_out_dims())
        ]
    )
