"""Random numbers in a body that runs a second time: they must be those of the first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms.errors import GradientError
from fxforms.interpreters import below_all_levels

_CLOSE = 1e-2  # other numbers differ by more; a sum in another order by less


def is_random(operator: Any) -> bool:
    """True for an operator of torch that draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(operator, "tags", ())


def generator_state() -> torch.Tensor | None:
    """The state of torch's generator; None while operations are traced, not run."""
    return None if substrate.dispatch_modes() else torch.default_generator.get_state()


def drew(before: torch.Tensor | None, after: torch.Tensor | None) -> bool:
    """True if random numbers were drawn between two states; not known while a trace runs."""
    if substrate.dispatch_modes():
        return False
    return before is not None and after is not None and not torch.equal(before, after)


def draw_again(state: torch.Tensor | None) -> None:
    """Set the generator back to ``state``, for a body that is about to run again."""
    if state is not None:
        torch.set_rng_state(state)


class same_draws:
    """Sets the generator to ``state``, and on exit to what it was; None leaves it alone."""

    __slots__ = ("_before", "_state")

    def __init__(self, state: torch.Tensor | None) -> None:
        self._state = state

    def __enter__(self) -> None:
        if self._state is not None:
            self._before = torch.get_rng_state()
            torch.set_rng_state(self._state)

    def __exit__(self, *error: object) -> None:
        if self._state is not None:
            torch.set_rng_state(self._before)


def check_repeated(
    name: str, saved: Sequence[torch.Tensor | None], again: Sequence[torch.Tensor]
) -> None:
    """Raise GradientError if a residual that was saved is another when ``forward`` runs again."""
    if substrate.dispatch_modes():
        return
    for before, after in zip(saved, again):
        if before is not None and not (same(before, after) or near(before, after)):
            raise GradientError(
                f"{name}: for a second derivative forward runs again, and what it saved for "
                f"backward (a residual of shape {tuple(after.shape)}) is not the same then. "
                f"Draw random numbers from torch's default generator, or pass them in."
            )


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True if ``a`` and ``b`` are surely equal: laid out alike under their wrappers."""
    with below_all_levels():
        return torch.equal(substrate.physical(a), substrate.physical(b))


def near(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True if ``a`` and ``b`` are equal but for rounding, in every sample."""
    if a.numel() == 0:
        return True
    with torch.no_grad():
        a, b = torch.nan_to_num(a), torch.nan_to_num(b)
        close = substrate.physical((a - b).abs().amax() <= _CLOSE * b.abs().amax())
    with below_all_levels():
        return bool(close.all())
