"""A function refused by ``jit``, for the tests of its messages."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from error_cases import X

import fxforms
from fxforms.errors import TraceError


def refused(f: Callable[..., Any], *args: Any, **options: Any) -> Callable[[], Any]:
    """A call of ``f`` under ``jit``; its error has no folder and no line number in it."""

    def call() -> Any:
        jitted = fxforms.jit(f, backend="eager", **options)
        try:
            return jitted(*(args or (X,)))
        except fxforms.errors.FxformsError as error:
            assert jitted.cache_info().size == 0
            text = re.sub(r":\d+:", ":", str(error).replace(str(Path(__file__).parent), ""))
            kind = TraceError if isinstance(error, TraceError) else type(error)
            raise kind(text.replace("/test_", "test_")) from error

    return call
