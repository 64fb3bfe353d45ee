"""Rules derived from other rules, by transposition.

A backward rule is linear in the cotangent: with J the Jacobian it computes ct -> J^H ct. Its own
vjp is then the map t -> J t, which is the jvp rule. In the same way the vjp of a jvp rule, linear
in the tangent, is the backward rule (the double-vjp identity, J. Townsend, "A new trick for
calculating Jacobian vector products", 2017).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from fxforms import _substrate as substrate
from fxforms._tree import flatten
from fxforms.functions.once import guard
from fxforms.interpreters import below_all_levels, grad_level

if TYPE_CHECKING:
    from fxforms.functions.rules import FunctionRules


class Like(NamedTuple):
    """Shape, dtype and device of a tensor, for making zeros like it."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, value: Any) -> Like | None:
        """That of ``value``, None if it is no floating or complex tensor."""
        if isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex()):
            return cls(value.shape, value.dtype, value.device)
        return None

    def zeros(self) -> torch.Tensor:
        """Zeros, the same for all samples of every level."""
        with below_all_levels():
            return torch.zeros(self.shape, dtype=self.dtype, device=self.device)


def transpose(
    linear: Callable[[list[torch.Tensor]], Sequence[torch.Tensor | None]],
    points: Sequence[torch.Tensor],
    cotangents: Sequence[torch.Tensor | None],
) -> list[torch.Tensor | None]:
    """The transpose of ``linear`` applied to ``cotangents``; ``points`` are zeros of its inputs."""
    with grad_level() as level:
        leaves = [substrate.make_leaf(point, level) for point in points]
        outputs = []
        weights = []
        for output, cotangent in zip(linear(leaves), cotangents):
            if output is not None and cotangent is not None:
                outputs.append(fit(output, cotangent))
                weights.append(cotangent)
    return pull(outputs, weights, leaves)


def pull(
    outputs: Sequence[torch.Tensor],
    cotangents: Sequence[torch.Tensor],
    leaves: Sequence[torch.Tensor],
) -> list[torch.Tensor | None]:
    """The vjp of a graph whose level has ended; None where an output does not depend on a leaf."""
    pairs = [(out, ct) for out, ct in zip(outputs, cotangents) if out.requires_grad]
    if not pairs:
        return [None] * len(leaves)
    gradients = substrate.run_backward(
        [out for out, _ in pairs], [ct for _, ct in pairs], leaves, False, torch.is_grad_enabled()
    )
    return [None if g is None else substrate.unwrap_if_dead(g) for g in gradients]


def fit(output: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """``output`` of a rule as the engine takes it: of the shape of ``like``, real if that is."""
    if output.is_complex() and not like.is_complex():
        output = output.real
    return output if output.shape == like.shape else output.sum_to_size(like.shape)


def jvp_from_backward(
    rules: FunctionRules, ctx: Any, outputs: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[torch.Tensor | None, ...]:
    """Tangents of ``outputs``: the backward rule, transposed."""
    fixed = tuple([x for x in ctx.non_differentiable if x is not None])
    likes = [None if any(x is y for y in fixed) else Like.of(x) for x in outputs]

    def backward(leaves: list[torch.Tensor]) -> Sequence[torch.Tensor | None]:
        remaining = iter(leaves)
        return rules.run_linear(ctx, tuple([like and next(remaining) for like in likes]))

    points = [like.zeros() for like in likes if like is not None]
    result = transpose(backward, points, tangents)
    if rules.once:
        result = guard(rules.__name__, result, flatten([tangents, ctx.saved_tensors, vars(ctx)])[0])
    found = iter(result)
    return tuple([None if like is None else next(found) for like in likes])


def keep_for_transpose(ctx: Any, inputs: tuple[Any, ...]) -> None:
    """Keep on ``ctx`` what :func:`backward_from_jvp` needs."""
    if not ctx.to_save and ctx.saved_for_forward:
        ctx.save_for_backward(*ctx.saved_for_forward)
    ctx.input_likes = tuple([Like.of(x) for x in inputs])


def backward_from_jvp(
    rules: FunctionRules, ctx: Any, cotangents: tuple[Any, ...]
) -> tuple[torch.Tensor | None, ...]:
    """Gradients of the inputs: the jvp rule, transposed."""
    likes = [like if need else None for like, need in zip(ctx.input_likes, ctx.needs_input_grad)]

    def jvp(leaves: list[torch.Tensor]) -> Sequence[torch.Tensor | None]:
        assert rules.jvp is not None
        remaining = iter([leaf.clone() for leaf in leaves])  # a rule may change them in place
        tangents = [
            like.zeros() if wanted is None and like is not None else wanted and next(remaining)
            for like, wanted in zip(ctx.input_likes, likes)
        ]
        result = rules.jvp(ctx, *tangents)
        return result if isinstance(result, tuple) else (result,)

    points = [like.zeros() for like in likes if like is not None]
    found = iter(transpose(jvp, points, cotangents))
    return tuple([None if like is None else next(found) for like in likes])
