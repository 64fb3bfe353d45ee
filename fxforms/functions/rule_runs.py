"""A run of a user's rule whose result may be differentiated, and what it is given for that.

The first run of a class shows what its rules call; a rule that calls the autograd engine, or turns
recording off, runs again so that a level can follow it. See ``functions/inner_engine.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms._tree import flatten, map_leaves, map_tensors
from fxforms.errors import GradientError
from fxforms.functions.context import attributes_of
from fxforms.functions.derive import Like, with_saved_read
from fxforms.functions.inline import recorded
from fxforms.functions.inner_engine import EngineCalled, Recorded, Watched, allowed
from fxforms.functions.refused import refuse
from fxforms.interpreters.levels import GRAD


def may_record() -> bool:
    """True unless a rule runs in a backward pass of plain autograd that builds no graph."""
    return torch.is_grad_enabled() or substrate.transforms_active()


def run_recorded(rules: Any, rule: Callable[..., Any], ctx: Any, args: tuple[Any, ...]) -> Any:
    """A user's rule where its result may be differentiated; its first call shows what it calls.

    ``rules`` remember it as ``calls_engine``. A saved tensor that the rule makes a leaf may be the
    caller's own, and is a constant again afterwards.
    """
    saved = [x for x in ctx.saved_tensors if x is not None and not substrate.is_wrapped(x)]
    constants = [x for x in saved if not x.requires_grad]
    kept = {name: copied(value) for name, value in attributes_of(ctx).items()}
    try:
        return _run_recorded(rules, rule, ctx, args, kept)
    except RuntimeError:
        restore(ctx, kept)  # it may be looped over
        raise
    finally:
        for x in constants:
            if x.requires_grad:
                allowed(torch.Tensor.requires_grad_, (x, False), {})


def _run_recorded(
    rules: Any, rule: Callable[..., Any], ctx: Any, args: tuple[Any, ...], kept: dict[str, Any]
) -> Any:
    if rules.calls_engine is None:
        try:
            with Watched() as watched:
                result = rule(ctx, *args)
        except EngineCalled:
            rules.calls_engine = True
        else:  # it is True by now if a rule that this one calls does
            rules.calls_engine = bool(rules.calls_engine or watched.off)
            if not watched.off:
                return result
        restore(ctx, kept)
    given = (*ctx.saved_tensors, *flatten(attributes_of(ctx))[0], *args)
    if not (substrate.transforms_active() or recorded(given)):
        return _run_plain(rule, ctx, args, kept)
    if substrate.transforms_active() and substrate.top_transform() == GRAD:
        ctx = lifted(ctx)
    recording = Recorded(rules.__name__)
    try:
        with recording:
            return rule(ctx, *args)
    except GradientError as error:
        if error is not recording.refused or substrate.transforms_active():
            raise
    restore(ctx, kept)
    flat, spec = flatten(rule(ctx, *args))  # as torch runs it: constants, and refused as others
    sources = [x for x in (*ctx.saved_tensors, *args) if isinstance(x, torch.Tensor)]
    return spec.unflatten(refuse(flat, sources, recording.refused))


def restore(ctx: Any, kept: dict[str, Any]) -> None:
    """Give ``ctx`` back the attributes that a rule may have used up, for it runs again."""
    for name, value in kept.items():
        setattr(ctx, name, copied(value))


def copied(value: Any) -> Any:
    """``value`` in containers of its own, which a rule may empty."""
    return map_leaves(lambda leaf: leaf, value)


def _run_plain(
    rule: Callable[..., Any], ctx: Any, args: tuple[Any, ...], kept: dict[str, Any]
) -> Any:
    """``rule`` where nothing is recorded; what it saved requires grad if it asks for that.

    A saved input that a transform differentiates by is a plain tensor once its level has ended.
    """
    try:
        return rule(ctx, *args)
    except RuntimeError as error:
        if "differentiated Tensors does not require grad" not in str(error):
            raise
    for x in ctx.saved_tensors:
        if Like.of(x) is not None and not x.requires_grad:
            allowed(torch.Tensor.requires_grad_, (x,), {})
    restore(ctx, kept)
    return map_tensors(torch.Tensor.detach, rule(ctx, *args))


def lifted(ctx: Any) -> Any:
    """``ctx`` with its tensors as leaves of the top level, by which a rule may ask the engine."""
    own = with_saved_read(ctx)
    own._fx_unlifted = ctx
    own.to_save = tuple([x if x is None else lift(x) for x in own.to_save])
    for name, value in attributes_of(own).items():
        if not name.startswith("_fx_"):
            setattr(own, name, map_tensors(lift, value))
    return own


def lift(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` at the grad level on top, as a leaf if it is of a lower one."""
    level = substrate.current_level()
    if substrate.level_of(tensor) == level:
        return tensor
    lifted = substrate.wrap_for_grad(tensor, level)
    if Like.of(tensor) is not None:
        allowed(torch.Tensor.requires_grad_, (lifted,), {})
    return lifted
