"""The parts of a remote call: what one worker runs of it, and how they are asked at once.

A call of `remote_function` has one part, a call of `sharded_vmap` one for each worker. Operands and
outputs of a call are those of its parts, one part after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from fxforms.distributed.calls import call, call_async, call_command
from fxforms.distributed.current import current_agent
from fxforms.distributed.repeated_draws import Drawn
from fxforms.distributed.requests import WorkerInfo
from fxforms.distributed.transformed import Transform

_T = TypeVar("_T")


@dataclass(slots=True)
class Part:
    """A function on one worker, under transforms.

    Attributes:
        arguments: the arguments, with slots for tensors; None if all are tensors.
        count: how many operands it takes.
        returned: one entry, what the function returned, with slots for tensors; shared with the
            parts that this one is turned into.
        drawn: one entry, what is needed to draw the same random numbers again; shared so too.
    """

    worker: WorkerInfo
    name: str
    arguments: Any
    count: int
    timeout: float
    transforms: list[Transform] = field(default_factory=list)
    returned: list[Any] = field(default_factory=lambda: [None])
    drawn: list[Any] = field(default_factory=lambda: [None])

    def under(self, count: int, *transform: Any) -> Part:
        """This part under one more transform, with ``count`` operands."""
        transforms = [*self.transforms, list(transform)]
        return Part(
            self.worker,
            self.name,
            self.arguments,
            count,
            self.timeout,
            transforms,
            self.returned,
            self.drawn,
        )

    @property
    def is_operator(self) -> bool:
        """True if a built-in operator is called, which captures nothing."""
        return self.name.startswith("aten::")

    @property
    def described(self) -> tuple[str, Any, Drawn | None, list[Transform]]:
        """What the worker must know of it."""
        return self.name, self.arguments, self.drawn[0], self.transforms


def divide(values: Sequence[_T], counts: Sequence[int]) -> list[Sequence[_T]]:
    """``values`` in pieces of these lengths."""
    pieces, start = [], 0
    for count in counts:
        pieces.append(values[start : start + count])
        start += count
    return pieces


def join_pieces(pieces: Sequence[Sequence[_T]]) -> tuple[_T, ...]:
    """The values of all pieces."""
    return tuple(pieces[0]) if len(pieces) == 1 else tuple(x for piece in pieces for x in piece)


def spread(values: Sequence[_T], counts: Sequence[int]) -> _T | tuple[_T, ...]:
    """Each value as often as its count says; one that is the same for all, alone."""
    if values.count(values[0]) == len(values):
        return values[0]
    return tuple(value for value, count in zip(values, counts) for _ in range(count))


def ask_all(
    function: Callable[..., Any], parts: Sequence[Part], requests: Sequence[Sequence[Any]]
) -> list[Any]:
    """What ``function`` gives for each request on the worker of each part, all asked at once."""
    agent = current_agent()
    commands = [call_command("remote_function", function, args, None) for args in requests]
    if len(parts) == 1:
        answer: Any = call(agent, parts[0].worker, commands[0], parts[0].timeout)
        return [answer.value]
    futures = [
        call_async(agent, part.worker, command, part.timeout, _value)
        for part, command in zip(parts, commands)
    ]
    return [agent.wait(future, part.worker, part.timeout) for part, future in zip(parts, futures)]


def ask_all_unrecorded(
    function: Callable[..., Any], parts: Sequence[Part], requests: Sequence[Sequence[Any]]
) -> list[Any]:
    """As `ask_all`, in no graph."""
    with torch.no_grad():
        return ask_all(function, parts, requests)


def _value(answer: Any) -> Any:
    return answer.value


def numbered(parts: Sequence[Part], values: Sequence[_T]) -> Iterator[tuple[Part, Sequence[_T]]]:
    """Each part with its piece of ``values``, one for each operand."""
    return zip(parts, divide(values, [part.count for part in parts]))
