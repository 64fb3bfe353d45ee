"""Opaque calls: a Python body as one node of a graph, run anew at every call of the graph.

A body is kept in a table under a number, which is what the graph holds; the graph's owner keeps
the body alive. What a body returns is known to the tracer by one run of it on made-up numbers.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fxforms._tree import take_tensors
from fxforms.errors import TraceError, describe, name_of
from fxforms.staging import fake
from fxforms.staging.draws import drawing_from, random_state

_bodies: weakref.WeakValueDictionary[int, Body] = weakref.WeakValueDictionary()
_numbers = itertools.count()


class Recording:
    """What a trace has to keep beside its graph.

    Attributes:
        bodies: the bodies that the graph calls.
        tokens: the outputs of calls that are made for their effect, which the graph must return.
    """

    def __init__(self) -> None:
        self.bodies: list[Body] = []
        self.tokens: list[torch.Tensor] = []

    def __enter__(self) -> None:
        self._outer = getattr(_active, "recording", _unowned)
        _active.recording = self

    def __exit__(self, *error: object) -> None:
        _active.recording = self._outer


_active = threading.local()
_unowned = Recording()  # of a tracer that is not ours: its bodies live as long as the process


def recording() -> Recording:
    """That of the trace under way in this thread."""
    found: Recording = getattr(_active, "recording", _unowned)
    return found


class Body:
    """A Python function of tensors, as a graph calls it.

    Attributes:
        number: its number in the table.
        likes: outputs to go by, without their memory.
        rebuild: puts outputs in the structure that the function returns; in a list if it has not
            run, for its outputs were promised.
    """

    def __init__(
        self, function: Callable[..., Any], operands: Any, likes: Sequence[torch.Tensor] | None
    ) -> None:
        """``operands``: the pytree that the function takes as its arguments, traced tensors in it.

        ``likes``: outputs to expect, where the function promises them.
        """
        self.function = function
        self.name = getattr(function, "__qualname__", name_of(function))
        self.tensors, self._arguments = take_tensors(operands)
        self.rebuild: Callable[[Sequence[torch.Tensor]], Any] = list  # until a run tells more
        self.number = next(_numbers)
        found = likes if likes is not None else self._try(self.tensors)
        self.likes = [
            torch.empty((), dtype=x.dtype, device=x.device).expand(x.shape) for x in found
        ]
        self.strides = [dense_stride(x) for x in found]
        _bodies[self.number] = self

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The function on real tensors; its outputs in memory of their own."""
        arguments = self._arguments([x.detach() for x in tensors])
        with torch.no_grad():
            outputs, self.rebuild = take_tensors(self.function(*arguments))
        return [x.detach().clone() for x in outputs]

    def answer(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """``run``, held to what the graph was traced for."""
        outputs = self.run(tensors)
        if [(x.shape, x.dtype) for x in outputs] != [(x.shape, x.dtype) for x in self.likes]:
            raise TraceError(
                f"{self.name} returned {', '.join(map(describe, outputs))}, and the "
                f"graph that calls it was traced for {', '.join(map(describe, self.likes))}. A "
                f"body under jit must return one shape for one shape."
            )
        return [laid_out(x, stride) for x, stride in zip(outputs, self.strides)]

    def _try(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs for made-up numbers, which are looked at for their shapes alone."""
        failed: Exception | None = None
        with fake.outside_modes(), drawing_from(random_state(()), ()):  # a trial leaves no trace
            for make in (_positive, _identity, _zeros):
                try:
                    return self.run([laid_out(make(x), dense_stride(x)) for x in tensors])
                except Exception as error:
                    failed = error
        raise TraceError(
            f"{self.name} cannot be traced, and a trial run to learn the shapes of "
            f"what it returns failed ({type(failed).__name__}: {failed}). State them: "
            f"fxforms.pure_callback(function, result_shape, ...)."
        ) from failed


def dense_stride(like: torch.Tensor) -> tuple[int, ...]:
    """The strides of a copy of ``like``, which may be traced."""
    shape = torch.empty_strided(like.shape, like.stride(), device="meta")
    return torch.empty_like(shape).stride()


def laid_out(tensor: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """``tensor`` with these strides, which are what compiled code goes by."""
    if tensor.stride() == stride:
        return tensor
    other = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device)
    return other.copy_(tensor)


def _positive(like: torch.Tensor) -> torch.Tensor:
    """Numbers between 0 and 1 for ``like``, the same at every trial; zeros for integers."""
    if not (like.is_floating_point() or like.is_complex()):
        return _zeros(like)
    numbers = torch.Generator().manual_seed(0)
    return torch.rand(like.shape, generator=numbers, dtype=like.dtype).to(like.device)


def _identity(like: torch.Tensor) -> torch.Tensor:
    """Identity matrices for what may be meant as matrices."""
    ones = _zeros(like)
    if like.dim() >= 2:
        ones.diagonal(dim1=-2, dim2=-1).fill_(1)
    return ones


def _zeros(like: torch.Tensor) -> torch.Tensor:
    return torch.zeros(like.shape, dtype=like.dtype, device=like.device)


@torch.library.custom_op("fxforms::opaque_call", mutates_args=())
def opaque_call(operands: list[torch.Tensor], number: int) -> list[torch.Tensor]:
    """Run the body of this number."""
    return _bodies[number].answer(operands)


@opaque_call.register_fake
def _(operands: list[torch.Tensor], number: int) -> list[torch.Tensor]:
    body = _bodies[number]
    return [
        torch.empty_strided(x.shape, stride, dtype=x.dtype, device=x.device)
        for x, stride in zip(body.likes, body.strides)
    ]


@opaque_call.register_vmap
def _(info: Any, in_dims: Any, operands: list[torch.Tensor], number: int) -> Any:
    """One call a sample."""
    dims = in_dims[0]
    samples = [
        opaque_call([x if d is None else x.select(d, i) for x, d in zip(operands, dims)], number)
        for i in range(info.batch_size)
    ]
    stacked = [torch.stack(outputs) for outputs in zip(*samples)]
    return stacked, [0] * len(stacked)


def stage_call(
    function: Callable[..., Any], operands: Any, likes: Sequence[torch.Tensor] | None = None
) -> Any:
    """A call of ``function`` in the graph being traced; the traced outputs."""
    body = Body(function, operands, likes)
    recording().bodies.append(body)
    return body.rebuild(opaque_call(body.tensors, body.number))


@torch.library.custom_op("fxforms::opaque_effect", mutates_args=())
def opaque_effect(
    operands: list[torch.Tensor], after: list[torch.Tensor], number: int
) -> torch.Tensor:
    """Run the body of this number for its effect, later than what made the tokens ``after``."""
    _bodies[number].run(operands)
    return torch.empty(0)


@opaque_effect.register_fake
def _(operands: list[torch.Tensor], after: list[torch.Tensor], number: int) -> torch.Tensor:
    return torch.empty(0)


def stage_effect(function: Callable[..., None], operands: Any) -> None:
    """A call of ``function`` in the graph being traced, at every run and in this order."""
    body = Body(function, operands, [])
    active = recording()
    active.bodies.append(body)
    active.tokens.append(opaque_effect(body.tensors, active.tokens[-1:], body.number))
