"""Second derivatives through residuals under plain autograd, where torch takes them for constants.

A node of a Function that saves residuals keeps its inputs until a backward pass frees the graph. A
pass that records (``create_graph``) runs ``forward`` again on them, and gives ``backward`` the
residuals of that run. Where an input was changed, or ``forward`` overwrites it or leaves torch, the
residual stays a constant, and a derivative of what ``backward`` makes of it is an error.
"""

from __future__ import annotations

from typing import Any

import torch

from fxforms._tree import flatten, is_atom
from fxforms.errors import GradientError
from fxforms.functions.combined import run_body
from fxforms.functions.context import RuleContext, among, as_tuple, attributes_of
from fxforms.functions.contract import Rules
from fxforms.functions.derive import Like, keep_for_transpose
from fxforms.functions.draws import check_repeated
from fxforms.functions.recorded import holds_values
from fxforms.functions.refused import refuse
from fxforms.functions.residuals import LeavesTorch, Tracked
from fxforms.functions.unseen import hidden_tensors, opaque_leaves

_TENSOR = torch.Tensor
_CHANGES = "forward changes in place"
_LEAVES = "forward takes out of torch (NumPy, .item())"


class Constant(Exception):
    """A residual stays a constant; says why."""


class Overwritten:
    """What ``forward`` overwrote; ``source`` depends on what it was before."""

    def __init__(self, source: torch.Tensor | None) -> None:
        self.source = source


def remember(
    rules: Rules, output: Any, operands: tuple[Any, ...], sources: list[Any] | None
) -> None:
    """Let the node of ``output`` keep its ``operands``, a tensor with its version.

    One that ``forward`` overwrote is the output, whose node must not keep it alive. Of the inputs
    of a ``once_differentiable`` rule it is enough to know that there is a dependence.
    """
    node: Any
    if type(output) is _TENSOR:
        outputs: tuple[Any, ...] = (output,)
        node = output.grad_fn
    else:
        outputs = as_tuple(output)
        grad_fns = [x.grad_fn for x in outputs if isinstance(x, _TENSOR)]
        node = next((found for found in grad_fns if found is not None), None)
    if node is None:
        return
    try:
        if rules.once:
            node._fx_operands = [(x, None) for x in sources or map(empty, operands)]
        else:
            pairs: list[tuple[Any, int | None]] = []
            for i, x in enumerate(operands):
                if not isinstance(x, _TENSOR):
                    pairs.append((x, None))
                elif among(x, outputs):
                    pairs.append((Overwritten(sources[i] if sources else None), None))
                else:
                    pairs.append((x, x._version))
            node._fx_operands = pairs
    except (RuntimeError, AttributeError):  # inference mode has no versions; a node of a view
        return


def sources_of(operands: tuple[Any, ...]) -> list[Any]:
    """What depends on ``operands``, made before ``forward`` overwrites one."""
    return [empty(x) for x in operands] if torch.is_grad_enabled() else []


def empty(operand: Any) -> torch.Tensor | None:
    """A tensor without elements that depends on ``operand``, and does not keep its memory."""
    if isinstance(operand, _TENSOR) and operand.requires_grad:
        return torch.expand_copy(operand, (0, *operand.shape))
    return None


def recalled(pairs: list[tuple[Any, int | None]]) -> tuple[Any, ...]:
    """The operands that a node keeps.

    Raises Constant if one is not what it was.
    """
    for value, version in pairs:
        if isinstance(value, Overwritten):
            raise Constant(_CHANGES)
        if version is not None and value._version != version:
            raise Constant("was changed in place since the call")
    return tuple([value for value, _ in pairs])


def keeps_residuals(ctx: Any, operands: tuple[Any, ...], output: Any, left_torch: bool) -> bool:
    """True if ``ctx`` holds a floating tensor that is no operand and no output.

    Or a number, if ``forward`` takes numbers out of torch.
    """
    known = (*operands, *differentiable(ctx, output))
    attributes = attributes_of(ctx)
    if left_torch and holds_values(attributes):
        return True
    kept = [*(ctx.to_save or ()), *flatten(attributes)[0]]
    for _, value in opaque_leaves(attributes, torch.Tensor):
        kept += hidden_tensors(value)
    return any(Like.of(x) is not None and not among(x, known) for x in kept)


def differentiable(ctx: Any, output: Any) -> list[Any]:
    """The outputs whose derivative the rules know: that of another, if saved, is a residual's."""
    return [x for x in as_tuple(output) if not among(x, ctx.non_differentiable or ())]


def backward_again(rules: Rules, ctx: Any, cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
    """Gradients of a pass that records, where ``forward`` has saved residuals."""
    if rules.once:
        return rules.run_backward(ctx, cotangents)
    try:
        again = context_again(rules, ctx)
    except Constant as reason:
        operands = [x.source if isinstance(x, Overwritten) else x for x, _ in ctx._fx_operands]
        tensors = [x for x in operands if isinstance(x, _TENSOR)]
        error = GradientError(
            f"{rules.__name__}: a second derivative needs the derivative of what forward saved for "
            f"backward, by an input that {reason}. Save only inputs and outputs, or compute the "
            f"rest in torch, from inputs that stay as they are."
        )
        return tuple(refuse(rules.run_backward(ctx, cotangents), tensors, error))
    return rules.run_backward(again, cotangents)


def context_again(rules: Rules, ctx: Any) -> Any:
    """``ctx`` with residuals that depend on the inputs.

    Raises Constant if they cannot be had.
    """
    operands = recalled(ctx._fx_operands)
    fresh = RuleContext(ctx.needs_input_grad)
    with torch.enable_grad(), Tracked() as tracked:
        try:
            output = run_body(rules, fresh, operands)
        except LeavesTorch:
            raise Constant(_LEAVES) from None
    if rules.transposes_jvp:
        keep_for_transpose(fresh, operands)
    known = (*operands, *differentiable(fresh, output))
    if fresh.dirty_tensors:
        raise Constant(_CHANGES)
    if tracked.left_torch:
        raise Constant(_LEAVES)

    def choose(new: Any, old: Any) -> Any:
        if is_atom(new) and not isinstance(new, _TENSOR):
            return old
        found = [new] if isinstance(new, _TENSOR) else [*hidden_tensors(new)]
        if not any(x.requires_grad and not among(x, known) for x in found):
            return old
        before = [old] if isinstance(old, _TENSOR) else [*hidden_tensors(old)]
        check_repeated(rules.__name__, before, found)
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
