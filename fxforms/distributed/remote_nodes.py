"""The autograd nodes of a remote call: at a level, of plain autograd, and plain forward mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from fxforms import _substrate as substrate
from fxforms.distributed import batched_cotangents
from fxforms.distributed.futures import Future
from fxforms.distributed.kept_calls import KeptCall, differentiated
from fxforms.errors import GradientError
from fxforms.functions.bind import live
from fxforms.functions.single_level import apply_single_level
from fxforms.interpreters import current_interpreter
from fxforms.interpreters.grad import GradInterpreter
from fxforms.transforms.flat import Tensors, fill, is_inexact


def apply_at_level(call: Any, operands: Tensors) -> Tensors:
    """Run ``call`` and record it at the grad level on top."""
    outputs: Tensors = apply_single_level(LevelNode, (call, *operands))
    return outputs


def apply_plain(call: Any, operands: Tensors) -> Tensors:
    """Run ``call`` and record it in the graph of plain autograd."""
    kept = KeptCall(call, [x.requires_grad for x in operands])
    return _record(call, kept, operands, kept.evaluate(*operands))


def apply_plain_async(call: Any, operands: Tensors) -> Future[Tensors]:
    """The future of what `apply_plain` gives."""
    kept = KeptCall(call, [x.requires_grad for x in operands])
    return kept.forward_async(operands, lambda outputs: _record(call, kept, operands, outputs))


def _record(call: Any, kept: KeptCall, operands: Tensors, outputs: Tensors) -> Tensors:
    apply: Any = PlainNode.apply
    with torch.enable_grad():
        recorded: Tensors = apply(call, kept, list(outputs), *operands)
    return recorded


def with_tangents(call: Any, operands: Tensors) -> Tensors:
    """Run ``call`` on dual tensors of plain torch."""
    tangents = tuple([substrate.tangent_of(x) for x in operands])
    unpack: Any = forward_ad.unpack_dual
    primals = tuple([unpack(x).primal for x in operands])
    outputs, moved = call.jvp_rule(primals, tangents)
    pairs = zip(outputs, moved)
    return tuple([x if t is None else substrate.make_dual(x, t) for x, t in pairs])


class PlainNode(torch.autograd.Function):
    """A remote call in the graph of plain autograd."""

    @staticmethod
    def forward(
        ctx: Any, call: Any, kept: KeptCall, outputs: list[torch.Tensor], *operands: torch.Tensor
    ) -> Tensors:
        """``outputs``, which the call has given."""
        ctx.call, ctx.kept = call, kept
        ctx.save_for_backward(*operands)
        ctx.mark_non_differentiable(*[x for x, moves in zip(outputs, kept.moving) if not moves])
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        """Gradients of the operands."""
        call = ctx.call
        if ctx.kept.captured:
            raise GradientError(
                f"{call.__name__} depends on a tensor of that worker which needs a gradient, and "
                "plain autograd would leave it without one. Make the call and the backward pass "
                "inside fxforms.distributed.context(), or have the function detach that tensor."
            )

        def run(cts: Sequence[torch.Tensor]) -> list[Any]:
            return _gradients(call, ctx.kept, ctx.saved_tensors, cts)

        batched = any(map(batched_cotangents.has_batch, cotangents))
        found = batched_cotangents.each(run, cotangents) if batched else run(cotangents)
        return None, None, None, *found


def _gradients(
    call: Any, kept: KeptCall, operands: Sequence[torch.Tensor], cotangents: Sequence[torch.Tensor]
) -> list[Any]:
    """One gradient for each operand, None for those not differentiated."""
    mask = kept.mask
    operands, cotangents = live(tuple(operands)), live(tuple(cotangents))
    if not kept.moving or differentiated((*operands, *cotangents)):
        found = call.pullback(mask, operands, cotangents)
    else:
        found = kept.backward(cotangents)
    return fill(mask, found, [None] * len(mask))


def _level_forward(ctx: Any, call: Any, *operands: torch.Tensor) -> Tensors:
    interpreter = current_interpreter()
    assert isinstance(interpreter, GradInterpreter)
    inner = interpreter.unwrap(operands)
    ctx.call, ctx.kept = call, KeptCall(call, ctx.needs_input_grad[1:])
    with interpreter.lower():
        lowered = call.bind(*inner) if differentiated(inner) else ctx.kept.forward(inner)
    outputs: Tensors = interpreter.wrap(lowered, inner, operands)
    moving = ctx.kept.moving or [True] * len(outputs)
    ctx.save_for_backward(*operands)
    ctx.mark_non_differentiable(
        *[x for x, moves in zip(outputs, moving) if not (moves and is_inexact(x))]
    )
    return outputs


def _level_backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
    return None, *_gradients(ctx.call, ctx.kept, ctx.saved_tensors, cotangents)


LevelNode = substrate.make_function(
    "Remote",
    substrate.SingleLevelFunction,
    {"forward": _level_forward, "backward": _level_backward},
)
