"""A dependence that autograd can follow, only to be refused.

A result that depends on tensors in a way that no rule tells is made to depend on a token, which
depends on them. The engine asks the token alone if it wants a derivative by them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms.functions.unseen import follow
from fxforms.interpreters import below_all_levels


class Token(torch.autograd.Function):
    """A number that depends on ``tensors``; ``check`` is called if a derivative by one is asked."""

    @staticmethod
    def forward(ctx: Any, check: Callable[[], None], *tensors: torch.Tensor) -> torch.Tensor:
        ctx.check, ctx.count = check, len(tensors)
        return torch.zeros((), dtype=tensors[0].dtype, device=tensors[0].device)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        ctx.check()
        return (None,) * (1 + ctx.count)


def token(check: Callable[[], None], tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """A token for plain autograd; ``check`` raises, or tells by returning that nothing depends."""
    forward = substrate.forward_grad_enabled()
    substrate.set_forward_grad_enabled(False)
    try:
        with below_all_levels():
            found: torch.Tensor = Token.apply(check, *tensors)  # type: ignore[no-untyped-call]
    finally:
        substrate.set_forward_grad_enabled(forward)
    return found


def refuse(values: Sequence[Any], tensors: Sequence[torch.Tensor], error: Exception) -> list[Any]:
    """``values``, whose derivative by ``tensors`` raises ``error``."""

    def check() -> None:
        raise error

    followed = [x for x in tensors if x.requires_grad]
    if not followed:
        return list(values)
    return follow(values, [token(check, followed)], lambda sources: None)
