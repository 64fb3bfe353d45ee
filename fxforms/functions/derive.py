"""Rules derived from other rules, by transposition.

A backward rule is linear in the cotangent: with J the Jacobian it computes ct -> J^H ct. Its own
vjp is then the map t -> J t, which is the jvp rule. In the same way the vjp of a jvp rule, linear
in the tangent, is the backward rule (the double-vjp identity, J. Townsend, "A new trick for
calculating Jacobian vector products", 2017).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from fxforms import _substrate as substrate
from fxforms._tree import flatten
from fxforms.errors import GradientError, describe
from fxforms.functions.context import RuleContext, among, attributes_of, for_each
from fxforms.functions.contract import Rules
from fxforms.functions.once import guard
from fxforms.interpreters import below_all_levels, grad_level


class Like(NamedTuple):
    """Shape, dtype and device of a tensor, for making constants like it."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, value: Any) -> Like | None:
        """That of ``value``, None if it is no floating or complex tensor."""
        if isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex()):
            return tuple.__new__(cls, (value.shape, value.dtype, value.device))
        return None

    def ones(self) -> torch.Tensor:
        """Ones, the same for all samples of every level."""
        with below_all_levels():
            return torch.ones(self.shape, dtype=self.dtype, device=self.device)

    def zeros(self) -> torch.Tensor:
        """Zeros, the same for all samples of every level."""
        with below_all_levels():
            return torch.zeros(self.shape, dtype=self.dtype, device=self.device)


_TENSOR: Any = torch.Tensor
ALIASES = frozenset({_TENSOR.detach, _TENSOR.data.__get__})


class Linear(TorchFunctionMode):
    """Runs a rule that is transposed at grad ``level``, and notes if it detaches what it is given.

    A rule is linear in that, detached or not; of other tensors a detached one stays a constant.
    """

    def __init__(self, level: int) -> None:
        super().__init__()
        self.level = level
        self.detached = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if (func in ALIASES or func is _TENSOR.detach_) and self.follows(args[0]):
            self.detached = True
            return args[0] if func is _TENSOR.detach_ else args[0].view_as(args[0])
        return func(*args, **(kwargs or {}))

    def follows(self, tensor: torch.Tensor) -> bool:
        """True if ``tensor`` depends on what the rule is given."""
        value = substrate.unbatched(tensor)
        return value.requires_grad and substrate.level_of(value) == self.level


def run_linear(
    rules: Rules, level: int, linear: Callable[[Any], Any], leaves: tuple[Any, ...]
) -> Any:
    """``linear(leaves)``, a rule at grad ``level``; its first call shows whether it detaches."""
    if rules.root.detaches is False:
        return linear(leaves)
    with Linear(level) as mode:
        result = linear(leaves)
    rules.root.detaches = bool(rules.root.detaches or mode.detached)
    return result


def transpose(
    rules: Rules,
    linear: Callable[[tuple[torch.Tensor | None, ...]], Sequence[torch.Tensor | None]],
    likes: Sequence[Like | None],
    cotangents: Sequence[torch.Tensor | None],
) -> tuple[torch.Tensor | None, ...]:
    """The transpose of ``linear`` applied to ``cotangents``; None for an input like None.

    It is the same at every point. The point is ones, for a rule may take a shortcut at zero.
    """
    with grad_level() as level:
        leaves = [None if x is None else substrate.make_leaf(x.ones(), level) for x in likes]
        pairs = [
            (fit(rules.__name__, out, ct), ct)
            for out, ct in zip(run_linear(rules, level, linear, tuple(leaves)), cotangents)
            if out is not None and ct is not None
        ]
    given = [leaf for leaf in leaves if leaf is not None]
    found = iter(pull([out for out, _ in pairs], [ct for _, ct in pairs], given))
    return tuple([None if leaf is None else next(found) for leaf in leaves])


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


def fit(name: str, output: Any, like: torch.Tensor) -> torch.Tensor:
    """``output`` of a rule as the engine takes it: of the shape of ``like``, real if that is."""
    if not (isinstance(output, torch.Tensor) and expands(like.shape, output.shape)):
        raise GradientError(
            f"{name}.backward returned {describe(output)} as the gradient of an input of shape "
            f"{tuple(like.shape)}. The gradient of an input must have the shape of that input, or "
            f"broadcast from it; return None for an input that has no gradient."
        )
    found: torch.Tensor = output
    if found.is_complex() and not like.is_complex():
        found = found.real
    return found if found.shape == like.shape else found.sum_to_size(like.shape)


def expands(shape: torch.Size, to: torch.Size) -> bool:
    """True if a tensor of ``shape`` broadcasts to the shape ``to``."""
    pairs = zip(reversed(shape), reversed(to))
    return len(shape) <= len(to) and all(size in (1, wanted) for size, wanted in pairs)


def tangent_likes(ctx: Any, outputs: tuple[Any, ...]) -> list[Like | None]:
    """What the tangent of each output is like; None for one without derivative."""
    return [None if among(x, ctx.non_differentiable) else Like.of(x) for x in outputs]


def jvp_from_backward(
    rules: Rules, ctx: Any, likes: list[Like | None], tangents: tuple[Any, ...]
) -> tuple[torch.Tensor | None, ...]:
    """Tangents of the outputs: the backward rule, transposed."""
    result = transpose(rules, lambda cts: rules.gradients(ctx, cts), likes, tangents)
    if rules.once:
        sources = flatten([tangents, ctx.saved_tensors, attributes_of(ctx)])[0]
        return tuple(guard(rules.once, result, sources))
    return result


def keep_for_transpose(ctx: Any, inputs: tuple[Any, ...]) -> None:
    """Keep on ``ctx`` what :func:`backward_from_jvp` needs."""
    if ctx.saved_for_forward:
        ctx.save_for_backward(*ctx.saved_for_forward)
    ctx._fx_input_likes = tuple([Like.of(x) for x in inputs])


def with_saved_read(ctx: Any) -> RuleContext:
    """``ctx`` with what it saved read now.

    A tracer unpacks a saved output by an operator, which at a level entered later would cut it off.
    """
    own = RuleContext(tuple(ctx.needs_input_grad), ctx._fx_lowered)
    own.to_save = ctx.saved_tensors
    vars(own).update(attributes_of(ctx))
    for name in ("_fx_plain", "_fx_input_likes", "_fx_samples"):
        setattr(own, name, getattr(ctx, name, None))
    return own


def backward_from_jvp(
    rules: Rules, ctx: Any, cotangents: tuple[Any, ...]
) -> tuple[torch.Tensor | None, ...]:
    """Gradients of the inputs: the jvp rule, transposed."""
    if substrate.dispatch_modes():
        ctx = with_saved_read(ctx)
    likes = [
        like if need else None for like, need in zip(ctx._fx_input_likes, ctx.needs_input_grad)
    ]

    def jvp(leaves: tuple[torch.Tensor | None, ...]) -> Sequence[torch.Tensor | None]:
        assert rules.jvp is not None
        tangents = [
            leaf.clone() if leaf is not None else like and like.zeros()  # a rule may change it
            for leaf, like in zip(leaves, ctx._fx_input_likes)
        ]
        result = for_each(rules.run_rule(rules.jvp, ctx, tuple(tangents)), len(cotangents))
        if len(result) != len(cotangents):
            raise GradientError(
                f"{rules.__name__}.jvp returned {len(result)} tangent(s) for {len(cotangents)} "
                f"output(s). Return one for each output, None where it is zero."
            )
        for index, (tangent, cotangent) in enumerate(zip(result, cotangents)):
            check_tangent(rules.__name__, index, tangent, cotangent)
        return result

    return transpose(rules, jvp, likes, cotangents)


def check_tangent(name: str, index: int, tangent: Any, cotangent: torch.Tensor | None) -> None:
    """Raise GradientError unless a jvp rule's ``tangent`` has the shape of its output."""
    if tangent is None or cotangent is None:
        return
    if not isinstance(tangent, torch.Tensor) or tangent.shape != cotangent.shape:
        raise GradientError(
            f"{name}.jvp, transposed for reverse mode, returned as tangent of output {index} "
            f"{describe(tangent)}, but the output has shape {tuple(cotangent.shape)}. Return a "
            f"tensor of its shape, or None where it is zero."
        )
