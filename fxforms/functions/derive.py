"""Rules derived from other rules: a Function mapped over a batch.

The mapped Function is an instance of the operator of its own. Its ``forward``, ``setup_context``,
``backward`` and ``jvp`` run the user's under a vmap level of their own, so the levels below
differentiate it by the user's rules, with physical tensors saved on the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from fxforms import _substrate as substrate
from fxforms._tree import map_leaves, map_tensors
from fxforms.functions.context import RuleContext
from fxforms.interpreters import VmapInfo, vmap_level

if TYPE_CHECKING:
    from fxforms.functions.rules import FunctionRules

Dims = tuple[int | None, ...]


class Mapping:
    """One call of a mapped Function: how its operands are batched, and its outputs."""

    def __init__(self, info: VmapInfo, in_dims: Dims) -> None:
        self.info = info
        self.in_dims = in_dims
        self.out_dims: Any = None

    def flat_out_dims(self) -> Dims:
        """``out_dims`` as a tuple, also for a single output."""
        return self.out_dims if isinstance(self.out_dims, tuple) else (self.out_dims,)

    def run(self, body: Callable[[int], Any]) -> Any:
        """``body(level)`` under a vmap level of this call's batch."""
        with vmap_level(self.info.batch_size, self.info.randomness) as level:
            return body(level)


class Batched:
    """A tensor and its batch dim, to be batched again at a later level."""

    __slots__ = ("dim", "value")

    def __init__(self, tensor: torch.Tensor, level: int) -> None:
        self.value, self.dim = substrate.unwrap_batched(tensor, level)

    def at(self, level: int) -> torch.Tensor:
        """The tensor at ``level``."""
        return (
            self.value if self.dim is None else substrate.add_batch_dim(self.value, self.dim, level)
        )


def batch_one(value: Any, dim: int | None, level: int) -> Any:
    """``value`` batched at ``level`` along ``dim``, or as it is."""
    if dim is None or not isinstance(value, torch.Tensor):
        return value
    return substrate.add_batch_dim(value, dim, level)


def batch(values: tuple[Any, ...], dims: Dims, level: int) -> tuple[Any, ...]:
    """``values`` batched at ``level``."""
    return tuple([batch_one(value, dim, level) for value, dim in zip(values, dims)])


def mapped_class(rules: FunctionRules) -> Any:
    """The Function that applies ``rules``' Function to a batch; operand 0 is a Mapping."""

    def forward(mapping: Mapping, *operands: Any) -> Any:
        return mapping.run(lambda level: run_forward(rules, mapping, operands, level))

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        mapping, *operands = inputs
        mapping.run(lambda level: run_setup(rules, mapping, ctx, tuple(operands), output, level))

    def backward(ctx: Any, *cotangents: Any) -> Any:
        record: Record = ctx.record
        return record.mapping.run(lambda level: run_backward(rules, record, ctx, cotangents, level))

    def jvp(ctx: Any, _: None, *tangents: Any) -> Any:
        record: Record = ctx.record
        return record.mapping.run(lambda level: run_jvp(rules, record, ctx, tangents, level))

    methods: dict[str, Callable[..., Any]] = {"forward": forward, "setup_context": setup_context}
    if rules.backward is not None:
        methods["backward"] = backward
    if rules.jvp is not None:
        methods["jvp"] = jvp
    attributes: dict[str, Any] = {name: staticmethod(body) for name, body in methods.items()}
    return substrate.make_function(
        f"Vmapped{rules.__name__}",
        torch.autograd.Function,
        attributes | {"generate_vmap_rule": True},
    )


def run_forward(
    rules: FunctionRules, mapping: Mapping, operands: tuple[Any, ...], level: int
) -> Any:
    """The user's ``forward`` on one batch; records ``out_dims`` on ``mapping``."""
    outputs = rules.function.forward(*batch(operands, mapping.in_dims, level))
    single = not isinstance(outputs, tuple)
    pairs = [
        unbatch_output(output, mapping, operands, level)
        for output in ((outputs,) if single else outputs)
    ]
    values = tuple([value for value, _ in pairs])
    dims = tuple([dim for _, dim in pairs])
    mapping.out_dims = dims[0] if single else dims
    return values[0] if single else values


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

    Tensors are kept by the real ``ctx``; here are their batch dims and the ``ctx`` attributes.
    """

    def __init__(self, mapping: Mapping, context: RuleContext, shapes: tuple[Any, ...]) -> None:
        self.mapping = mapping
        self.needs_input_grad = context.needs_input_grad
        self.shapes = shapes
        self.attributes: dict[str, Any] = {}
        self.backward_dims: Dims = ()
        self.forward_dims: Dims = ()

    def restore(self, saved: tuple[Any, ...], dims: Dims, level: int) -> RuleContext:
        """The user's ``ctx`` at ``level``."""
        context = RuleContext(self.needs_input_grad)
        context.save_for_backward(*batch(saved, dims, level))
        for name, value in self.attributes.items():
            setattr(context, name, rebatch(value, level))
        return context


def unbatch_attribute(value: Any, level: int) -> Any:
    """An attribute of ``ctx`` with the tensors of ``level`` in it as Batched."""
    return map_tensors(lambda x: Batched(x, level) if substrate.is_batched(x) else x, value)


def rebatch(value: Any, level: int) -> Any:
    """An attribute of ``ctx`` at a new level."""
    return map_leaves(lambda x: x.at(level) if isinstance(x, Batched) else x, value)


def run_setup(
    rules: FunctionRules,
    mapping: Mapping,
    ctx: Any,
    operands: tuple[Any, ...],
    output: Any,
    level: int,
) -> None:
    """The user's ``setup_context`` on one batch, its effects carried over to the real ``ctx``."""
    inputs = batch(operands, mapping.in_dims, level)
    single = not isinstance(output, tuple)
    outputs = batch((output,) if single else output, mapping.flat_out_dims(), level)
    context = RuleContext(ctx.needs_input_grad[1:])
    rules.setup_context(context, inputs, outputs[0] if single else outputs)

    def unbatch(tensors: tuple[Any, ...]) -> list[tuple[Any, int | None]]:
        return [(None, None) if x is None else substrate.unwrap_batched(x, level) for x in tensors]

    shapes = tuple([x.shape if isinstance(x, torch.Tensor) else None for x in inputs])
    record = Record(mapping, context, shapes)
    saved = unbatch(context._saved_for_backward)
    ctx.save_for_backward(*[value for value, _ in saved])
    record.backward_dims = tuple([dim for _, dim in saved])
    forward_saved = unbatch(context.saved_tensors)
    ctx.save_for_forward(*[value for value, _ in forward_saved])
    record.forward_dims = tuple([dim for _, dim in forward_saved])
    for name, value in context.attributes().items():
        record.attributes[name] = unbatch_attribute(value, level)
    ctx.mark_dirty(*[value for value, _ in unbatch(context._dirty)])
    ctx.mark_non_differentiable(*[value for value, _ in unbatch(context._non_differentiable)])
    ctx.set_materialize_grads(context._materialize)
    ctx.record = record


def run_backward(
    rules: FunctionRules, record: Record, ctx: Any, cotangents: tuple[Any, ...], level: int
) -> tuple[Any, ...]:
    """The user's ``backward`` on one batch; gradients of unbatched inputs are summed over it."""
    mapping = record.mapping
    context = record.restore(ctx.saved_tensors, record.backward_dims, level)
    gradients = rules.run_backward(context, batch(cotangents, mapping.flat_out_dims(), level))
    reduced = [
        reduce_gradient(gradient, dim, shape, mapping.info.batch_size, level)
        for gradient, dim, shape in zip(gradients, mapping.in_dims, record.shapes)
    ]
    return (None, *reduced)


def reduce_gradient(
    gradient: torch.Tensor | None,
    in_dim: int | None,
    shape: torch.Size | None,
    batch_size: int,
    level: int,
) -> torch.Tensor | None:
    """The physical gradient of one input, of the shape and batch dim of that input.

    A rule may return a gradient that broadcasts to its input. Autograd cannot reduce that once the
    batch dim is in the way, so it is done here, sample by sample.
    """
    if gradient is None or shape is None:
        return None
    if gradient.shape != shape and is_expandable(shape, gradient.shape):
        gradient = gradient.sum_to_size(shape)
    value, dim = substrate.unwrap_batched(gradient, level)
    if in_dim is None:
        return value if dim is None else value.sum(dim)
    return move_batch(value, dim, in_dim, batch_size)


def is_expandable(shape: torch.Size, target: torch.Size) -> bool:
    """True if a tensor of ``shape`` broadcasts to ``target``."""
    tail = target[len(target) - len(shape) :]
    return len(shape) <= len(target) and all(a in (1, b) for a, b in zip(shape, tail))


def move_batch(value: torch.Tensor, dim: int | None, target: int, batch_size: int) -> torch.Tensor:
    """``value`` with its batch at ``target``, repeated there if it has none."""
    if dim is None:
        value, dim = value.unsqueeze(0).expand(batch_size, *value.shape), 0
    return value if dim == target else value.movedim(dim, target)


def run_jvp(
    rules: FunctionRules, record: Record, ctx: Any, tangents: tuple[Any, ...], level: int
) -> Any:
    """The user's ``jvp`` on one batch."""
    mapping = record.mapping
    context = record.restore(ctx.saved_tensors, record.forward_dims, level)
    assert rules.jvp is not None
    result = rules.jvp(context, *batch(tangents, mapping.in_dims, level))
    single = not isinstance(result, tuple)
    moved = []
    for tangent, target in zip((result,) if single else result, mapping.flat_out_dims()):
        if tangent is not None and target is not None:
            value, dim = substrate.unwrap_batched(tangent, level)
            tangent = move_batch(value, dim, target, mapping.info.batch_size)
        moved.append(tangent)
    return moved[0] if single else tuple(moved)
