"""The backward pass over workers.

NOTE [how a pass travels]

1. The worker that calls `backward` runs its graph from the roots. Where that ends in a recv
   function, the gradients go to the send function on the other worker, which runs its graph from
   there, and so on.
2. Gradients for send functions of the worker that asked are in the answer, so a chain of calls goes
   back and forth without a wait inside a wait. An answer comes when all that it set off has ended.
3. A node that several sources reach waits for all of them; see NOTE [parts of a graph]. Each answer
   tells on which workers something waits. If the pass stands still and something does, some result
   is not used by the loss. SMART mode then follows the gradients that wait to the send functions
   that they will reach, and has the workers go on without the rest. FAST mode raises.

So a pass in which every result is used takes one message for each recv function. The algorithm of
``torch.distributed.autograd`` ("FAST mode" in its design notes) is the start of this one; there a
result that is not used holds the pass up for good.
"""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import Any, Literal

import torch

from fxforms.distributed.agent import Origin, RpcAgent
from fxforms.distributed.autograd_commands import (
    RESUME,
    PropagateGradientsReq,
    PropagateGradientsResp,
)
from fxforms.distributed.callback import handles
from fxforms.distributed.calls import ask_command, call_command, send_command
from fxforms.distributed.context import contexts_of
from fxforms.distributed.current import current_agent
from fxforms.distributed.frame import dense
from fxforms.distributed.functions import NO_CONTEXT, edge_of
from fxforms.distributed.futures import Future
from fxforms.distributed.message import MessageType
from fxforms.distributed.passes import BackwardPass, Fired
from fxforms.distributed.registry import register_own
from fxforms.errors import ArgumentError, GradientError, describe

_NOBODY = -1


class _Run:
    """What one worker does for a pass, at the request of the worker ``asker``.

    ``ids`` are those of the context and of the pass.
    """

    def __init__(
        self,
        agent: RpcAgent,
        local: BackwardPass,
        ids: tuple[int, int],
        asker: int,
        retain: bool,
    ) -> None:
        self._agent = agent
        self._context_id, self._pass_id = ids
        self._asker = asker
        self._retain = retain
        self.local = local
        self.answers: list[list[Any]] = []
        self.waiting: dict[int, int] = {}

    def go(self, fired: list[Fired], change: int) -> None:
        """Send on what left this worker, take what comes back, until nothing is under way."""
        done: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()
        under_way = 0
        self._note({self._agent.info.id: change})
        while True:
            requests = [x for x in fired if not self._answered(x)]
            if len(requests) == 1 and not under_way:
                to = self._agent.worker(requests[0].source.worker)
                response: Any = ask_command(self._agent, to, self._request(requests[0]))
            else:
                for request in requests:
                    to = self._agent.worker(request.source.worker)
                    send_command(self._agent, to, self._request(request)).add_done_callback(
                        done.put  # type: ignore[arg-type]
                    )
                under_way += len(requests)
                if not under_way:
                    return
                self._agent.before_waiting()
                response = done.get().value()
                under_way -= 1
            fired = self._take(response)

    def resume(self, workers: Sequence[int]) -> None:
        """Have these workers go on with what they hold."""
        here = self._agent.info.id
        requests = [w for w in workers if w != here]
        fired: list[Fired] = []
        if here in workers:
            fired, change = self.local.resume(self._retain)
            self._note({here: change})
        for worker in requests:
            command = PropagateGradientsReq(
                self._context_id, self._pass_id, RESUME, [], self._retain
            )
            fired += self._take(ask_command(self._agent, self._agent.worker(worker), command))
        self.go(fired, 0)

    def _answered(self, fired: Fired) -> bool:
        """Put what is for the asking worker into the answer to it."""
        if (fired.source.worker, fired.source.context_id) != (self._asker, self._context_id):
            return False
        self.answers.append([fired.source.message_id, _dense(fired.grads)])
        return True

    def _request(self, fired: Fired) -> PropagateGradientsReq:
        if fired.source.context_id != self._context_id:
            raise GradientError(
                f"backward(context_id={self._context_id}): the loss depends on a call that was "
                f"made in {_named(fired.source.context_id)}. Make all calls in one context."
            )
        message_id, grads = fired.source.message_id, _dense(fired.grads)
        return PropagateGradientsReq(
            self._context_id, self._pass_id, message_id, grads, self._retain
        )

    def _take(self, response: Any) -> list[Fired]:
        """What leaves this worker after the gradients in an answer."""
        self._note(response.waiting)
        fired = []
        for message_id, grads in response.grads:
            more, change = self.local.deliver(message_id, grads, self._retain)
            self._note({self._agent.info.id: change})
            fired += more
        return fired

    def _note(self, changes: dict[int, int]) -> None:
        for worker, change in changes.items():
            if change:
                self.waiting[worker] = self.waiting.get(worker, 0) + change
                if not self.waiting[worker]:
                    del self.waiting[worker]


def _named(context_id: int) -> str:
    return "no context" if context_id == NO_CONTEXT else f"context {context_id}"


def _dense(grads: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
    return [x if x is None else dense(x) for x in grads]


@handles(MessageType.BACKWARD_AUTOGRAD_REQ)
def _propagate(command: PropagateGradientsReq, origin: Origin) -> PropagateGradientsResp:
    context = contexts_of(origin.agent).get(command.context_id)
    retain = command.retain_graph
    ids = command.context_id, command.pass_id
    with context.passes.using(command.pass_id) as local:
        run = _Run(origin.agent, local, ids, origin.sender.id, retain)
        if command.message_id == RESUME:
            fired, change = local.resume(retain)
        else:
            fired, change = local.deliver(command.message_id, command.grads, retain)
        run.go(fired, change)
    return PropagateGradientsResp(run.answers, run.waiting)


@register_own
def needed(context_id: int, pass_id: int, message_ids: list[int]) -> list[list[int]]:
    """The send functions, as ``[worker, message id]``, that gradients of these will reach next."""
    context = contexts_of(current_agent()).get(context_id)
    with context.passes.using(pass_id) as local:
        found = local.need(message_ids)
    return [[source.worker, source.message_id] for source in found]


def _find_needed(agent: RpcAgent, context_id: int, pass_id: int, workers: Sequence[int]) -> None:
    """Tell each worker which of its send functions gradients will still come for."""
    told: set[int] = set()
    ahead: dict[int, list[int]] = {worker: [] for worker in workers}
    while ahead:
        reached: dict[int, list[int]] = {}
        for worker, ids in ahead.items():
            command = call_command("backward", needed, (context_id, pass_id, ids), None)
            answer: Any = ask_command(agent, agent.worker(worker), command)
            for other, message_id in answer.value:
                if message_id not in told:
                    told.add(message_id)
                    reached.setdefault(other, []).append(message_id)
        ahead = reached


def backward(
    context_id: int,
    roots: Sequence[torch.Tensor],
    retain_graph: bool = False,
    *,
    mode: Literal["smart", "fast"] = "smart",
) -> None:
    """Accumulate in a context the gradients of ``roots`` with respect to every leaf they depend on.

    The leaves may be on any worker; `get_gradients` there gives what has accumulated. Nothing is
    added to ``.grad``.

    Args:
        context_id: what `context` gave.
        roots: scalar tensors of this worker; the gradients of their sum are taken.
        retain_graph: keep what the pass needs for another one.
        mode: ``"smart"``: results of calls that the roots do not depend on are found and left out.
            ``"fast"``: they are an error where a gradient would have to wait for them; it saves the
            messages that find them.

    Raises:
        ArgumentError: there is no such context, or a root is not a scalar that needs a gradient.
        GradientError: in fast mode, a result of a call is not used.
        RemoteError: a backward rule raised on another worker; it has the type of that error too.
        RpcTimeoutError, WorkerLostError: a worker does not answer, or is gone.

    Example: see `context`.
    """
    agent = current_agent()
    context = contexts_of(agent).get(context_id)
    if mode not in ("smart", "fast"):
        raise ArgumentError(f'backward(mode={mode!r}): expected "smart" or "fast".')
    _check_roots(roots)
    pass_id = agent.new_id()
    with context.passes.using(pass_id, [edge_of(root) for root in roots]) as local:
        run = _Run(agent, local, (context_id, pass_id), _NOBODY, retain_graph)
        run.go(*local.begin([torch.ones_like(root) for root in roots], retain_graph))
        if run.waiting:
            _finish(agent, run, context_id, pass_id, mode)
    context.passes.end(pass_id)


def _finish(agent: RpcAgent, run: _Run, context_id: int, pass_id: int, mode: str) -> None:
    """End a pass that stands still although gradients wait."""
    if mode == "smart":
        workers = list(run.waiting)
        _find_needed(agent, context_id, pass_id, workers)
        run.resume(workers)
    if run.waiting:
        names = ", ".join(repr(agent.worker(id).name) for id in run.waiting)
        advice = 'Use mode="smart", which leaves such results out.' if mode == "fast" else ""
        raise GradientError(
            f"backward(context_id={context_id}): gradients on worker {names} wait for results of "
            f"calls that the loss does not use. {advice}"
        )


def _check_roots(roots: Any) -> None:
    if not isinstance(roots, (list, tuple)):
        raise ArgumentError(
            f"backward(roots=...): got {describe(roots)}. Expected a list of tensors; one root is "
            "[loss]."
        )
    for index, root in enumerate(roots):
        _check_root(root, index)


def _check_root(root: Any, index: int) -> None:
    if not isinstance(root, torch.Tensor):
        why = ""
    elif root.numel() != 1:
        why = f", which has {root.numel()} elements; sum it"
    elif not root.requires_grad:
        why = " that needs no gradient"
    else:
        return
    raise ArgumentError(
        f"backward(roots=...): roots[{index}] is {describe(root)}{why}. Expected a tensor of "
        "one element that depends on one with requires_grad=True, by calls made in the context."
    )
