"""The modes of the caller that go with a call: grad mode, default dtype and autocast."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from fxforms.errors import MessageError, RpcTimeoutError

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_DEVICES = ("cpu", "cuda")
_WAIT = 30.0


def capture() -> list[Any]:
    """The modes of this thread as plain data: ``[grad, dtype, [device, autocast dtype], ...]``."""
    modes: list[Any] = [torch.is_grad_enabled(), _DTYPES.index(torch.get_default_dtype())]
    for device in _DEVICES:
        if torch.is_autocast_enabled(device):
            modes.append([device, torch.get_autocast_dtype(device)])
    return modes


@contextmanager
def applied(modes: list[Any]) -> Iterator[None]:
    """Gives this thread the ``modes`` that `capture` found elsewhere."""
    grad, dtype, autocasts = _read(modes)
    with _default_dtype.held(dtype), torch.set_grad_enabled(grad):
        if not autocasts:
            yield
            return
        with ExitStack() as stack:
            for device, kind in autocasts:
                stack.enter_context(torch.autocast(device, dtype=kind))
            yield


def _read(modes: list[Any]) -> tuple[bool, torch.dtype, list[tuple[str, torch.dtype]]]:
    """The parts of ``modes``, which a peer sent."""
    try:
        grad, number, *autocasts = modes
        pairs = [(device, dtype) for device, dtype in autocasts if device in _DEVICES]
        if isinstance(grad, bool) and all(isinstance(dtype, torch.dtype) for _, dtype in pairs):
            return grad, _DTYPES[number], pairs
    except (TypeError, ValueError, IndexError):
        pass
    raise MessageError(f"A call has no such modes: {str(modes)[:200]}.")


class _DefaultDtype:
    """The default dtype, of which torch has one for the whole process.

    Calls with the same one run at once. A call with another waits until those have ended, so that
    none of them makes a tensor of a dtype that is not its own.
    """

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._users = 0
        self._before = torch.float32

    @contextmanager
    def held(self, dtype: torch.dtype) -> Iterator[None]:
        """Makes ``dtype`` the default."""
        self._acquire(dtype)
        try:
            yield
        finally:
            self._release()

    def _acquire(self, dtype: torch.dtype) -> None:
        with self._free:
            if self._users and torch.get_default_dtype() is not dtype:
                usable = self._free.wait_for(lambda: not self._users, _WAIT)
                if not usable:
                    raise RpcTimeoutError(
                        f"A call with the default dtype {dtype} waited {_WAIT:.0f} s for calls "
                        f"with {torch.get_default_dtype()} on this worker. torch has one default "
                        "dtype for a process: give calls that overlap the same one."
                    )
            if not self._users:
                self._before = torch.get_default_dtype()
                if self._before is not dtype:
                    torch.set_default_dtype(dtype)
            self._users += 1

    def _release(self) -> None:
        with self._free:
            self._users -= 1
            if not self._users:
                if torch.get_default_dtype() is not self._before:
                    torch.set_default_dtype(self._before)
                self._free.notify_all()


_default_dtype = _DefaultDtype()
