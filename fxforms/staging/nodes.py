"""The autograd nodes of a staged function: one at a level, or one of plain autograd."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms.functions.bind import live
from fxforms.functions.inline import differentiated
from fxforms.functions.single_level import apply_single_level
from fxforms.interpreters import current_interpreter
from fxforms.interpreters.grad import GradInterpreter
from fxforms.staging.derivatives import NoParts, Parts
from fxforms.staging.draws import drawing_from, random_state
from fxforms.transforms.flat import Tensors, fill, is_inexact


def follows(program: Any, tensors: Sequence[torch.Tensor]) -> bool:
    """True if something differentiates what ``program`` makes of ``tensors``."""
    return differentiated((*tensors, *program.traced.captured))


def apply_plain(program: Any, operands: Tensors) -> Tensors:
    """Run ``program`` and record it in the graph of plain autograd."""
    apply: Any = node_of(program.__name__).apply
    result: Tensors = apply(program, len(operands), *operands, *program.traced.captured)
    return result


def apply_at_level(program: Any, operands: Tensors) -> Tensors:
    """Run ``program`` and record it at the grad level on top."""
    result: Tensors = apply_single_level(LevelNode, (program, *operands))
    return result


class PlainNode(torch.autograd.Function):
    """A staged function in the graph of plain autograd; captured tensors are inputs of it."""

    @staticmethod
    def forward(ctx: Any, program: Any, count: int, *tensors: torch.Tensor) -> Tensors:
        """``tensors``: the operands, ``count`` of them, then the captured ones."""
        needs = ctx.needs_input_grad[2:]
        ctx.program, ctx.count, ctx.wanted = program, count, needs[count:]
        ctx.mask = needs[:count]
        ctx.set_materialize_grads(False)
        ctx.parts = parts = program.parts(ctx.mask, ctx.wanted, tensors[:count])
        ctx.drawn = random_state(tensors) if program.draws else None
        if isinstance(parts, NoParts):
            return without_derivative(ctx, program, tensors)
        results = parts.forward.bind(*tensors[:count])
        outputs = results[: program.traced.outputs]
        rest = results[len(outputs) + parts.tokens :]
        tokens = results[len(outputs) : len(outputs) + parts.tokens]
        written = [rest[i] for i in program.order_of_writes(parts.written)]
        ctx.save_for_backward(*tensors[:count], *rest[len(written) :])
        constant = [x for x, moves in zip(outputs, parts.differentiable) if not moves]
        ctx.mark_non_differentiable(*constant, *tokens, *written)
        ctx.likes = [x.new_empty(()).expand(x.shape) for x in outputs if is_inexact(x)]
        return (*outputs, *tokens, *written)

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        """Gradients of the operands and of the captured tensors."""
        refuse(ctx.parts)
        saved = ctx.saved_tensors
        operands, residuals = saved[: ctx.count], saved[ctx.count :]
        arrived = inexact(ctx.program, cotangents)
        given = [torch.zeros_like(x) if ct is None else ct for x, ct in zip(ctx.likes, arrived)]
        if follows(ctx.program, (*operands, *given)):
            found = anew(ctx, ctx.wanted, operands, given)
        else:
            found = ctx.parts.backward.bind(*residuals, *given)
        present = {i for i, ct in enumerate(arrived) if ct is not None}
        kept = [g if present & of else None for g, of in zip(found, ctx.parts.sources)]
        mask = (*ctx.mask, *ctx.wanted)
        return None, None, *fill(mask, separate(kept, (*saved, *given)), [None] * len(mask))


def separate(
    gradients: Sequence[torch.Tensor | None], others: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    """``gradients``, each in memory of its own: autograd makes them the ``.grad`` of leaves."""
    try:
        taken = {x.untyped_storage()._cdata for x in others}
    except NotImplementedError:  # batched cotangents, which no leaf gets
        return list(gradients)
    found: list[torch.Tensor | None] = []
    for gradient in gradients:
        if gradient is not None:
            if gradient.untyped_storage()._cdata in taken:
                gradient = gradient.clone()
            taken.add(gradient.untyped_storage()._cdata)
        found.append(gradient)
    return found


@functools.lru_cache(maxsize=256)
def node_of(name: str) -> type[PlainNode]:
    """The node of a function of this name, which ``grad_fn`` tells."""
    return type(f"jit({name})", (PlainNode,), {})


def without_derivative(ctx: Any, program: Any, tensors: Tensors) -> Tensors:
    """The results of ``program``, which are recorded so that their derivative is an error."""
    results: Tensors = program.run(tensors)
    fixed = [x for x in results[: program.traced.outputs] if not is_inexact(x)]
    ctx.mark_non_differentiable(*fixed, *results[program.traced.outputs :])
    return results


def refuse(parts: Any) -> None:
    """Raise what kept ``parts`` from being traced."""
    if isinstance(parts, NoParts):
        kind = type(parts.error)  # a new one: what is raised keeps the frames it went through
        error = kind.__new__(kind, *parts.error.args)
        vars(error).update(vars(parts.error))
        raise error


def _level_forward(ctx: Any, program: Any, *operands: torch.Tensor) -> Tensors:
    interpreter = current_interpreter()
    assert isinstance(interpreter, GradInterpreter)
    inner = interpreter.unwrap(operands)
    ctx.program, ctx.mask, ctx.parts, ctx.residuals = program, ctx.needs_input_grad[1:], None, ()
    ctx.drawn = random_state(inner) if program.draws else None
    with interpreter.lower():
        if follows(program, inner):
            results = program.bind(*inner)
        else:
            ctx.parts = program.parts(ctx.mask, None, inner)
            forward = program if isinstance(ctx.parts, NoParts) else ctx.parts.forward
            results = forward.bind(*inner)
    count = program.traced.outputs
    ctx.residuals = results[count + (ctx.parts.tokens if isinstance(ctx.parts, Parts) else 0) :]
    outputs: Tensors = interpreter.wrap(results[:count], inner, operands)
    ctx.save_for_backward(*operands)
    ctx.mark_non_differentiable(*[x for x in outputs if not is_inexact(x)])
    return outputs


def _level_backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
    refuse(ctx.parts)
    # The graph of a level that has ended is not differentiated again: only levels below it count.
    operands, given = live(ctx.saved_tensors), inexact(ctx.program, live(cotangents))
    if ctx.parts is None or follows(ctx.program, (*operands, *given)):
        found = anew(ctx, None, operands, given)
    else:
        found = ctx.parts.backward.bind(*ctx.residuals, *given)
    return None, *fill(ctx.mask, found, [None] * len(ctx.mask))


def anew(
    ctx: Any,
    wanted: tuple[bool, ...] | None,
    operands: Tensors,
    given: Sequence[torch.Tensor],
) -> Tensors:
    """Gradients by a pass that computes the forward anew, with the random numbers it had."""
    with drawing_from(ctx.drawn, operands):
        found: Tensors = ctx.program.pullback(ctx.mask, wanted, operands, given)
    return found


LevelNode = substrate.make_function(
    "Staged",
    substrate.SingleLevelFunction,
    {"forward": _level_forward, "backward": _level_backward},
)


def inexact(program: Any, cotangents: Sequence[Any]) -> list[Any]:
    """The cotangents of the outputs that have a derivative."""
    outputs = program.traced.output_examples()
    return [ct for x, ct in zip(outputs, cotangents) if is_inexact(x)]
