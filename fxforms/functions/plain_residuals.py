"""Second derivatives through residuals under plain autograd, where torch takes them for constants.

A node of a Function that saves residuals knows its inputs by weak reference, so that memory is as
in torch. A backward pass that records (``create_graph``) runs ``forward`` again on them, and gives
``backward`` the residuals of that run. Where an input is gone or was changed, or ``forward``
overwrites it or leaves torch, the residual stays the constant that it is in torch.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from fxforms._tree import flatten
from fxforms.functions.combined import run_body
from fxforms.functions.context import RuleContext, among, as_tuple, attributes_of
from fxforms.functions.contract import Rules
from fxforms.functions.derive import Like
from fxforms.functions.draws import check_repeated
from fxforms.functions.residuals import LeavesTorch, Tracked

_TENSOR, _REF = torch.Tensor, weakref.ref


def remember(output: Any, operands: tuple[Any, ...]) -> None:
    """Let the node of ``output`` know its ``operands``, a tensor by reference and version."""
    if type(output) is not _TENSOR:
        outputs = [x for x in as_tuple(output) if isinstance(x, _TENSOR) and x.grad_fn is not None]
        output = outputs[0] if outputs else None
    node = None if output is None else output.grad_fn
    if node is not None:
        try:
            node._fx_operands = [
                (_REF(x), x._version) if isinstance(x, _TENSOR) else (x, None) for x in operands
            ]
        except (RuntimeError, AttributeError):  # inference mode has no versions; a node of a view
            return


def recalled(pairs: list[tuple[Any, int | None]]) -> tuple[Any, ...] | None:
    """The operands that a node remembers; None if one is gone or was changed."""
    operands = []
    for value, version in pairs:
        if version is not None:
            value = value()
            if value is None or value._version != version:
                return None
        operands.append(value)
    return tuple(operands)


def keeps_residuals(ctx: Any, operands: tuple[Any, ...], output: Any) -> bool:
    """True if ``ctx`` holds a floating tensor that is no operand and no output."""
    known = (*operands, *differentiable(ctx, output))
    kept = [*(ctx.to_save or ()), *flatten(attributes_of(ctx))[0]]
    return any(Like.of(x) is not None and not among(x, known) for x in kept)


def differentiable(ctx: Any, output: Any) -> list[Any]:
    """The outputs whose derivative the rules know: that of another, if saved, is a residual's."""
    return [x for x in as_tuple(output) if not among(x, ctx.non_differentiable or ())]


def context_again(rules: Rules, ctx: Any) -> Any:
    """``ctx`` with residuals that depend on the inputs; ``ctx`` itself where there are none."""
    operands = recalled(ctx._fx_operands)
    if rules.once or operands is None:
        return ctx
    fresh = RuleContext(ctx.needs_input_grad)
    with torch.enable_grad(), Tracked() as tracked:
        try:
            known = (*operands, *differentiable(fresh, run_body(rules, fresh, operands)))
        except LeavesTorch:
            return ctx
    if tracked.left_torch or fresh.dirty_tensors:
        return ctx

    def choose(new: Any, old: Any) -> Any:
        if not isinstance(new, torch.Tensor) or not new.requires_grad or among(new, known):
            return old
        check_repeated(rules.__name__, [old], [new])
        return new

    again = RuleContext(ctx.needs_input_grad)
    again.to_save = tuple([choose(*pair) for pair in zip(fresh.to_save, ctx.saved_tensors)])
    new_attributes = attributes_of(fresh)
    for name, old in attributes_of(ctx).items():
        old_leaves, spec = flatten(old)
        new_leaves = flatten(new_attributes.get(name))[0]
        if len(new_leaves) == len(old_leaves):
            old = spec.unflatten([choose(*pair) for pair in zip(new_leaves, old_leaves)])
        setattr(again, name, old)
    again._fx_input_likes = getattr(ctx, "_fx_input_likes", ())
    return again
