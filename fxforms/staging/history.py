"""What a jitted function traced, and why: the record behind ``explain`` and the logger."""

from __future__ import annotations

import logging
from collections import deque
from typing import Any, NamedTuple

logger = logging.getLogger("fxforms.jit")
MAX_EVENTS = 64
_TENSOR_PARTS = (
    "type",
    "dtype",
    "shape",
    "strides",
    "device",
    "requires_grad",
)
_STATE_PARTS = (
    "grad mode",
    "inference mode",
    "autocast",
    "default dtype",
    "default device",
    "deterministic algorithms",
)


class CacheInfo(NamedTuple):
    """How a jitted function's calls were answered.

    Attributes:
        hits: calls answered by a graph that was there.
        misses: calls that traced one; ``trace`` and ``lower`` are no calls.
        size: graphs kept, those of one signature and other captured values among them.
        bound: graphs kept at most.
    """

    hits: int
    misses: int
    size: int
    bound: int


class Trace(NamedTuple):
    """One trace.

    Attributes:
        reason: why it was made.
        seconds: how long it took.
        recorded: operators as they were recorded.
        kept: operators after simplification.
    """

    reason: str
    seconds: float
    recorded: int
    kept: int


class History:
    """The last traces of one function."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.traces: deque[Trace] = deque(maxlen=MAX_EVENTS)
        self.last_key: tuple[Any, ...] | None = None

    def add(self, key: tuple[Any, ...], before: Any, entry: Any) -> None:
        """``entry`` was traced for ``key``; ``before``: an entry of it that did not serve."""
        traced = entry.program.traced
        reason = why(self.last_key, key, before)
        self.last_key = key
        self.traces.append(Trace(reason, traced.seconds, traced.recorded, len(traced.operators())))
        logger.info("%s: traced in %.3f s, %s", self.name, traced.seconds, reason)


def why(last: tuple[Any, ...] | None, key: tuple[Any, ...], before: Any) -> str:
    """The reason for a trace: how ``key`` differs from the one before."""
    if last is None:
        return "the first call"
    if before is not None:
        changed = before.captures.changed()
        if changed:
            return f"a captured variable changed: {', '.join(changed)}"
        return "sizes, or a layout of a captured tensor, that the graph before does not serve"
    found = [*_structure(last, key), *_tensors(last[3], key[3])]
    states = zip(_STATE_PARTS, last[4], key[4])
    found += [f"{part}: {before} -> {now}" for part, before, now in states if before != now]
    return "; ".join(found) or "the graph had been dropped"


def _structure(last: tuple[Any, ...], key: tuple[Any, ...]) -> list[str]:
    if last[0] != key[0] or last[1] != key[1]:
        return ["another structure of the arguments"]
    pairs = zip(last[2], key[2])
    return [f"static value: {old[1]} -> {new[1]}" for old, new in pairs if old != new]


def _tensors(last: tuple[Any, ...], key: tuple[Any, ...]) -> list[str]:
    found = []
    for index, (before, now) in enumerate(zip(last, key)):
        parts = [
            f"{part} {_short(old)} -> {_short(new)}"
            for part, old, new in zip(_TENSOR_PARTS, before, now)
            if old != new
        ]
        if parts:
            found.append(f"tensor {index}: {', '.join(parts)}")
    return found


def _short(value: Any) -> str:
    return str(tuple(value)) if isinstance(value, tuple) else getattr(value, "__name__", str(value))
