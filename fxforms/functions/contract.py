"""What the parts of a Function's rules ask of the whole record.

The record itself is ``FunctionRules`` in ``rules.py``, which is built from those parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from fxforms.functions.signature import Signature


class Rules(Protocol):
    """The rules of one Function class, as the derived forms and rules see them."""

    __name__: str
    function: Any
    signature: Signature
    combined: bool
    backward: Callable[..., Any] | None
    jvp: Callable[..., Any] | None
    vmap: Callable[..., Any] | None
    vmap_method: str
    once: str | None
    transposes_jvp: bool
    splits_always: bool
    watches: bool
    loops: bool
    evaluate: Callable[..., Any]
    last_shared: Any

    @property
    def root(self) -> Any:
        """The rules of the class that the user wrote."""

    @property
    def split(self) -> Any:
        """The rules of the class without ``ctx`` in ``forward``."""

    def bind(self, *operands: Any) -> Any:
        """The operator, at the level now on top."""

    def setup_context(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """The user's ``setup_context``, and what a derived backward needs beside it."""

    def share_setup(self, ctx: Any, operands: tuple[Any, ...], outputs: Any) -> bool:
        """True if ``ctx`` now holds what ``setup_context`` has left at a lower level."""

    def run_with_ctx(self, ctx: Any, operands: tuple[Any, ...]) -> Any:
        """A ``forward`` in the combined form, at a level where nothing differentiates."""

    def forward_with_ctx(self, ctx: Any, *operands: Any) -> Any:
        """The user's ``forward`` in the combined form, and what a derived backward needs."""

    def note_residuals(self) -> None:
        """A call has shown that this class hides a residual."""

    def run_rule(
        self, rule: Callable[..., Any], ctx: Any, args: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """A user's rule; one call a sample where it cannot run on a batch."""

    def gradients(self, ctx: Any, cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
        """One gradient for each input, as the rule is written."""

    def run_backward(self, ctx: Any, cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
        """The same, refusing a second derivative if the rule is marked so."""
