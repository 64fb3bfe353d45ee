"""How workers agree to leave: each tells worker 0 that it has come to a point, and waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from fxforms.distributed.agent import RpcAgent, prepare
from fxforms.distributed.calls import ask_command, call_command
from fxforms.distributed.current import current_agent
from fxforms.distributed.registry import register_own
from fxforms.errors import RpcTimeoutError

_POLL = 1.0  # seconds that worker 0 holds a question; a worker asks again
_GRACE = 30.0  # more seconds for an answer
_LAST = 5.0  # seconds that worker 0 waits for those who ask again


class _Points:
    """On worker 0: who has come to which point."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.arrived: dict[str, set[int]] = {}
        self.told: dict[str, set[int]] = {}  # those who know that all have come


@prepare
def _prepare(agent: RpcAgent) -> None:
    agent.state["points"] = _Points()


@register_own
def arrive(point: str, rank: int) -> bool:
    """Note that worker ``rank`` has come to ``point``; True when all that live have."""
    agent = current_agent()
    points: _Points = agent.state["points"]
    with points.changed:
        arrived = points.arrived.setdefault(point, set())
        arrived.add(rank)
        points.changed.notify_all()
        complete = points.changed.wait_for(lambda: _complete(agent, arrived), _POLL)
        if complete:
            points.told.setdefault(point, set()).add(rank)
        return complete


def _complete(agent: RpcAgent, arrived: set[int]) -> bool:
    return all(info.id in arrived or info.id in agent.lost for info in agent.workers)


def _untold(agent: RpcAgent, point: str) -> int:
    """On worker 0: how many that live will still ask whether all have come to ``point``."""
    told = agent.state["points"].told[point]
    return sum(info.id not in told and info.id not in agent.lost for info in agent.workers)


def barrier(agent: RpcAgent, point: str, timeout: float | None) -> None:
    """Wait until every worker that lives has come to ``point``.

    Raises:
        RpcTimeoutError: that took longer than ``timeout`` seconds.
        WorkerLostError: worker 0 is gone.
    """
    end = None if timeout is None else time.monotonic() + timeout
    leader = agent.worker(0)
    while True:
        command = call_command("shutdown", arrive, (point, agent.info.id), None)
        answer = ask_command(agent, leader, command, _POLL + _GRACE)
        if answer.value:  # type: ignore[attr-defined]
            if agent.info.id == 0:  # one that has just been told to ask again needs an answer too
                drain(lambda: _untold(agent, point), _LAST)
            return
        if end is not None and time.monotonic() > end:
            raise RpcTimeoutError(
                f"shutdown(timeout={timeout:g}): not every worker called shutdown within it. A "
                "worker still runs, or failed; shutdown(graceful=False) does not wait for it."
            )


def drain(count: Callable[[], int], timeout: float) -> None:
    """Wait until ``count()`` is zero, or time is up."""
    end = time.monotonic() + timeout
    while count() and time.monotonic() < end:
        time.sleep(0.001)
