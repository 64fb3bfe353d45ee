"""Functions whose batch rule is given, and whose derivatives are those of body and rule.

A derivative of such a function is one of them again: its body is the derivative of the body, its
batch rule that of the rule. So a vmap level below any derivative finds the rule. Without such a
level the body is simply recorded, as any function's is.

``jax.custom_batching.custom_vmap`` has the same semantics.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch

from fxforms import _substrate as substrate
from fxforms.functions.batch_dims import batch, unbatch
from fxforms.functions.bind import bind
from fxforms.functions.derive import Like, pull
from fxforms.functions.draws import generator_state, same_draws
from fxforms.functions.single_level import apply_single_level, single_level_class
from fxforms.interpreters import Primitive, VmapInfo, grad_level, jvp_level, vmap_level

Flags = tuple[bool, ...]
Values = tuple[Any, ...]
_TENSOR = object()


class BatchedBy(Primitive):
    """An instance of the operator with a body and a batch rule, both on flat operands."""

    @abstractmethod
    def evaluate(self, *operands: Any) -> Values:
        """The body, at the level now on top, which differentiates it as it does any other."""

    @abstractmethod
    def batched(self, info: VmapInfo, flags: Flags, operands: Values) -> tuple[Values, Flags]:
        """The rule, on ``operands`` with the batch in front where ``flags`` say; so the outputs."""

    def is_mapped(self, flags: Flags) -> bool:
        """True if a batch of these operands is one of points, not of directions alone."""
        return any(flags)

    def bind(self, *operands: Any) -> Any:
        """The operator, at the level now on top."""
        return bind(self, operands)

    @cached_property
    def node(self) -> Any:
        """The single-level Function of a call whose backward finds the rule."""
        return single_level_class(Recorded(self))  # type: ignore[arg-type]

    def grad_rule(self, *operands: Any) -> Any:
        """The body, recorded at the top level; above a vmap, a node of its own."""
        if not self.is_mapped(batched_below(operands)):
            return self.evaluate(*operands)
        return apply_single_level(self.node, (*operands, Draws(generator_state())))

    def jvp_rule(self, primals: Values, tangents: Values) -> tuple[Any, Any]:
        """The body and its tangents; above a vmap, by an operator of their own."""
        pushed = Pushed(self)
        run = pushed.bind if self.is_mapped(batched_below(primals)) else pushed.evaluate
        result = run(*primals, *tangents)
        count = len(result) // 2
        return result[:count], result[count:]

    def vmap_rule(
        self, info: VmapInfo, in_dims: tuple[int | None, ...], operands: Values
    ) -> tuple[Any, Any]:
        """The rule, with every batch in front; the body where only directions are batched."""
        flags = tuple([dim is not None for dim in in_dims])
        if not self.is_mapped(flags):
            with vmap_level(*info) as level:
                outputs = self.evaluate(*batch(operands, in_dims, level))
                pairs = [unbatch(x, level) for x in outputs]
            return tuple([x for x, _ in pairs]), tuple([d for _, d in pairs])
        moved = [x if d is None else x.movedim(d, 0) for x, d in zip(operands, in_dims)]
        outputs, marks = self.batched(info, flags, tuple(moved))
        return outputs, tuple([0 if mark else None for mark in marks])


class Draws(NamedTuple):
    """The state of torch's generator before a body ran, for it runs again in its backward."""

    state: torch.Tensor | None


def batched_below(operands: Values) -> Flags:
    """Which of ``operands`` a level below batches."""
    value, is_batched = substrate.base_value, substrate.is_batched
    return tuple([isinstance(x, torch.Tensor) and is_batched(value(x)) for x in operands])


def widen(value: Any, flag: bool, size: int) -> Any:
    """``value`` with the batch in front: repeated if it has none."""
    if flag or not isinstance(value, torch.Tensor):
        return value
    return value.unsqueeze(0).expand(size, *value.shape)


class Pushed(BatchedBy):
    """Outputs and tangents of ``source``; operands are its operands and their tangents."""

    def __init__(self, source: BatchedBy) -> None:
        self.source = source
        self.__name__ = source.__name__

    def is_mapped(self, flags: Flags) -> bool:
        return self.source.is_mapped(flags[: len(flags) // 2])

    def evaluate(self, *operands: Any) -> Values:
        return push(self.source.evaluate, operands)

    def batched(self, info: VmapInfo, flags: Flags, operands: Values) -> tuple[Values, Flags]:
        count = len(flags) // 2
        either = [a or b for a, b in zip(flags, flags[count:])]
        wide = [
            widen(x, flag, info.batch_size) if both else x
            for x, flag, both in zip(operands, flags, either * 2)
        ]
        marks: Flags = ()

        def rule(*duals: Any) -> Values:
            nonlocal marks
            outputs, marks = self.source.batched(info, tuple(either), duals)
            return outputs

        return push(rule, tuple(wide)), marks * 2


def push(function: Callable[..., Values], operands: Values) -> Values:
    """Outputs and tangents of ``function``; ``operands`` are primals and their tangents."""
    count = len(operands) // 2
    with jvp_level() as level:
        duals: list[Any] = [
            x if t is None else substrate.make_dual(x, t)
            for x, t in zip(operands, operands[count:])
        ]
        pairs = [split(x, level) for x in function(*duals)]
    return tuple([value for value, _ in pairs] + [tangent for _, tangent in pairs])


def split(value: Any, level: int) -> tuple[Any, torch.Tensor | None]:
    """One output and its tangent, off jvp ``level``."""
    if not isinstance(value, torch.Tensor):
        return value, None
    tangent = substrate.tangent_of(value)
    off = substrate.unwrap_for_grad
    return off(value, level), None if tangent is None else off(tangent, level)


class Pulled(BatchedBy):
    """Gradients of ``source``; operands are its operands and a cotangent for each output."""

    def __init__(self, source: BatchedBy, needs: Flags, draws: Draws) -> None:
        self.source = source
        self.needs = needs
        self.draws = draws
        self.__name__ = source.__name__

    def is_mapped(self, flags: Flags) -> bool:
        return self.source.is_mapped(flags[: len(self.needs)])

    def evaluate(self, *operands: Any) -> Values:
        count = len(self.needs)
        return self.pull(self.source.evaluate, operands[:count], operands[count:])

    def batched(self, info: VmapInfo, flags: Flags, operands: Values) -> tuple[Values, Flags]:
        count, size = len(self.needs), info.batch_size
        either = tuple([flag or need for flag, need in zip(flags, self.needs)])
        wide = [widen(x, a or not b, size) for x, a, b in zip(operands, flags, either)]
        cotangents = [widen(x, a, size) for x, a in zip(operands[count:], flags[count:])]

        def rule(*leaves: Any) -> Values:
            outputs, marks = self.source.batched(info, either, leaves)
            return tuple([widen(x, mark, size) for x, mark in zip(outputs, marks)])

        gradients = self.pull(rule, tuple(wide), tuple(cotangents))
        return gradients, tuple([g is not None for g in gradients])

    def pull(self, function: Callable[..., Values], operands: Values, cotangents: Values) -> Values:
        """One gradient for each operand that needs one, else None."""
        with grad_level() as level, same_draws(self.draws.state):
            inner = [
                substrate.make_leaf(x, level) if need else x
                for x, need in zip(operands, self.needs)
            ]
            outputs = function(*inner)
        pairs = [
            (out, ct)
            for out, ct in zip(outputs, cotangents)
            if ct is not None and Like.of(out) is not None
        ]
        leaves = [x for x, need in zip(inner, self.needs) if need]
        found = iter(pull([out for out, _ in pairs], [ct for _, ct in pairs], leaves))
        return tuple([next(found) if need else None for need in self.needs])


class Recorded:
    """The rules of the node that one call of ``source`` leaves; its last operand is a Draws."""

    combined = watches = False

    def __init__(self, source: BatchedBy) -> None:
        self.source = source
        self.__name__ = source.__name__

    def bind(self, *operands: Any) -> Any:
        """The operator of ``source``."""
        return self.source.bind(*operands[:-1])

    def share_setup(self, ctx: Any, operands: Values, outputs: Any) -> bool:
        """False: what is set up differs between the levels."""
        return False

    def setup_context(self, ctx: Any, inputs: Values, output: Any) -> None:
        """Save the operands, for the vjp runs the body again."""
        ctx._fx_kept = [_TENSOR if isinstance(x, torch.Tensor) else x for x in inputs]
        ctx.save_for_backward(*[x for x in inputs if isinstance(x, torch.Tensor)])

    def run_backward(self, ctx: Any, cotangents: Values) -> Sequence[Any]:
        """The gradients, by an operator whose batch rule is the vjp of the rule."""
        tensors = iter(ctx.saved_tensors)
        *operands, draws = [next(tensors) if x is _TENSOR else x for x in ctx._fx_kept]
        pulled = Pulled(self.source, ctx.needs_input_grad[:-1], draws)
        return (*pulled.bind(*operands, *cotangents), None)
