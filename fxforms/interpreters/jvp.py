"""Forward mode: the level of ``jvp`` and ``jacfwd``."""

from __future__ import annotations

from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms._tree import flatten
from fxforms.errors import GradientError, RuleError, describe
from fxforms.interpreters.levels import JVP
from fxforms.interpreters.stack import Interpreter, Lowered, Primitive


class JvpInterpreter(Interpreter):
    """Carries explicit tangents past the operator.

    The pair is split here and both halves run one level down. Autograd's own forward-mode node is
    not used: nested, it drops the second tangent.
    """

    transform = "jvp"

    def process(self, fn: Primitive, operands: tuple[Any, ...]) -> Any:
        """Apply ``fn``'s jvp rule, or pass the call down where all tangents are zero."""
        level, unwrap = self.level, substrate.unwrap_for_grad
        tensors = [isinstance(x, torch.Tensor) for x in operands]
        primals = tuple([unwrap(x, level) if is_one else x for x, is_one in zip(operands, tensors)])
        tangents = tuple(
            [self.tangent(x) if is_one else None for x, is_one in zip(operands, tensors)]
        )
        if all(tangent is None for tangent in tangents):
            with self.lower():
                outputs, out_tangents = fn.bind(*primals), None
        else:
            with self.lower():
                outputs, out_tangents = fn.jvp_rule(primals, tangents)
        return self.join(fn, outputs, out_tangents, primals, operands)

    def tangent(self, operand: torch.Tensor) -> torch.Tensor | None:
        """The tangent of ``operand`` at this level, one level down."""
        tangent = substrate.tangent_of(operand)
        return None if tangent is None else substrate.unwrap_for_grad(tangent, self.level)

    def join(
        self,
        fn: Primitive,
        outputs: Any,
        out_tangents: Any,
        primals: tuple[Any, ...],
        operands: tuple[Any, ...],
    ) -> Any:
        """``outputs`` with their tangents, as dual tensors of this level."""
        flat, spec = flatten(outputs)
        flat_tangents = [None] * len(flat) if out_tangents is None else flatten(out_tangents)[0]
        if len(flat_tangents) != len(flat):
            raise GradientError(
                f"{fn.__name__}.jvp (level {self.level}) returned {len(flat_tangents)} tangent(s) "
                f"for {len(flat)} output(s). Return one for each output, None where it is zero."
            )
        joined = [
            self.join_one(fn, index, output, tangent, primals, operands)
            for index, (output, tangent) in enumerate(zip(flat, flat_tangents))
        ]
        return spec.unflatten(joined)

    def join_one(
        self,
        fn: Primitive,
        index: int,
        output: Any,
        tangent: torch.Tensor | None,
        primals: tuple[Any, ...],
        operands: tuple[Any, ...],
    ) -> Any:
        """One output with its tangent; an operand that was returned stays the same object."""
        if not isinstance(output, torch.Tensor):
            return output
        level = self.level
        source = next((x for p, x in zip(primals, operands) if p is output), None)
        if tangent is None:
            return substrate.wrap_for_grad(output, level) if source is None else source
        if not isinstance(tangent, torch.Tensor) or tangent.shape != output.shape:
            raise GradientError(
                f"{fn.__name__}.jvp (level {level}) returned as tangent of output {index} "
                f"{describe(tangent)}, but the output is {describe(output)}. Return a tensor of "
                f"its shape, or None where it is zero."
            )
        if tangent.dtype != output.dtype:
            with self.lower():
                tangent = as_dtype(tangent, output.dtype)
        dual = substrate.make_dual(
            substrate.wrap_for_grad(output, level), substrate.wrap_for_grad(tangent, level)
        )
        return dual if source is None else self.overwrite(fn, source, output, dual)

    def overwrite(
        self, fn: Primitive, operand: torch.Tensor, value: torch.Tensor, dual: torch.Tensor
    ) -> torch.Tensor:
        """``operand``, changed in place by ``fn`` or returned as it is, with its new tangent."""
        if operand is value:
            raise RuleError(
                f"{fn.__name__} changed a captured tensor of shape {tuple(value.shape)} in place "
                f"under jvp (level {self.level}), and its tangent would be lost. Pass the tensor "
                f"to the transformed function as an argument, or clone it first."
            )
        # The value is the same at every level, so what they have saved of it stays valid.
        with self.lower():
            below = substrate.transforms_active() and substrate.top_transform() == JVP
            tangent = substrate.tangent_of(value) if below else None
        with substrate.preserve_version(layers(value) + layers(tangent)):
            operand.copy_(dual)
        return operand

    def lower(self) -> Lowered:
        """Pop this level; lower levels see forward mode off if this level was entered so."""
        return Lowered(None, substrate.JvpHandle(self._handle).prevFwdGradMode())


def as_dtype(tangent: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``tangent`` in ``dtype``, as the autograd engine converts a gradient: the real part of it."""
    if tangent.is_complex() and not dtype.is_complex:
        tangent = tangent.real
    return tangent.to(dtype)


def layers(tensor: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    """``tensor`` and what it wraps, level by level."""
    if tensor is None:
        return ()
    found = [tensor]
    while substrate.is_wrapped(found[-1]):
        found.append(substrate.unwrapped(found[-1]))
    return tuple(found)
