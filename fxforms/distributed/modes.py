"""The modes of the caller that go with a call: grad mode, default dtype and autocast."""

from __future__ import annotations

import threading
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


class Applied:
    """Gives this thread the ``modes`` that `capture` found elsewhere."""

    __slots__ = ("_autocasts", "_dtype", "_grad")

    def __init__(self, modes: list[Any]) -> None:
        self._grad, self._dtype, pairs = _read(modes)
        self._autocasts = [torch.autocast(device, dtype=dtype) for device, dtype in pairs]

    def __enter__(self) -> None:
        _default_dtype.acquire(self._dtype)
        if not self._grad:  # a thread that serves a call has it on
            torch.set_grad_enabled(False)
        for autocast in self._autocasts:
            autocast.__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: object) -> None:
        for autocast in reversed(self._autocasts):
            autocast.__exit__(None, None, None)
        torch.set_grad_enabled(True)
        _default_dtype.release()


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
        self._lock = threading.Lock()
        self._free = threading.Condition(self._lock)
        self._users = 0
        self._before = torch.float32

    def acquire(self, dtype: torch.dtype) -> None:
        """Make ``dtype`` the default, for one more call."""
        with self._lock:
            if self._users and torch.get_default_dtype() is not dtype:
                self._wait(dtype)
            if not self._users:
                self._before = torch.get_default_dtype()
                if self._before is not dtype:
                    torch.set_default_dtype(dtype)
            self._users += 1

    def _wait(self, dtype: torch.dtype) -> None:
        if not self._free.wait_for(lambda: not self._users, _WAIT):
            raise RpcTimeoutError(
                f"A call with the default dtype {dtype} waited {_WAIT:.0f} s for calls with "
                f"{torch.get_default_dtype()} on this worker. torch has one default dtype for a "
                "process: give calls that overlap the same one."
            )

    def release(self) -> None:
        """End one call."""
        with self._lock:
            self._users -= 1
            if not self._users:
                if torch.get_default_dtype() is not self._before:
                    torch.set_default_dtype(self._before)
                self._free.notify_all()


_default_dtype = _DefaultDtype()
