"""Autograd contexts: what one worker records of a forward pass that crosses workers."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import torch

from fxforms.distributed.agent import Origin, RpcAgent, giver, prepare
from fxforms.distributed.autograd_commands import (
    CleanupAutogradContextReq,
    CleanupAutogradContextResp,
)
from fxforms.distributed.callback import handles
from fxforms.distributed.calls import send_command
from fxforms.distributed.current import current_agent
from fxforms.distributed.functions import SendRpcBackward
from fxforms.distributed.message import MessageType
from fxforms.distributed.passes import Passes
from fxforms.distributed.remembered import Remembered
from fxforms.distributed.requests import WorkerInfo
from fxforms.errors import ArgumentError, RpcError

_PATIENCE = 0.005  # seconds that a release waits for a call to go with


class Gradients:
    """What backward passes have accumulated on one worker, by leaf tensor."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_leaf: dict[torch.Tensor, torch.Tensor] = {}

    def accumulate(self, leaf: torch.Tensor, grad: torch.Tensor) -> None:
        """Add to the gradient of ``leaf``."""
        with self._lock:
            before = self._by_leaf.get(leaf)
            # A copy: the gradient may be that of another leaf too, or expanded, and optimisers and
            # users change gradients in place.
            self._by_leaf[leaf] = grad.clone() if before is None else before + grad

    def by_leaf(self) -> dict[torch.Tensor, torch.Tensor]:
        """The gradients as they are now."""
        with self._lock:
            return dict(self._by_leaf)


class AutogradContext:
    """One worker's part of a context.

    Attributes:
        id: the id of the context, the same on every worker.
        sends: the send functions of this worker, by their autograd message id.
        latest: the last of them; each knows the one before, those of calls that failed too.
        gradients: what backward passes have accumulated.
        known: ids of the workers that this one has called in the context.
        passes: the backward passes that reached this worker.
        released: True if it has ended.
    """

    def __init__(self, id: int) -> None:
        self.id = id
        self.released = False
        self.lock = threading.Lock()
        self.sends: dict[int, SendRpcBackward] = {}
        self.latest: SendRpcBackward | None = None
        self.known: set[int] = set()
        self.gradients = Gradients()
        self.passes = Passes(self.sends, self.gradients.accumulate)

    def call(self, worker: int) -> bool:
        """Note that ``worker`` is called in the context; False if that has ended."""
        with self.lock:
            if not self.released:
                self.known.add(worker)
            return not self.released

    def send(self, message_id: int, tensors: Sequence[torch.Tensor]) -> None:
        """Record that ``tensors`` leave this worker."""
        with self.lock:
            self.latest = SendRpcBackward(message_id, tensors, self.latest)
            self.sends[message_id] = self.latest

    def end(self) -> set[int]:
        """Take part no more; the workers that were called in it."""
        with self.lock:
            self.released = True
            return self.known


class Contexts:
    """The contexts of one worker, and the one that each thread records in."""

    def __init__(self, agent: RpcAgent) -> None:
        self._agent = agent
        self._lock = threading.Lock()
        self._alive: dict[int, AutogradContext] = {}
        self._released = Remembered()  # so that none comes to life again
        self._untold: dict[int, list[int]] = {}
        self._some = threading.Event()

    def __len__(self) -> int:
        return len(self._alive)

    def get(self, id: int) -> AutogradContext:
        """The context ``id``.

        Raises:
            ArgumentError: there is none on this worker.
        """
        found = self._alive.get(id)
        if found is None:
            was = "was released" if id in self._released else "is not known"
            raise ArgumentError(
                f"The autograd context {id} {was} on worker {self._agent.info.name!r}. Make the "
                "calls and the backward pass inside one `with fxforms.distributed.context()`."
            )
        return found

    def enter(self, id: int) -> AutogradContext:
        """The context ``id``, made if this worker has not seen it yet."""
        found = self._alive.get(id)
        if found is not None:
            return found
        with self._lock:
            if id not in self._released and giver(id) not in self._agent.lost:
                return self._alive.setdefault(id, AutogradContext(id))
        return self.get(id)

    def find(self, id: int) -> AutogradContext | None:
        """The context ``id``, if this worker takes part in it now."""
        return self._alive.get(id)

    def gradients(self, id: int) -> dict[torch.Tensor, torch.Tensor]:
        """What has accumulated here; nothing where no call or gradient has come to this worker."""
        found = self.find(id)
        return {} if found is None else found.gradients.by_leaf()

    def release(self, id: int, sender: int) -> None:
        """Forget the context, and have the workers called in it do so; none is waited for.

        They are told by the next call to them, or soon by `tell_released`.
        """
        with self._lock:
            self._released.add(id)
            context = self._alive.pop(id, None)
        if context is None:
            return
        for other in context.end() - {sender, self._agent.info.id}:
            self.untold(other, [id])

    def untold(self, worker: int, ids: list[int]) -> None:
        """Note that ``worker`` must still be told that these are released."""
        with self._lock:
            self._untold.setdefault(worker, []).extend(ids)
        self._some.set()

    def take_untold(self, worker: int) -> list[int]:
        """The released contexts that a message to ``worker``, made now, must name."""
        if worker not in self._untold:
            return []
        with self._lock:
            return self._untold.pop(worker, [])

    def tell_released(self) -> None:
        """Tell workers that are not called any more, until the agent is shut down."""
        agent = self._agent
        while not agent.closed.is_set():
            self._some.wait()
            agent.closed.wait(_PATIENCE)
            self._some.clear()
            for worker in list(self._untold):
                for id in self.take_untold(worker):
                    with suppress(RpcError):  # one that is gone has no contexts
                        send_command(agent, agent.worker(worker), CleanupAutogradContextReq(id))

    def close(self) -> None:
        """Forget everything; the agent is shut down."""
        self._alive.clear()
        self._some.set()

    def forget_send(self, id: int, message_id: int) -> None:
        """Drop a send function of a call that failed."""
        context = self._alive.get(id)
        if context is not None:
            context.sends.pop(message_id, None)

    def drop_those_of(self, worker: WorkerInfo) -> None:
        """Release the contexts that a dead worker began."""
        for id in list(self._alive):
            if giver(id) == worker.id:
                self.release(id, worker.id)


_thread = threading.local()


def current_context() -> AutogradContext | None:
    """The context that this thread records in."""
    return getattr(_thread, "context", None)


@contextmanager
def recording(context: AutogradContext | None) -> Iterator[None]:
    """Let this thread record in ``context``."""
    before = current_context()
    _thread.context = context
    try:
        yield
    finally:
        _thread.context = before


@prepare
def _prepare(agent: RpcAgent) -> None:
    contexts = agent.state["autograd"] = Contexts(agent)
    agent.on_lost.append(contexts.drop_those_of)
    agent.on_closed.append(contexts.close)
    agent.counts.append(lambda: {"contexts": len(contexts)})
    agent.pool.submit(contexts.tell_released)


def contexts_of(agent: RpcAgent) -> Contexts:
    """The contexts of a worker."""
    found: Contexts = agent.state["autograd"]
    return found


@handles(MessageType.CLEANUP_AUTOGRAD_CONTEXT_REQ)
def _cleanup(command: CleanupAutogradContextReq, origin: Origin) -> CleanupAutogradContextResp:
    contexts_of(origin.agent).release(command.context_id, origin.sender.id)
    return CleanupAutogradContextResp()


@contextmanager
def context() -> Iterator[int]:
    """A distributed autograd context: calls made inside are recorded for `backward`.

    Yields:
        The id of the context, which no other worker gives: the worker's id in the high 16 bits, a
        counter in the low 48. On exit, also by an error, every worker that took part releases the
        context.

    Raises:
        ArgumentError: this thread records in another context already.

    Example:
        >>> import torch
        >>> from fxforms import distributed
        >>> distributed.init_rpc("alone", rank=0, world_size=1, agent="local")
        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> with distributed.context() as context_id:
        ...     loss = distributed.rpc_sync("alone", torch.mul, (x, x)).sum()
        ...     distributed.backward(context_id, [loss])
        ...     distributed.get_gradients(context_id)[x]
        tensor([2., 4.])
        >>> distributed.shutdown()
    """
    agent = current_agent()
    outer = current_context()
    if outer is not None:
        raise ArgumentError(
            f"context(): this thread records in context {outer.id} already. Contexts do not nest; "
            "end that one first, or begin the other in a thread of its own."
        )
    contexts = contexts_of(agent)
    id = agent.new_id()
    try:
        with recording(contexts.enter(id)):
            yield id
    finally:
        contexts.release(id, agent.info.id)


def get_gradients(context_id: int) -> dict[torch.Tensor, torch.Tensor]:
    """What the backward passes of a context have accumulated on this worker.

    Returns:
        A dict from each leaf tensor that a loss depends on to its gradient.

    Raises:
        ArgumentError: there is no such context on this worker.

    Example: see `context`.
    """
    return contexts_of(current_agent()).get(context_id).gradients.by_leaf()
