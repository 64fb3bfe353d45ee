"""Random numbers of a remote function that runs again for a derivative: those of the first time."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from typing import Any, TypeVar

import torch

from fxforms.errors import GradientError
from fxforms.functions.draws import drew, is_random, same_draws
from fxforms.interpreters import below_all_levels

_T = TypeVar("_T")

Drawn = list[Any]  # the generator's state before a run, and a digest of that after it


def run_first(body: Callable[[], _T]) -> tuple[_T, Drawn | None]:
    """What ``body`` returns, and what a later run needs to draw the same; None if it drew none."""
    before = torch.get_rng_state()
    result = body()
    after = torch.get_rng_state()
    return result, [before, _digest(after)] if drew(before, after) else None


def run_again(body: Callable[[], _T], drawn: Drawn, name: str) -> _T:
    """What ``body`` returns with the numbers that its first run drew.

    Raises:
        GradientError: it draws others.
    """
    state, end = drawn
    with same_draws(state):
        result = body()
        after = torch.get_rng_state()
    # What draws nothing may have run beside something that did, the first time.
    if drew(state, after) and _digest(after) != end:
        raise GradientError(
            f"{name} runs again for a derivative and draws other random numbers than before. torch "
            "has one generator for a process, and another call used it at the same time. Draw the "
            "numbers before the call and pass them in, or make one call at a time."
        )
    return result


def _digest(state: torch.Tensor) -> bytes:
    with below_all_levels():
        return blake2b(state.numpy().tobytes(), digest_size=16).digest()


@lru_cache(maxsize=1024)
def operator_draws(name: str) -> bool:
    """True if the operator ``aten::...`` draws random numbers."""
    packet = getattr(torch.ops.aten, name.partition("::")[2])
    return any(is_random(getattr(packet, overload)) for overload in packet.overloads())
