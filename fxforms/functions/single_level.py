"""The single-level autograd Function: one level's part of a custom Function's graph.

Its class is made once a Function. ``forward`` takes the operands one level down, calls the
operator there, and sets up this level's own context.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms._tree import flatten
from fxforms.errors import RuleError
from fxforms.functions.context import NodeContext, among, as_tuple, attributes_of
from fxforms.functions.contract import Rules
from fxforms.functions.derive import Like
from fxforms.functions.inline import last_to_differentiate
from fxforms.functions.recorded import holds_values
from fxforms.functions.residuals import Noted
from fxforms.functions.unseen import is_unmappable
from fxforms.interpreters import current_interpreter
from fxforms.interpreters.grad import GradInterpreter
from fxforms.interpreters.levels import GRAD


def context_class(rules: Rules, function: type) -> type[NodeContext]:
    """The node class of ``function``'s graph, named as torch names it."""
    attributes = {
        "_forward_cls": function,
        "_autograd_function_id": function._backward_cls._autograd_function_id,  # type: ignore[attr-defined]
        "_rules": rules,
    }
    return type(f"{rules.__name__}Backward", (NodeContext,), attributes)


def carrier_class(rules: Rules) -> Any:
    """The class that plain autograd runs: the user's, unless its backward is derived."""
    carrier = rules.function
    if rules.transposes_jvp:
        methods: dict[str, Any] = {"forward": carrier.forward, "jvp": carrier.jvp}
        if rules.combined:
            methods["forward"] = rules.forward_with_ctx
        else:
            methods["setup_context"] = rules.setup_context
        carrier = substrate.make_function(rules.__name__, torch.autograd.Function, methods)
    carrier._backward_cls = context_class(rules, carrier)
    return carrier


def single_level_class(rules: Rules) -> Any:
    """The single-level Function of ``rules``; its ``apply`` attaches a node at the top level."""

    def forward(ctx: Any, *operands: Any) -> Any:
        interpreter = current_interpreter()
        assert isinstance(interpreter, GradInterpreter)
        inner = interpreter.unwrap(operands)
        with interpreter.lower():
            lowered = rules.run_with_ctx(ctx, inner) if rules.combined else rules.bind(*inner)
        outputs = interpreter.wrap(lowered, inner, operands)
        if rules.combined:
            lift_context(ctx, (*inner, *as_tuple(lowered)), (*operands, *as_tuple(outputs)))
        elif not rules.share_setup(ctx, operands, outputs):
            set_up(rules, ctx, operands, outputs)
        check_dirty(rules, ctx.dirty_tensors, interpreter.level)
        ctx.pack(interpreter.level, interpreter.lower)
        return outputs

    node = substrate.make_function(
        rules.__name__, substrate.SingleLevelFunction, {"forward": forward}
    )
    node._backward_cls = context_class(rules, node)
    return node


def lift_context(ctx: Any, lowered: tuple[Any, ...], lifted: tuple[Any, ...]) -> None:
    """Let what ``forward`` left on ``ctx`` of lowered tensors name the lifted ones.

    Raises HiddenResidual if there is a tensor among it that is no input or output.
    """

    def lift(tensor: torch.Tensor | None) -> torch.Tensor | None:
        if tensor is None:
            return None
        for x, y in zip(lowered, lifted):
            if tensor is x:
                return y  # type: ignore[no-any-return]
        raise HiddenResidual

    attributes = attributes_of(ctx)
    if attributes and any(isinstance(x, torch.Tensor) for x in flatten(attributes)[0]):
        raise HiddenResidual
    if ctx.to_save:
        ctx.save_for_backward(*map(lift, ctx.to_save))
    if ctx.saved_for_forward:
        ctx.save_for_forward(*map(lift, ctx.saved_for_forward))
    if ctx.dirty_tensors:
        ctx.mark_dirty(*map(lift, ctx.dirty_tensors))
    if ctx.non_differentiable:
        ctx.mark_non_differentiable(*map(lift, ctx.non_differentiable))


def set_up(rules: Rules, ctx: Any, operands: tuple[Any, ...], outputs: Any) -> None:
    """The user's ``setup_context``, recording: lower levels can differentiate what it computes."""
    before = torch.is_grad_enabled(), substrate.forward_grad_enabled()
    substrate.set_grad_enabled(True)
    substrate.set_forward_grad_enabled(True)
    try:
        setup, is_last = rules.setup_context, partial(last_to_differentiate, operands, GRAD)
        run_setup(rules, setup, ctx, operands, outputs, is_last)
    finally:
        substrate.set_grad_enabled(before[0])
        substrate.set_forward_grad_enabled(before[1])
    fixed = ctx.non_differentiable
    if not fixed and rules.watches:
        rules.root.may_hide = False
    watched = fixed and rules.watches and not ctx.dirty_tensors
    if watched and any(hides(x, fixed) for x in ctx.to_save or ()):
        if not last_to_differentiate(operands, GRAD):
            raise HiddenResidual
        rules.note_residuals()  # nothing here asks for its derivative; a later call may


def run_setup(
    rules: Rules,
    setup: Callable[..., None],
    ctx: Any,
    operands: tuple[Any, ...],
    outputs: Any,
    is_last: Callable[[], bool],
) -> None:
    """The user's ``setup``; raises HiddenResidual if the levels do not see what it saves.

    A body that has changed its input cannot run again; it need not at the last level to
    differentiate.
    """
    try:
        if not rules.watches or rules.root.setup_is_known:
            return setup(ctx, operands, outputs)
        with Noted() as noted:
            setup(ctx, operands, outputs)
    except RuntimeError as error:
        if rules.watches and is_unmappable(error):
            raise HiddenResidual from error
        raise
    hides = noted.cut or (noted.left_torch and holds_values(attributes_of(ctx)))
    if hides and ctx.dirty_tensors and is_last():
        return rules.note_residuals()  # a level above, of the same call, has still to note it
    rules.root.setup_is_known = True
    if hides:
        raise HiddenResidual
    return None


class HiddenResidual(Exception):
    """The levels do not see what is saved, as if it were a residual.

    It is an output that is marked non-differentiable, or left torch, or needs plain tensors.
    """


def hides(saved: torch.Tensor | None, fixed: tuple[torch.Tensor, ...]) -> bool:
    """True if ``saved`` is a floating output among those marked non-differentiable."""
    return saved is not None and among(saved, fixed) and Like.of(saved) is not None


def check_dirty(rules: Rules, dirty: tuple[torch.Tensor, ...] | None, level: int) -> None:
    """Raise RuleError if a dirty input is not of this level, so that its change would be lost."""
    for tensor in dirty or ():
        if getattr(tensor, "is_captured", False):
            raise RuleError(
                f"{rules.__name__} changed a captured tensor of shape {tuple(tensor.shape)} in "
                f"place under grad (level {level}), and its gradient would be lost. Pass the "
                f"tensor to the transformed function as an argument, or clone it first."
            )


def apply_single_level(node: Any, operands: tuple[Any, ...]) -> Any:
    """``node.apply`` with torch's guard against single-level Functions lifted."""
    before: bool = substrate.single_level_allowed()
    substrate.set_single_level_allowed(True)
    try:
        return node.apply(*operands)
    finally:
        substrate.set_single_level_allowed(before)
