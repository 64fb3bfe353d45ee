"""Which rules a Function class declares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fxforms.errors import RuleError
from fxforms.functions.contract import Rules

_BASE = torch.autograd.Function
VMAP_METHODS = ("derive", "loop", "error")


def given(function: Any, *names: str) -> Callable[..., Any] | None:
    """The rule of one of these names that the class defines, None if it defines none."""
    rules = [(getattr(function, name), getattr(_BASE, name)) for name in names]
    found = [rule for rule, inherited in rules if rule is not inherited]
    if len(found) > 1:
        raise RuleError(
            f"{function.__name__} defines both {' and '.join(names)}, which are two names of one "
            f"rule. Keep one."
        )
    return found[0] if found else None


def check(function: Any, vmap: Callable[..., Any] | None, vmap_method: str) -> None:
    """Raise RuleError if the class contradicts itself."""
    if function.generate_vmap_rule and vmap is not None:
        raise RuleError(
            f"{function.__name__} has generate_vmap_rule=True and a vmap rule of its own. Keep one."
        )
    if vmap_method not in VMAP_METHODS:
        raise RuleError(
            f"{function.__name__} has vmap_method={vmap_method!r}; it must be one of "
            f"{', '.join(map(repr, VMAP_METHODS))}."
        )


def describe(rules: Rules) -> dict[str, str]:
    """For each rule: given, derived from what, or absent and why."""
    absent = "absent: neither backward nor jvp is given"
    vmap = {
        "derive": "derived: forward and the other rules mapped over the batch",
        "loop": 'derived: one call a sample (vmap_method = "loop")',
        "error": 'absent: vmap_method = "error"',
    }[rules.vmap_method]
    if rules.loops and rules.vmap_method == "derive":
        vmap = "derived: one call a sample, for a body cannot be mapped"
    backward = "given" if rules.backward else "derived: jvp transposed" if rules.jvp else absent
    jvp = "given" if rules.jvp else "derived: backward transposed" if rules.backward else absent
    if rules.once:
        backward = "given, once differentiable"
    return {"backward": backward, "jvp": jvp, "vmap": "given" if rules.vmap else vmap}
