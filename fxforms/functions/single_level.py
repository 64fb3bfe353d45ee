"""The single-level autograd Function: one level's part of a custom Function's graph.

Its class is made once a Function. ``forward`` takes the operands one level down, calls the
operator there, and sets up this level's own context.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fxforms import _substrate as substrate
from fxforms.errors import RuleError
from fxforms.functions.context import NodeContext
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
            lowered = rules.bind(*inner)
        outputs = interpreter.wrap(lowered, inner, operands)
        rules.setup_context(ctx, operands, outputs)
        check_dirty(rules, getattr(ctx, "dirty_tensors", None), inner, interpreter.level)
        return outputs

    node = substrate.make_function(
        rules.__name__, substrate.SingleLevelFunction, {"forward": staticmethod(forward)}
    )
    node._backward_cls = context_class(rules, node)
    return node


def check_dirty(
    rules: FunctionRules, dirty: tuple[torch.Tensor, ...] | None, inner: tuple[Any, ...], level: int
) -> None:
    """Raise RuleError if a dirty input is not of this level, so that its change would be lost."""
    for tensor in dirty or ():
        if any(tensor is x for x in inner):
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
