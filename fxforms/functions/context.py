"""The ``ctx`` that a Function's methods get."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms.errors import SAVED_HOOKS, UNPACK, UnsupportedError


class NodeContext(substrate.BackwardCFunction):
    """A node of an autograd graph; the ``ctx`` of ``setup_context`` and ``backward``.

    The class of each Function's node derives from this one and holds its rules as ``_rules``.
    """

    _rules: Any
    _fx_lowered = False
    _fx_plain = False
    _fx_operands: Any = None
    _fx_packed: Any = None

    def set_materialize_grads(self, value: bool) -> None:
        """As in torch, where it cannot be read again."""
        self.materialize_grads = self._fx_materialize = value

    @property
    def saved_tensors(self) -> Any:  # type: ignore[override]
        """What ``save_for_backward`` was given, free of wrappers of ended levels."""
        unwrap = substrate.unwrap_if_dead
        if self._fx_packed is not None:
            return self._unpacked()
        try:
            saved = substrate.read_saved_tensors(self)
        except RuntimeError as error:
            if "accessing `data` under vmap" not in str(error):
                raise
            raise UnsupportedError(f"{self._rules.__name__}: {UNPACK}") from None
        return tuple([None if x is None else unwrap(x) for x in saved])

    def pack(self, level: int, lower: Callable[[], Any]) -> None:
        """Run the saved-tensor hooks in force, if any, below grad ``level``, not in torch.

        Torch runs them without recording, and of what unpack returns takes the data, which a batch
        does not give. Here a lower level records both.
        """
        hooks, saved = substrate.saved_hooks(), self.to_save
        if hooks is None or not saved:
            return
        values = [x if x is None else substrate.unwrap_for_grad(x, level) for x in saved]
        with lower():
            packed = [x if x is None else hooks[0](x) for x in values]
        self._fx_packed = level, hooks[1], packed
        self.save_for_backward()

    def _unpacked(self) -> tuple[Any, ...]:
        """What :meth:`pack` has packed."""
        level, unpack, packed = self._fx_packed
        if torch.is_grad_enabled() and substrate.level_depth() >= level:
            raise UnsupportedError(f"{self._rules.__name__}: {SAVED_HOOKS}")
        values = [None if x is None else unpack(x) for x in packed]
        return tuple([x if x is None else substrate.unwrap_if_dead(x) for x in values])

    def register_prehook(self, hook: Callable[[Any], Any]) -> Any:
        """As in torch; ``hook`` sees no gradient of what ``forward`` has saved."""
        return super().register_prehook(self._of_outputs(hook))

    def register_hook(self, hook: Callable[[Any, Any], Any]) -> Any:
        """The same."""
        own: Callable[..., Any] = lambda gradients, inputs: hook(inputs, gradients)  # noqa: E731
        trimmed = self._of_outputs(own, changes=False)
        return super().register_hook(lambda inputs, gradients: trimmed(gradients, inputs))

    def _of_outputs(self, hook: Callable[..., Any], changes: bool = True) -> Callable[..., Any]:
        """``hook`` on the gradients of the outputs, without those of residuals that follow them.

        What it returns replaces them if it ``changes`` them.
        """
        call = getattr(self, "_fx_call", None)
        if call is None or not call.residual_likes:
            return hook

        def trimmed(gradients: tuple[Any, ...], *more: Any) -> Any:
            result = hook(gradients[: call.count], *more)
            if result is None or not changes:
                return result
            return (*as_tuple(result), *gradients[call.count :])

        return trimmed

    def _compiled_autograd_key(self) -> tuple[int, ...]:
        """What tells this node from others of its shape, to the engine's capture of a pass."""
        return (self._autograd_function_id,)  # type: ignore[attr-defined]

    def apply(self, *cotangents: Any) -> Any:
        """Called by the autograd engine: the Function's backward rule."""
        if self._fx_operands is not None:
            if torch.is_grad_enabled():
                return self._rules.backward_again(self, cotangents)
            if not substrate.keeps_graph():
                self._fx_operands = None
        return self._rules.run_backward(self, cotangents)


class RuleContext:
    """A ``ctx`` outside any autograd graph, with the methods and fields of a torch ``ctx``.

    It serves jvp rules, rules run under a mapped level, and a ``forward`` that takes ``ctx``. Any
    other attribute may be set on it, as on every ``ctx``.
    """

    _fx_lowered = False
    _fx_plain = False  # a rule mapped for a graph of plain autograd
    _fx_unlifted: Any = None  # the ctx whose tensors this one has as leaves of a level
    _fx_input_likes: tuple[Any, ...] = ()
    _fx_samples: tuple[int, Callable[..., RuleContext]] | None = None
    to_save: tuple[torch.Tensor | None, ...] = ()
    saved_for_forward: tuple[torch.Tensor | None, ...] | None = None
    dirty_tensors: tuple[torch.Tensor, ...] = ()
    non_differentiable: tuple[torch.Tensor, ...] = ()
    materialize_grads = True

    def __init__(self, needs_input_grad: tuple[bool, ...], lowered: bool = False) -> None:
        """``lowered``: the level that this ``ctx`` serves is popped while the rule runs."""
        self._fx_lowered = lowered
        self.needs_input_grad = needs_input_grad

    def save_for_backward(self, *tensors: torch.Tensor | None) -> None:
        """Keep ``tensors`` for ``backward``."""
        self.to_save = tensors

    def save_for_forward(self, *tensors: torch.Tensor | None) -> None:
        """Keep ``tensors`` for ``jvp``."""
        self.saved_for_forward = tensors

    @property
    def saved_tensors(self) -> tuple[torch.Tensor | None, ...]:
        """What was saved for ``jvp``, else what was saved for ``backward``."""
        return self.to_save if self.saved_for_forward is None else self.saved_for_forward

    def mark_dirty(self, *tensors: torch.Tensor) -> None:
        """Declare inputs that ``forward`` changed in place."""
        self.dirty_tensors = tensors

    def mark_non_differentiable(self, *tensors: torch.Tensor) -> None:
        """Declare outputs that have no derivative."""
        self.non_differentiable = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Whether absent cotangents and tangents arrive as zeros (the default) or as None."""
        self.materialize_grads = value


_OWN = frozenset(vars(RuleContext(()))) | {
    *[name for name, value in vars(RuleContext).items() if not callable(value)],
    "_fx_asked",
    "_fx_materialize",
    "_fx_needs",
    "_fx_operands",
    "_fx_packed",
}


def attributes_of(ctx: Any) -> dict[str, Any]:
    """What the user set on ``ctx``, of whichever class."""
    own = vars(getattr(ctx, "_fx_real", ctx))
    if own.keys() <= _OWN:
        return {}
    return {name: value for name, value in own.items() if name not in _OWN}


def as_tuple(output: Any) -> tuple[Any, ...]:
    """What ``forward`` or a rule returned, as a tuple."""
    return output if isinstance(output, tuple) else (output,)


def for_each(result: Sequence[Any], count: int) -> Sequence[Any]:
    """What a jvp rule returned for ``count`` outputs; a single None stands for all of them."""
    return (None,) * count if len(result) == 1 and result[0] is None else result


def among(tensor: Any, tensors: tuple[torch.Tensor, ...]) -> bool:
    """True if ``tensor`` is one of ``tensors``, by identity."""
    for other in tensors:  # noqa: SIM110 (any() takes three times as long)
        if tensor is other:
            return True
    return False


def same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """True if ``a`` and ``b`` have the same objects."""
    return len(a) == len(b) and all(map(is_, a, b))


def materialize(primal: Any, tangent: torch.Tensor | None) -> torch.Tensor | None:
    """``tangent``, or zeros for a tensor without one."""
    if tangent is None and isinstance(primal, torch.Tensor):
        return torch.zeros_like(primal)
    return tangent


def own_memory(tangents: list[Any], given: tuple[Any, ...]) -> None:
    """Copy a tangent that a rule returned as it was given, or twice.

    Else changing one output in place would change the caller's tangent, or another output's.
    """
    seen = {id(x) for x in given}
    for index, tangent in enumerate(tangents):
        if isinstance(tangent, torch.Tensor):
            if id(tangent) in seen:
                tangents[index] = tangent.clone()
            seen.add(id(tangent))


def kept_tangents(
    ctx: RuleContext, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[Any, ...]:
    """``tangents`` with those of dirty inputs copied: the level overwrites the ones it gave."""
    if not ctx.dirty_tensors:
        return tangents
    return tuple(
        [
            t.clone() if t is not None and among(p, ctx.dirty_tensors) else t
            for p, t in zip(primals, tangents)
        ]
    )


def finish_jvp(
    ctx: RuleContext,
    primals: tuple[Any, ...],
    given: tuple[Any, ...],
    outputs: Any,
    tangents: Any,
) -> tuple[Any, Any]:
    """Outputs and tangents with what ``ctx`` declares applied, in one structure.

    ``given`` are the tangents that the rule was given.
    """
    single = not isinstance(outputs, tuple)
    flat = as_tuple(outputs)
    flat_tangents = list(for_each(as_tuple(tangents), len(flat)))
    own_memory(flat_tangents, given)
    values = []
    for index, output in enumerate(flat):
        if isinstance(output, torch.Tensor) and index < len(flat_tangents):
            if among(output, ctx.dirty_tensors):
                flat_tangents[index] = materialize(output, flat_tangents[index])
            elif among(output, primals):
                output = output.view_as(output)
            if among(flat[index], ctx.non_differentiable):
                flat_tangents[index] = None
        values.append(output)
    return (values[0] if single else tuple(values)), tuple(flat_tangents)
