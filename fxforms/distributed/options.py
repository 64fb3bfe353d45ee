"""The options of `init_rpc`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from fxforms.distributed.agent import DEFAULT_TIMEOUT, MAX_TIMEOUT
from fxforms.errors import ArgumentError


@dataclass(frozen=True)
class Options:
    """What `init_rpc(options=...)` may hold.

    Attributes:
        rpc_timeout: seconds that a call may take where it does not say.
        init_timeout: seconds that all workers have to join.
        host: the address this worker listens on. Loopback unless another is given.
    """

    rpc_timeout: float = DEFAULT_TIMEOUT
    init_timeout: float = DEFAULT_TIMEOUT
    host: str = "127.0.0.1"


def read(options: Mapping[str, Any] | Options | None) -> Options:
    """The options, checked.

    Raises:
        ArgumentError: one is unknown or has a wrong value.
    """
    if isinstance(options, Options):
        return options
    given = dict(options or {})
    known = {field.name: field for field in fields(Options)}
    unknown = sorted(given.keys() - known.keys())
    if unknown:
        raise ArgumentError(
            f"init_rpc(options=...): {unknown} are no options. There are {sorted(known)}."
        )
    result = Options(**given)
    for name in ("rpc_timeout", "init_timeout"):
        seconds = getattr(result, name)
        if not isinstance(seconds, (int, float)) or not 0 < seconds <= MAX_TIMEOUT:
            raise ArgumentError(
                f"init_rpc(options=...): {name}={seconds!r}, expected seconds from 0 to "
                f"{MAX_TIMEOUT:g}."
            )
    return result
