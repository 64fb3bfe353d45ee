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

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fxforms import _substrate as substrate
from fxforms._tree import map_leaves, map_tensors
from fxforms.errors import GradientError
from fxforms.functions.context import RuleContext, among
from fxforms.functions.derive import Like, transpose
from fxforms.functions.residuals import pull_residuals

if TYPE_CHECKING:
    from fxforms.functions.rules import FunctionRules


_TENSOR = object()


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor on ``ctx``: which input, output or residual it is."""

    kind: str
    index: int


class Call:
    """One call of a split Function: what its ``forward`` left on ``ctx``, by reference.

    ``depth`` is the number of levels at the call. A graph at a lower level may have to
    differentiate the residuals; that of the top level never does, unless there is no level at all:
    plain autograd differentiates its own backward pass.
    """

    def __init__(self, operands: tuple[Any, ...]) -> None:
        self.depth = substrate.level_depth()
        self.input_likes = tuple([Like.of(x) for x in operands])
        self.single = False
        self.count = 0
        self.saved: tuple[Ref | None, ...] = ()
        self.saved_for_forward: tuple[Ref | None, ...] | None = None
        self.attributes: dict[str, Any] = {}
        self.dirty: list[int] = []
        self.fixed: list[int] = []
        self.materialize = True
        self.output_likes: tuple[Like | None, ...] = ()
        self.residual_likes: tuple[Like | None, ...] = ()

    def new_context(self) -> RuleContext:
        """A ``ctx`` for ``forward``: any tensor that can be differentiated may need it."""
        return RuleContext(tuple([like is not None for like in self.input_likes]))

    def record(self, ctx: RuleContext, operands: tuple[Any, ...], output: Any) -> tuple[Any, ...]:
        """Take over what ``forward`` left on ``ctx``; returns outputs and residuals."""
        self.single = not isinstance(output, tuple)
        outputs = (output,) if self.single else output
        residuals: list[torch.Tensor] = []

        def refer(tensor: torch.Tensor | None) -> Ref | None:
            if tensor is None:
                return None
            for kind, known in (("input", operands), ("output", outputs), ("residual", residuals)):
                for index, other in enumerate(known):
                    if tensor is other and not (kind == "output" and index in self.fixed):
                        return Ref(kind, index)
            residuals.append(tensor.view_as(tensor) if among(tensor, outputs) else tensor)
            return Ref("residual", len(residuals) - 1)

        self.count = len(outputs)
        self.output_likes = tuple([Like.of(x) for x in outputs])
        self.fixed = [i for i, x in enumerate(outputs) if among(x, ctx.non_differentiable)]
        self.dirty = [i for i, x in enumerate(operands) if among(x, ctx.dirty_tensors)]
        self.saved = tuple([refer(x) for x in ctx.to_save])
        if ctx.saved_for_forward is not None:
            self.saved_for_forward = tuple([refer(x) for x in ctx.saved_for_forward])
        self.attributes = {k: map_tensors(refer, v) for k, v in ctx.attributes().items()}
        self.materialize = ctx.materialize_grads
        self.residual_likes = tuple([Like.of(x) for x in residuals])
        return (*outputs, *residuals)

    def refs(self) -> list[Ref]:
        """Every tensor that the rules need, once."""
        found: dict[Ref, None] = {}
        named = [*self.saved, *(self.saved_for_forward or ())]
        for value in self.attributes.values():
            map_leaves(named.append, value)
        for ref in named:
            if isinstance(ref, Ref):
                found[ref] = None
        return list(found)

    def restore(self, ctx: Any, forward: bool) -> RuleContext:
        """The user's ``ctx`` at the level of ``ctx``, for a jvp rule if ``forward``."""
        lookup = dict(zip(self.refs(), ctx.saved_tensors))

        def find(leaf: Any) -> Any:
            return lookup[leaf] if isinstance(leaf, Ref) else leaf

        context = RuleContext(ctx.needs_input_grad[1:])
        saved = self.saved_for_forward if forward and self.saved_for_forward else self.saved
        context.to_save = tuple([find(ref) for ref in saved])
        context.input_likes = self.input_likes
        context.materialize_grads = self.materialize
        for name, value in self.attributes.items():
            setattr(context, name, map_leaves(find, value))
        return context


def distinct(operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """``operands`` with a tensor that is given twice as two objects, for they are told by identity.

    They may be different tensors at the levels above.
    """
    seen: set[int] = set()
    result = []
    for operand in operands:
        if isinstance(operand, torch.Tensor) and id(operand) in seen:
            operand = operand.view_as(operand)
        seen.add(id(operand))
        result.append(operand)
    return tuple(result)


def run_body(rules: FunctionRules, ctx: RuleContext, operands: tuple[Any, ...]) -> Any:
    """The user's ``forward`` with ``ctx``, whichever form it has."""
    if rules.combined:
        return rules.function.forward(ctx, *operands)
    output = rules.function.forward(*operands)
    rules.setup_context(ctx, operands, output)
    return output


def split_class(rules: FunctionRules) -> Any:
    """The functional form of ``rules``' Function; operand 0 is a Call, residuals come last."""

    def forward(call: Call, *operands: Any) -> tuple[Any, ...]:
        operands = distinct(operands)
        ctx = call.new_context()
        return call.record(ctx, operands, run_body(rules, ctx, operands))

    def setup_context(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
        set_up_split(inputs[0], ctx, inputs[1:], outputs)

    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        return (None, *split_backward(rules, ctx, cotangents))

    def jvp(ctx: Any, _: None, *tangents: Any) -> tuple[Any, ...]:
        return split_jvp(rules, ctx, tangents)

    methods: dict[str, Any] = {"forward": forward, "setup_context": setup_context}
    methods |= {"backward": backward} | ({"jvp": jvp} if rules.jvp is not None else {})
    attributes = {name: staticmethod(method) for name, method in methods.items()}
    return substrate.make_function(rules.__name__, torch.autograd.Function, attributes)


def set_up_split(call: Call, ctx: Any, operands: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
    """Save what the rules need at this level, and the inputs if a residual may need them."""
    kinds = {"input": operands, "output": outputs, "residual": outputs[call.count :]}
    tensors = [kinds[ref.kind][ref.index] for ref in call.refs()]
    level = substrate.level_depth() + ctx.lowered
    ctx.kept = None
    if (level < call.depth or call.depth == 0) and any(call.residual_likes):
        ctx.kept = tuple([_TENSOR if isinstance(x, torch.Tensor) else x for x in operands])
        tensors += [x for x in operands if isinstance(x, torch.Tensor)]
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)
    ctx.call = call
    ctx.mark_dirty(*[operands[i] for i in call.dirty])
    fixed = [outputs[i] for i in call.fixed]
    ctx.mark_non_differentiable(*fixed, *(outputs[call.count :] if ctx.kept is None else ()))
    ctx.set_materialize_grads(False)


def kept_operands(rules: FunctionRules, ctx: Any) -> tuple[Any, ...]:
    """The inputs of the call, for the derivative of its residuals."""
    call: Call = ctx.call
    if call.dirty:
        raise GradientError(
            f"{rules.__name__}: a second derivative needs the derivative of what forward saved for "
            f"backward, and forward has overwritten its input. Save only inputs and outputs, or do "
            f"not change the input in place."
        )
    tensors = iter(ctx.saved_tensors[len(call.refs()) :])
    return tuple([next(tensors) if x is _TENSOR else x for x in ctx.kept])


def zeros_if_asked(
    call: Call, values: tuple[Any, ...], likes: tuple[Like | None, ...]
) -> tuple[Any, ...]:
    """``values`` with absent ones as zeros, unless ``forward`` turned that off."""
    if not call.materialize:
        return values
    return tuple([x.zeros() if v is None and x else v for v, x in zip(values, likes)])


def residual_gradients(
    rules: FunctionRules, ctx: Any, cotangents: tuple[Any, ...]
) -> list[torch.Tensor | None]:
    """The vjp of the residuals, from the body."""

    def body(operands: tuple[Any, ...]) -> tuple[Any, ...]:
        again = Call(operands)
        fresh = again.new_context()
        return again.record(fresh, operands, run_body(rules, fresh, operands))[again.count :]

    return pull_residuals(rules.__name__, body, kept_operands(rules, ctx), cotangents)


def split_backward(
    rules: FunctionRules, ctx: Any, cotangents: tuple[Any, ...]
) -> list[torch.Tensor | None]:
    """Gradients of the inputs: the user's rule for outputs, the body's for residuals."""
    call: Call = ctx.call
    own, residual = cotangents[: call.count], cotangents[call.count :]
    gradients: list[torch.Tensor | None] = [None] * len(call.input_likes)
    if any(ct is not None for ct in own):
        filled = zeros_if_asked(call, own, call.output_likes)
        gradients = list(rules.run_backward(call.restore(ctx, rules.transposes_jvp), filled))[
            : len(gradients)
        ]
    if any(ct is not None for ct in residual):
        extra = residual_gradients(rules, ctx, residual)
        gradients = [
            b if a is None else a if b is None else a + b for a, b in zip(gradients, extra)
        ]
    return gradients


def split_jvp(rules: FunctionRules, ctx: Any, tangents: tuple[Any, ...]) -> tuple[Any, ...]:
    """Tangents: the user's rule for outputs, the body's transposed for residuals."""
    call: Call = ctx.call
    assert rules.jvp is not None
    filled = zeros_if_asked(call, tangents, call.input_likes)
    result = rules.jvp(call.restore(ctx, True), *filled)
    own = result if isinstance(result, tuple) else (result,)
    likes = call.residual_likes
    if ctx.kept is None:
        return (*own, *[None] * len(likes))

    def pullback(leaves: list[torch.Tensor]) -> list[torch.Tensor | None]:
        remaining = iter(leaves)
        return residual_gradients(rules, ctx, tuple([x and next(remaining) for x in likes]))

    points = [like.zeros() for like in likes if like is not None]
    found = iter(transpose(pullback, points, tangents))
    return (*own, *[None if like is None else next(found) for like in likes])
