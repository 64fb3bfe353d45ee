"""A choice between two branches that a graph makes at each call: an instance of the operator.

NOTE [derivatives of a choice]

The derivative of a choice is the choice between the derivatives of its branches. The backward one
computes the forward pass of its branch anew from the operands, so that it is a function of operands
and cotangents, with exact derivatives of any order, and no branch leaves residuals of which the
other has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms.functions.bind import bind, live
from fxforms.functions.inline import recorded
from fxforms.functions.opaque import Tracer
from fxforms.functions.single_level import apply_single_level
from fxforms.interpreters import Primitive, VmapInfo, current_interpreter
from fxforms.interpreters.grad import GradInterpreter
from fxforms.transforms import vmap
from fxforms.transforms.flat import (
    FlatFunction,
    Tensors,
    fill,
    gradients,
    pushforward,
)

Branches = tuple[FlatFunction, FlatFunction]


class Choice(Primitive):
    """The branch for true, or the one for false; operand 0 of a call is the predicate."""

    __name__ = "cond"

    def __init__(
        self, tracer: Tracer, branches: Branches, inexact: Sequence[bool], again: bool = False
    ) -> None:
        """``inexact``: which outputs have a derivative; ``again``: see :class:`Tracer`."""
        self.tracer = tracer
        self.branches = branches
        self.inexact = inexact
        self.again = again

    def evaluate(self, *operands: torch.Tensor) -> Tensors:
        """The choice in the graph, with no level active."""
        if recorded(operands) and any(self.inexact):
            apply: Any = PlainNode.apply
            outputs: Tensors = apply(self, *operands)
            return outputs
        return self.tracer.choose(operands[0], self.branches, operands[1:], self.again)

    def bind(self, *operands: torch.Tensor) -> Tensors:
        """The operator, at the level now on top."""
        outputs: Tensors = bind(self, operands)
        return outputs

    def grad_rule(self, *operands: torch.Tensor) -> Tensors:
        """A node of the top level's graph, where an output has a derivative."""
        if not any(self.inexact):
            return lowered(self, operands)
        outputs: Tensors = apply_single_level(LevelNode, (self, *operands))
        return outputs

    def jvp_rule(
        self, primals: Tensors, tangents: tuple[torch.Tensor | None, ...]
    ) -> tuple[Any, Any]:
        """One choice between branches of primals and tangents."""
        if not any(self.inexact):
            return self.bind(*primals), [None] * len(self.inexact)
        mask = [t is not None for t in tangents[1:]]
        moving = [t for t in tangents[1:] if t is not None]
        inexact = [*self.inexact, *[True] * sum(self.inexact)]
        pushed = self.derived(lambda branch: pushforward(branch, mask), inexact, self.again)
        results = pushed.bind(*primals, *moving)
        given = iter(results[len(self.inexact) :])
        outputs = results[: len(self.inexact)]
        return outputs, fill(self.inexact, list(given), [None] * len(outputs))

    def vmap_rule(
        self, info: VmapInfo, in_dims: tuple[int | None, ...], operands: Tensors
    ) -> tuple[Any, Any]:
        """The choice between the mapped branches, for a predicate of the whole batch."""
        assert in_dims[0] is None, "a batched predicate selects"
        mapped = self.derived(
            lambda branch: vmap(branch, in_dims=in_dims[1:], randomness=info.randomness),
            self.inexact,
            self.again,
        )
        return mapped.bind(*operands), 0

    def pullback(self, mask: tuple[bool, ...]) -> Choice:
        """The choice between the gradients of the branches, of operands and cotangents."""

        def pull(branch: FlatFunction) -> FlatFunction:
            both = gradients(branch, mask)
            return lambda *xs: tuple(both(xs[: len(mask)], xs[len(mask) :])[1])

        return self.derived(pull, [True] * sum(mask), True)

    def derived(
        self, change: Callable[[FlatFunction], FlatFunction], inexact: Sequence[bool], again: bool
    ) -> Choice:
        """The choice between what ``change`` makes of the branches."""
        changed = change(self.branches[0]), change(self.branches[1])
        return Choice(self.tracer, changed, inexact, again)


def remember(ctx: Any, choice: Choice, operands: Tensors, outputs: Tensors) -> None:
    """What ``backward`` needs."""
    ctx.choice, ctx.mask = choice, ctx.needs_input_grad[2:]
    ctx.save_for_backward(*operands)
    fixed = [x for x, is_inexact in zip(outputs, choice.inexact) if not is_inexact]
    ctx.mark_non_differentiable(*fixed)


def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
    """Gradients of the operands, by the backward branch that the predicate chooses."""
    pred, *operands = live(ctx.saved_tensors)
    given = [ct for ct, is_one in zip(live(cotangents), ctx.choice.inexact) if is_one]
    found = ctx.choice.pullback(ctx.mask).bind(pred, *operands, *given)
    return None, None, *fill(ctx.mask, found, [None] * len(ctx.mask))


class PlainNode(torch.autograd.Function):
    """A choice in the graph of plain autograd, inside a trace."""

    @staticmethod
    def forward(ctx: Any, choice: Choice, *operands: torch.Tensor) -> Tensors:
        outputs = choice.bind(*operands)
        remember(ctx, choice, operands, outputs)
        return outputs

    backward = staticmethod(backward)


def lowered(choice: Choice, operands: Tensors) -> Tensors:
    """``choice`` one level down, from a grad level."""
    interpreter = current_interpreter()
    assert isinstance(interpreter, GradInterpreter)
    inner = interpreter.unwrap(operands)
    with interpreter.lower():
        results = choice.bind(*inner)
    outputs: Tensors = interpreter.wrap(results, inner, operands)
    return outputs


def _level_forward(ctx: Any, choice: Choice, *operands: torch.Tensor) -> Tensors:
    outputs = lowered(choice, operands)
    remember(ctx, choice, operands, outputs)
    return outputs


LevelNode = substrate.make_function(
    "Cond", substrate.SingleLevelFunction, {"forward": _level_forward, "backward": backward}
)
