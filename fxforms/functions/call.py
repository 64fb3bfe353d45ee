"""The one operator, ``custom_function_call``: whatever is not a plain ATen op enters here.

NOTE [how a call travels]

``Function.apply`` binds keywords and calls ``enter``, which brings the call into the form that the
interpreters take (flat operands, no ``ctx`` in ``forward``). ``bind`` is one step of it: the
interpreter of the top level ``process``es the call, by a rule that binds again one level down. With
no level left ``evaluate`` runs the body under plain autograd.
"""

from __future__ import annotations

from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms._tree import flatten, is_atom, map_tensors
from fxforms.errors import RuleError
from fxforms.functions.attempts import copied, put_back
from fxforms.functions.bind import bind, run_plain
from fxforms.functions.closures import check_arguments, check_closures
from fxforms.functions.context import as_tuple
from fxforms.functions.draws import draw_again, generator_state
from fxforms.functions.faults import overwritten, residual_after_change
from fxforms.functions.first_call import ContainerFound
from fxforms.functions.held import with_token
from fxforms.functions.inline import (
    batched_on_top,
    below_derivatives,
    last_to_differentiate,
    only_vmaps,
)
from fxforms.functions.loop import Unmappable
from fxforms.functions.opaque import ValueNeeded
from fxforms.functions.packed import GIVEN, RETURNED, Packing, has_trees, holds_tensor
from fxforms.functions.presented import presented
from fxforms.functions.recorded import Call
from fxforms.functions.rules import FunctionRules
from fxforms.functions.single_level import HiddenResidual
from fxforms.interpreters.levels import GRAD, JVP, VMAP


def custom_function_call(fn: Any, *operands: Any) -> Any:
    """Apply ``fn`` to ``operands`` at whatever level is on top of the stack.

    The interpreter of that level applies ``fn``'s rule for its transform, and the rule calls this
    operator again one level down. With no level left, ``fn`` runs under ordinary autograd.

    Args:
        fn: a :class:`fxforms.Function` subclass.
        *operands: what its ``forward`` takes, by position.

    Returns:
        What ``fn.forward`` returns, at the current level.

    Raises:
        TypeError: ``fn`` is not a Function of fxforms.
        RuleError: ``fn`` lacks the rule that a level needs.
        EscapedTensorError: an operand belongs to a ``vmap`` that has ended.

    Example:
        >>> import torch, fxforms
        >>> class Double(fxforms.Function):
        ...     @staticmethod
        ...     def forward(x):
        ...         return 2 * x
        ...     @staticmethod
        ...     def setup_context(ctx, inputs, output):
        ...         pass
        ...     @staticmethod
        ...     def backward(ctx, g):
        ...         return 2 * g
        >>> fxforms.custom_function_call(Double, torch.tensor(1.5))
        tensor(3.)
    """
    rules = getattr(fn, "_rules", None)
    if rules is None:
        raise TypeError(
            f"custom_function_call expects a subclass of fxforms.Function, got {fn!r}. A plain "
            f"torch.autograd.Function is called by its own apply."
        )
    return enter(rules, operands)


def enter(rules: FunctionRules, operands: tuple[Any, ...]) -> Any:
    """A call by the user, in whichever form the class and the operands have."""
    if substrate.function_modes():
        operands = map_tensors(presented, operands)
    if not substrate.transforms_active():
        return enter_plain(rules, operands)
    if rules.closing:
        check_closures(rules.__name__, rules.closing)
    if rules.packs is not False or has_trees(operands, GIVEN):
        return enter_packed(rules, operands)
    if rules.maps(operands):
        try:
            return rules.run_mapped(operands)
        except Unmappable:  # from here on the batch is looped over
            pass
    check_arguments(rules.__name__, operands)
    if rules.root.changes_inputs is not False:
        return enter_undoing(rules, operands)
    return enter_flat(rules, operands)


def enter_undoing(rules: FunctionRules, operands: tuple[Any, ...]) -> Any:
    """A call of a class that may change its inputs: a change that is refused is undone.

    Only tensors captured from a lower level are kept for it, and none once a call has shown that
    the class changes nothing.
    """
    captured, versions = below_derivatives(operands), substrate.versions(operands)
    copies = copied(captured)
    try:
        output = enter_flat(rules, operands)
    except RuleError:
        if copies and versions != substrate.versions(operands):
            put_back(captured, copies)
            rules.root.changes_inputs = True
        raise
    rules.root.changes_inputs = versions != substrate.versions(operands)
    return output


def enter_flat(rules: FunctionRules, operands: tuple[Any, ...]) -> Any:
    """A call inside a transform whose operands have no containers."""
    if needs_split(rules, operands):
        return enter_split(rules, operands)
    versions = substrate.versions(operands)
    state = generator_state() if rules.root.may_hide else None
    try:
        output = bind(rules, operands)
    except (HiddenResidual, ValueNeeded) as error:
        rules.note_residuals()
        if versions != substrate.versions(operands):
            raise residual_after_change(rules.__name__) from error
        draw_again(state)
        return enter_split(rules, operands)
    except Unmappable:  # the split class loops over the batch
        return enter_split(rules, operands)
    except ContainerFound as found:
        rules.packs = True
        return enter_packed(rules, operands, found)
    if isinstance(output, torch.Tensor) or not has_trees(as_tuple(output), RETURNED):
        return output
    return enter_again(rules, operands, versions != substrate.versions(operands))


def enter_plain(rules: FunctionRules, operands: tuple[Any, ...]) -> Any:
    """A call with no level active: one loop over the operands, for here its cost shows."""
    if rules.packs:
        return enter_packed(rules, operands)
    given, versions = [], []
    for operand in operands:
        if isinstance(operand, torch.Tensor):
            operand = substrate.unwrap_if_dead(operand)
            if not operand.is_inference():
                versions.append((operand, operand._version))
        elif not is_atom(operand) and holds_tensor(operand, GIVEN):
            return enter_packed(rules, operands)
        given.append(operand)
    if rules.splits_always and rules.splits:
        return enter_split(rules, operands)
    try:
        output = run_plain(rules, given)
    except ValueNeeded:
        return enter_split(rules, operands)  # what forward saves becomes outputs of a call node
    except ContainerFound as found:
        rules.packs = True
        return enter_packed(rules, operands, found)
    if isinstance(output, torch.Tensor) or not has_trees(as_tuple(output), RETURNED):
        return output
    return enter_again(rules, operands, any(x._version != before for x, before in versions))


def enter_again(rules: FunctionRules, operands: tuple[Any, ...], changed: bool) -> Any:
    """A call whose output had containers, with them packed; ``changed`` operands forbid it."""
    rules.packs = True
    if changed:
        raise overwritten(rules.__name__)
    return enter_packed(rules, operands)


def enter_packed(
    rules: FunctionRules,
    operands: tuple[Any, ...],
    found: ContainerFound | None = None,
    *more: torch.Tensor,
) -> Any:
    """A call with pytrees among its operands or outputs; of ``found`` the body has run already.

    The first call inside a transform comes here too: only its output tells whether it is flat. Of
    operands ``more`` the body and the rules know nothing.
    """
    packing, leaves = Packing.of(operands)
    packing.ready = found
    flat = enter(rules.packed, (packing, *leaves, *more))
    if rules.packs is None:
        rules.packs = not packing.is_flat()
    return packing.output(flat)


def enter_holding(
    rules: FunctionRules, operands: tuple[Any, ...], tensors: list[torch.Tensor]
) -> Any:
    """A call of a Function whose body can reach ``tensors`` that plain autograd follows."""
    if substrate.function_modes():
        operands = map_tensors(presented, operands)
    if substrate.transforms_active():
        check_closures(rules.__name__, rules.closing)
        check_arguments(rules.__name__, tuple(flatten(operands)[0]))
    return with_token(
        rules.__name__, tensors, lambda token: enter_packed(rules, operands, None, token)
    )


def needs_split(rules: FunctionRules, operands: tuple[Any, ...]) -> bool:
    """True if what ``forward`` saves must be an output of its own, for other levels to see."""
    if not rules.combined:
        return rules.splits
    top = substrate.top_transform()
    if top == VMAP:
        return not ((rules.vmap and batched_on_top(operands)) or only_vmaps(operands))
    if top not in (GRAD, JVP) or (top == GRAD and not rules.root.saves_no_residual):
        return True
    maps = substrate.level_depth() == 1 or (rules.vmap_method == "derive" and not rules.root.loops)
    return not (maps and last_to_differentiate(operands, top))


def enter_split(rules: FunctionRules, operands: tuple[Any, ...]) -> Any:
    """A call of a Function whose residuals the levels must see."""
    call, split = Call(operands), rules.split
    if substrate.transforms_active():
        outputs = as_tuple(bind(split, (call, *operands)))
    else:
        outputs = as_tuple(split.bind(call, *operands))
    if rules.root.saves_no_residual is None:
        rules.root.saves_no_residual = call.saves_no_residual()
    return outputs[0] if call.single else outputs[: call.count]
