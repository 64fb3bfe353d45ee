"""The functions that workers of the tests run; every worker imports this module."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from fxforms import distributed
from fxforms.distributed import register


@register
class Point(NamedTuple):
    """A named tuple that travels."""

    x: Any
    y: Any


@register
@dataclass
class Pair:
    """A dataclass that travels."""

    left: Any
    right: Any


@register
@dataclass
class OneWay:
    """A dataclass that can be made and sent, and not read."""

    value: Any

    def __post_init__(self) -> None:
        if isinstance(self.value, (list, torch.Tensor)):
            raise LookupError("it stays where it is")


def unreadable(value: Any) -> OneWay:
    """What no worker can read."""
    made = OneWay(None)
    made.value = value
    return made


@register
class Refused(Exception):
    """An error that is registered."""


class Unknown(Exception):
    """One that is not."""


@register
class Underivable(Exception):
    """No class may derive from it, as that of its remote error would."""

    def __init_subclass__(cls) -> None:
        raise LookupError("no class derives from this")


@register
class Occupied(Exception):
    """Has an attribute that a remote error sets."""

    @property
    def worker(self) -> int:
        return 1


@register
class Counter:
    """A value with a state, kept by its owner."""

    def __init__(self, start: int) -> None:
        self.count = start

    def add(self, number: int) -> int:
        self.count += number
        return self.count

    def _secret(self) -> int:
        return self.count


class Plain:
    """A class that is not registered."""

    def method(self) -> int:
        return 1


@register
def make_plain() -> Plain:
    return Plain()


@register
def echo(value: Any) -> Any:
    return value


@register
def double(x: Any, *, plus: float = 0) -> Any:
    return 2 * x + plus


@register
def add_in_place(x: torch.Tensor) -> torch.Tensor:
    return x.add_(1)


@register
def chain(path: list[str], x: Any) -> Any:
    """``x`` doubled on each worker of ``path``, each called by the one before."""
    if not path:
        return x
    return distributed.rpc_sync(path[0], chain, (path[1:], 2 * x))


def group(text: str) -> Exception:
    return ExceptionGroup(text, [ValueError("first"), KeyError("second")])


@register
def fail(kind: str, text: str) -> None:
    kinds = {"value": ValueError, "key": KeyError, "refused": Refused, "unknown": Unknown}
    others = {"exit": SystemExit, "interrupt": KeyboardInterrupt, "stop": StopIteration}
    others |= {"underivable": Underivable, "occupied": Occupied, "group": group}
    raise (kinds | others)[kind](text)


@register
def fail_on(worker: str, kind: str, text: str) -> None:
    distributed.rpc_sync(worker, fail, (kind, text))


@register
def modes() -> tuple[bool, torch.dtype, bool]:
    return torch.is_grad_enabled(), torch.get_default_dtype(), torch.is_autocast_enabled("cpu")


@register
def sleep(seconds: float) -> str:
    time.sleep(seconds)
    return distributed.get_worker_info().name


@register
def sleep_on(worker: str, seconds: float) -> Any:
    return distributed.rpc_sync(worker, sleep, (seconds,))


@register
def keep(value: Any) -> None:
    """Hold ``value`` as long as this process lives."""
    KEPT.append(value)


KEPT: list[Any] = []


@register
def unsendable() -> Any:
    return threading.Lock()


@register
def beside(rref: Any, what: str) -> Any:
    """``rref`` beside something that is sent, but cannot be read; or that cannot be sent."""
    if what == "unsendable tensor":
        return [torch.eye(2).to_sparse(), rref]
    return [unreadable([1, rref]), {"deep": (rref,)}]


@register
def own_late(worker: str, seconds: float) -> Any:
    """An RRef of ``worker``, or of this one if that is empty."""
    if worker:
        return distributed.rpc_sync(worker, own_late, ("", seconds))
    time.sleep(seconds)
    return distributed.RRef(torch.ones(2))


@register
def to_here(rref: Any) -> Any:
    return rref.to_here()


@register
def pass_on(rref: Any, path: list[str]) -> Any:
    """The value of ``rref`` as the last of ``path`` sees it."""
    if not path:
        return rref.to_here()
    return distributed.rpc_sync(path[0], pass_on, (rref, path[1:]))


@register
def held() -> dict[str, int]:
    return distributed.debug_info()


@register
def process() -> int:
    return os.getpid()


@register
def raise_on(x: torch.Tensor) -> None:
    raise ValueError("never")
