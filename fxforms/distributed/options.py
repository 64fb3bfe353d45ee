"""The options of `init_rpc`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from fxforms.distributed.requests import DEFAULT_TIMEOUT, MAX_TIMEOUT
from fxforms.errors import ArgumentError


@dataclass(frozen=True)
class Options:
    """What `init_rpc(options=...)` may hold.

    Attributes:
        rpc_timeout: seconds that a call may take where it does not say.
        init_timeout: seconds that all workers have to join.
        host: the address this worker listens on. Loopback unless another is given.
        silence: seconds without a word from a worker after which it counts as dead.
        max_message_bytes: how large a message may be.
        shared_memory: between processes of one machine and user, send large messages through memory
            that both map; with gRPC these do not pass through TLS then. Without gRPC small ones go
            through pipes.
        certificate, key, ca: PEM files of a worker on gRPC: its certificate, the key of it, and the
            CA that signed those of all workers.
        insecure: gRPC without TLS, on loopback addresses alone.
    """

    rpc_timeout: float = DEFAULT_TIMEOUT
    init_timeout: float = DEFAULT_TIMEOUT
    host: str = "127.0.0.1"
    silence: float = DEFAULT_TIMEOUT
    max_message_bytes: int = 1 << 31
    shared_memory: bool = True
    certificate: str | None = None
    key: str | None = None
    ca: str | None = None
    insecure: bool = False


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
    for name in ("rpc_timeout", "init_timeout", "silence"):
        seconds = getattr(result, name)
        if not isinstance(seconds, (int, float)) or not 0 < seconds <= MAX_TIMEOUT:
            raise ArgumentError(
                f"init_rpc(options=...): {name}={seconds!r}, expected seconds from 0 to "
                f"{MAX_TIMEOUT:g}."
            )
    return result


def master(agent: str) -> tuple[str, int]:
    """The address at which the workers meet, from the environment, as torch has it.

    Raises:
        ArgumentError: it is not set, or is no address.
    """
    host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ArgumentError(
            f"init_rpc(agent={agent!r}): MASTER_ADDR={host!r}, MASTER_PORT={port!r} in the "
            "environment are no address. Set both, the same for every worker."
        )
    return host, int(port)
