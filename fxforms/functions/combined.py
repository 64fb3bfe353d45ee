"""The combined form ``forward(ctx, *args)``, turned into the functional form.

What ``forward`` leaves on ``ctx`` is recorded by reference: an input, an output, or a residual,
which is any other tensor. Residuals become extra outputs, so that each level wraps them and keeps
them in its own graph.

NOTE [derivative of a residual]

A second derivative needs the derivative of what the first one saved. The user's ``backward`` says
nothing of residuals, so theirs is taken from the body: ``forward`` runs again on tracked inputs,
only where a level above asks for it, and with recording on whatever it says, for in a ``forward``
``no_grad`` and ``detach`` change no value. A residual that left torch (NumPy, ``.item()``) on the
way has no such derivative; that is an error, not a zero. The same holds for an output that is
marked non-differentiable and saved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms.errors import GradientError
from fxforms.functions.context import RuleContext, among, as_tuple, for_each
from fxforms.functions.contract import Rules
from fxforms.functions.derive import Like, transpose
from fxforms.functions.draws import generator_state, same_draws
from fxforms.functions.faults import overwritten_input
from fxforms.functions.loop import loop
from fxforms.functions.once import once_differentiable
from fxforms.functions.recorded import Call, distinct
from fxforms.functions.residuals import Noted, pull_residuals, run_again
from fxforms.functions.unseen import VALUES, follow, is_unmappable, out_of_sight
from fxforms.interpreters import VmapInfo

_TENSOR = object()


def run_body(rules: Rules, ctx: RuleContext, operands: tuple[Any, ...]) -> Any:
    """The user's ``forward`` with ``ctx``, whichever form it has."""
    if rules.combined:
        return rules.function.forward(ctx, *operands)
    output = rules.function.forward(*operands)
    rules.setup_context(ctx, operands, output)
    return output


def run_noted(rules: Rules, ctx: RuleContext, operands: tuple[Any, ...]) -> Any:
    """The same; the first call of a class notes whether it takes values out of torch."""
    if rules.root.leaves_torch is not None:
        return run_body(rules, ctx, operands)
    with Noted() as noted:
        output = run_body(rules, ctx, operands)
    rules.root.leaves_torch = noted.left_torch
    return output


def split_class(rules: Rules) -> Any:
    """The functional form of ``rules``' Function; operand 0 is a Call, residuals come last."""

    def forward(call: Call, *operands: Any) -> Any:
        operands = distinct(operands)
        ctx = call.new_context()
        state = generator_state() if call.may_run_again(operands) else None
        result = call.record(ctx, operands, run_noted(rules, ctx, operands))
        if rules.root.leaves_torch and call.keeps_values():
            call.unseen = VALUES
        if call.unseen or call.residual_likes:
            call.drawn = state
        is_one = call.single and len(result) == 1 and isinstance(result[0], torch.Tensor)
        return result[0] if is_one else result

    def setup_context(ctx: Any, inputs: tuple[Any, ...], outputs: Any) -> None:
        set_up_split(inputs[0], ctx, inputs[1:], as_tuple(outputs))

    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        return (None, *split_backward(rules, ctx, cotangents))

    def jvp(ctx: Any, _: None, *tangents: Any) -> tuple[Any, ...]:
        return split_jvp(rules, ctx, tangents)

    methods: dict[str, Any] = {"forward": forward, "setup_context": setup_context}
    if rules.jvp is not None:
        methods["jvp"] = jvp
    if rules.jvp is not None or rules.backward is not None:
        methods["backward"] = once_differentiable(backward) if rules.once else backward
    return substrate.make_function(
        rules.__name__, torch.autograd.Function, methods, vmap_method=rules.vmap_method
    )


def set_up_split(
    call: Call, ctx: Any, operands: tuple[Any, ...], outputs: tuple[Any, ...], forward: bool = True
) -> None:
    """Save what the rules need at this level, and the inputs if a residual may need them.

    Also for ``jvp`` if ``forward``.
    """
    known = (*operands, *outputs)
    tensors = [known[ref.position] for ref in call.refs]
    fixed = [outputs[i] for i in call.fixed] if call.fixed else []
    ctx._fx_kept = None
    if call.unseen or (any(call.residual_likes) and may_follow_residuals(call, ctx)):
        ctx._fx_kept = tuple([_TENSOR if isinstance(x, torch.Tensor) else x for x in operands])
        tensors += [x for x in operands if isinstance(x, torch.Tensor)]
    if ctx._fx_lowered and ctx._fx_kept is None:  # a jvp rule is not asked for their tangents
        fixed += outputs[call.count :]
    ctx.save_for_backward(*tensors)
    if forward:
        ctx.save_for_forward(*tensors)
    ctx._fx_call = call
    if call.dirty:
        ctx.mark_dirty(*[operands[i] for i in call.dirty])
    if fixed:
        ctx.mark_non_differentiable(*fixed)
    ctx.set_materialize_grads(False)
    if call.samples and isinstance(ctx, RuleContext):
        ctx._fx_samples = call.sample_level, sample_contexts(ctx)


def may_follow_residuals(call: Call, ctx: Any) -> bool:
    """True if the graph of ``ctx`` is that of a level below the call's, or of plain autograd."""
    lowered: bool = ctx._fx_lowered
    if ctx._fx_plain or not (lowered or substrate.transforms_active()):
        return True
    return substrate.level_depth() + lowered < call.depth


def sample_contexts(ctx: RuleContext) -> Callable[[int | None, Callable[[Any], Any]], RuleContext]:
    """How to make of ``ctx`` that of one sample, whose call left values of its own."""

    def place(index: int | None, put: Callable[[Any], Any]) -> RuleContext:
        call: Call = ctx._fx_call  # type: ignore[attr-defined]
        own: Any = RuleContext(ctx.needs_input_grad, ctx._fx_lowered)
        own.to_save = tuple([put(x) for x in ctx.saved_tensors])
        own._fx_call = call if index is None else call.samples[index]
        own._fx_kept = ctx._fx_kept  # type: ignore[attr-defined]
        return own  # type: ignore[no-any-return]

    return place


def kept_operands(rules: Rules, ctx: Any) -> tuple[Any, ...]:
    """The inputs of the call, for the derivative of its residuals."""
    call: Call = ctx._fx_call
    if ctx._fx_kept is None:
        raise GradientError(
            f"{rules.__name__}: torch.autograd.grad inside a transform asks for the derivative of "
            f"what forward saved for backward. Write fxforms.grad there, or save only inputs and "
            f"outputs."
        )
    if call.dirty:
        raise overwritten_input(rules.__name__)
    return filled(ctx._fx_kept, ctx.saved_tensors[len(call.refs) :])


def filled(kept: tuple[Any, ...], tensors: Sequence[Any]) -> tuple[Any, ...]:
    """The operands that ``kept`` is made of, with ``tensors`` in their places."""
    values = iter(tensors)
    return tuple([next(values) if x is _TENSOR else x for x in kept])


def zeros_if_asked(
    call: Call, values: tuple[Any, ...], likes: tuple[Like | None, ...]
) -> tuple[Any, ...]:
    """``values`` with absent ones as zeros, unless ``forward`` turned that off."""
    if not (call.materialize and among(None, values)):
        return values
    return tuple([x.zeros() if v is None and x else v for v, x in zip(values, likes)])


def body_again(rules: Rules, call: Call, operands: tuple[Any, ...]) -> tuple[Call, Any]:
    """What ``forward`` leaves on ``ctx`` when it runs again, as in ``call``."""
    again = Call(operands)
    ctx = again.new_context()
    with same_draws(call.drawn):
        outputs = again.record(ctx, operands, run_body(rules, ctx, operands))
    return again, outputs


def residual_gradients(
    rules: Rules, ctx: Any, cotangents: tuple[Any, ...]
) -> list[torch.Tensor | None]:
    """The vjp of the residuals, from the body."""
    call: Call = ctx._fx_call

    def body(operands: tuple[Any, ...]) -> tuple[Any, ...]:
        again, outputs = body_again(rules, call, operands)
        return outputs[again.count :]  # type: ignore[no-any-return]

    operands = kept_operands(rules, ctx)
    return pull_residuals(rules.__name__, body, operands, call.residuals(ctx), cotangents)


def followed(rules: Rules, ctx: Any, values: Sequence[Any]) -> list[Any]:
    """``values`` of a rule that used what is out of sight: a derivative of it is an error."""
    call, kept = ctx._fx_call, ctx._fx_kept

    def hidden(operands: tuple[Any, ...]) -> list[str]:
        again, _ = body_again(rules, call, operands)
        names = again.depending(substrate.current_level())
        return [*names, VALUES] if again.keeps_values() else names

    def check(tensors: tuple[Any, ...]) -> None:
        if call.dirty:
            raise overwritten_input(rules.__name__)
        try:
            again = run_again(hidden, filled(kept, tensors))
        except RuntimeError as error:  # a loop over a batch, which is one tensor here
            if is_unmappable(error):
                raise out_of_sight(rules.__name__, call.unseen) from error
            raise
        for name in (VALUES,) if again.result is None else again.result:
            if name != VALUES or again.left_torch:
                raise out_of_sight(rules.__name__, name)

    sources = (getattr(ctx, "_fx_unlifted", None) or ctx).saved_tensors
    return follow(values, sources[len(call.refs) :], check)


def any_given(cotangents: tuple[Any, ...]) -> bool:
    """True if one of ``cotangents`` is there."""
    for cotangent in cotangents:  # noqa: SIM110 (any() takes three times as long)
        if cotangent is not None:
            return True
    return False


def split_backward(
    rules: Rules, ctx: Any, cotangents: tuple[Any, ...]
) -> list[torch.Tensor | None]:
    """Gradients of the inputs: the user's rule for outputs, the body's for residuals."""
    call: Call = ctx._fx_call
    own, residual = cotangents[: call.count], cotangents[call.count :]
    gradients: list[torch.Tensor | None] = [None] * len(call.input_likes)
    if any_given(own):
        given = zeros_if_asked(call, own, call.output_likes) if call.count > 1 else own
        found = rules.gradients(call.restore(ctx, rules.transposes_jvp), given)
        gradients = list(found[: len(gradients)])
        if call.unseen:
            gradients = followed(rules, ctx, gradients)
    if residual and any_given(residual):
        extra = residual_gradients(rules, ctx, residual)
        gradients = [
            b if a is None else a if b is None else a + b for a, b in zip(gradients, extra)
        ]
    return gradients


def split_jvp(rules: Rules, ctx: Any, tangents: tuple[Any, ...]) -> tuple[Any, ...]:
    """Tangents: the user's rule for outputs, the body's transposed for residuals."""
    call: Call = ctx._fx_call
    assert rules.jvp is not None
    given = zeros_if_asked(call, tangents, call.input_likes)
    result = rules.run_rule(rules.jvp, call.restore(ctx, True), given)
    own = for_each(result, call.count)
    if call.unseen:
        own = followed(rules, ctx, own)
    likes = call.residual_likes
    if ctx._fx_kept is None:
        return (*own, *[None] * len(likes))

    found = transpose(rules, lambda cts: residual_gradients(rules, ctx, cts), likes, tangents)
    return (*own, *found)


def loop_split(
    bind: Callable[..., Any],
    name: str,
    info: VmapInfo,
    in_dims: tuple[int | None, ...],
    operands: tuple[Any, ...],
) -> tuple[Any, Any]:
    """A split Function on each sample of a batch, each call with a record of its own."""
    call: Call = operands[0]
    samples: list[Call] = []

    def bind_sample(_: Call, *sample: Any) -> Any:
        own = Call(sample)
        own.depth = call.depth
        samples.append(own)
        return bind(own, *sample)

    result = loop(bind_sample, name, info, in_dims, operands)
    call.split_batch(name, samples, substrate.level_depth() + 1)
    return result
