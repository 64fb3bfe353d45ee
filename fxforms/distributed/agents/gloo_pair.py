"""A gloo group of two. The one file that knows how gloo behaves, and torch's private options of it.

What the agent relies on, as seen on torch 2.13:

- A receive into a buffer takes a message that is shorter. Receives of one tag are filled in the
  order in which they were posted.
- A send waits until the peer has posted a receive for it, and then until the bytes are written.
- When a peer dies, every operation of the group raises. A wait that times out ends the whole group,
  so each pair of workers has its own, and `Pair.cut` is such a wait.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import PrefixStore, ProcessGroupGloo  # type: ignore[attr-defined]

from fxforms.distributed.agents.linked import Cut

_Gloo: Any = ProcessGroupGloo  # torch's stubs lack most of it
_FOREVER = timedelta(days=365)
_NOTHING = 0  # a tag that nothing is sent with


class Pair:
    """This worker's end of a group of two.

    Args:
        store: where both ends find each other, under ``name``.
        rank: 0 or 1; the peer has the other.
        gloo: the device of this worker.
        timeout: seconds that the peer has to come.
    """

    def __init__(self, store: Any, name: str, rank: int, gloo: Any, timeout: float) -> None:
        self._peer = 1 - rank
        options = _Gloo._Options()
        options._devices = [gloo]
        options._timeout = timedelta(seconds=timeout)
        options._threads = 1
        self._group = _Gloo(PrefixStore(name, store), rank, 2, options)

    def send(self, data: torch.Tensor, tag: int) -> None:
        """Send ``data``; returns when it is written."""
        try:
            self._group.send([data], self._peer, tag).wait(_FOREVER)
        except RuntimeError as error:
            raise _cut(error) from None

    def post(self, buffer: torch.Tensor, tag: int) -> Any:
        """Post a receive into ``buffer``, to be waited for with `wait`."""
        try:
            return self._group.recv([buffer], self._peer, tag)
        except RuntimeError as error:
            raise _cut(error) from None

    def wait(self, posted: Any, silence: timedelta) -> None:
        """Wait for a receive; where it takes longer than ``silence``, the connection ends."""
        try:
            posted.wait(silence)
        except RuntimeError as error:
            raise _cut(error) from None

    def cut(self) -> None:
        """End the connection: every operation of either end raises, now and later."""
        with suppress(RuntimeError):
            nothing = torch.empty(1, dtype=torch.uint8)
            self._group.recv([nothing], self._peer, _NOTHING).wait(timedelta(milliseconds=1))


def _cut(error: RuntimeError) -> Cut:
    """What an error of gloo means."""
    text = str(error)
    if "imed out" in text:
        return Cut("nothing was heard of it for too long.")
    if "Application timeout" in text:
        return Cut("this worker ended the connection.")
    return Cut("its connection closed; the process may have died.")


def device(host: str) -> Any:
    """The gloo device that listens on ``host``."""
    return _Gloo.create_device(hostname=host)
