"""The single-level autograd Function: one level's part of a custom Function's graph.

Its class is made once a Function. ``forward`` takes the operands one level down, calls the
operator there, and sets up this level's own context.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fxforms import _substrate as substrate
from fxforms.errors import RuleError
from fxforms.functions.context import NodeContext, among
from fxforms.functions.derive import Like
from fxforms.functions.inline import run_untracked
from fxforms.interpreters import current_interpreter
from fxforms.interpreters.grad import GradInterpreter

if TYPE_CHECKING:
    from fxforms.functions.rules import FunctionRules


def context_class(rules: FunctionRules, function: type) -> type[NodeContext]:
    """The node class of ``function``'s graph, named as torch names it."""
    attributes = {
        "_forward_cls": function,
        "_autograd_function_id": function._backward_cls._autograd_function_id,  # type: ignore[attr-defined]
        "_rules": rules,
    }
    return type(f"{rules.__name__}Backward", (NodeContext,), attributes)


def single_level_class(rules: FunctionRules) -> Any:
    """The single-level Function of ``rules``; its ``apply`` attaches a node at the top level."""

    def forward(ctx: Any, *operands: Any) -> Any:
        interpreter = current_interpreter()
        assert isinstance(interpreter, GradInterpreter)
        inner = interpreter.unwrap(operands)
        with interpreter.lower():
            if rules.combined:  # nothing below is differentiated: see functions/inline.py
                lowered = run_untracked(rules.forward_with_ctx, (ctx, *inner))
            else:
                lowered = rules.bind(*inner)
        outputs = interpreter.wrap(lowered, inner, operands)
        if rules.combined:
            lift_marks(ctx, (*inner, *as_tuple(lowered)), (*operands, *as_tuple(outputs)))
        else:
            set_up(rules, ctx, operands, outputs)
        check_dirty(rules, ctx.dirty_tensors, interpreter.level)
        return outputs

    node = substrate.make_function(
        rules.__name__, substrate.SingleLevelFunction, {"forward": staticmethod(forward)}
    )
    node._backward_cls = context_class(rules, node)
    return node


def as_tuple(output: Any) -> tuple[Any, ...]:
    """The outputs of a Function as a tuple."""
    return output if isinstance(output, tuple) else (output,)


def lift_marks(ctx: Any, lowered: tuple[Any, ...], lifted: tuple[Any, ...]) -> None:
    """Let the marks that ``forward`` set on lowered tensors name the lifted ones."""

    def lift(tensors: tuple[torch.Tensor, ...] | None) -> list[torch.Tensor]:
        return [y for x, y in zip(lowered, lifted) if among(x, tensors or ())]

    if ctx.dirty_tensors:
        ctx.mark_dirty(*lift(ctx.dirty_tensors))
    if ctx.non_differentiable:
        ctx.mark_non_differentiable(*lift(ctx.non_differentiable))


def set_up(rules: FunctionRules, ctx: Any, operands: tuple[Any, ...], outputs: Any) -> None:
    """The user's ``setup_context``, recording: lower levels can differentiate what it computes."""
    before = torch.is_grad_enabled(), substrate.forward_grad_enabled()
    substrate.set_grad_enabled(True)
    substrate.set_forward_grad_enabled(True)
    try:
        rules.setup_context(ctx, operands, outputs)
    finally:
        substrate.set_grad_enabled(before[0])
        substrate.set_forward_grad_enabled(before[1])
    fixed = ctx.non_differentiable
    watched = fixed and not (rules.hides_nothing or ctx.dirty_tensors)
    if watched and any(hides(x, fixed) for x in ctx.to_save or ()):
        raise HiddenResidual


class HiddenResidual(Exception):
    """An output is marked non-differentiable and saved: to the levels below it is a residual."""


def hides(saved: torch.Tensor | None, fixed: tuple[torch.Tensor, ...]) -> bool:
    """True if ``saved`` is a floating output among those marked non-differentiable."""
    return saved is not None and among(saved, fixed) and Like.of(saved) is not None


def check_dirty(rules: FunctionRules, dirty: tuple[torch.Tensor, ...] | None, level: int) -> None:
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
