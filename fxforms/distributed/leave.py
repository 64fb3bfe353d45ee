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


class _Points:
    """On worker 0: who has come to which point."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.arrived: dict[str, set[int]] = {}


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
        return points.changed.wait_for(lambda: _complete(agent, arrived), _POLL)


def _complete(agent: RpcAgent, arrived: set[int]) -> bool:
    return all(info.id in arrived or info.id in agent.lost for info in agent.workers)


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
            return
        if end is not None and time.monotonic() > end:
            raise RpcTimeoutError(
                f"shutdown(timeout={timeout:g}): not every worker called shutdown within it. A "
                "worker still runs, or failed; shutdown(graceful=False) does not wait for it."
            )


def staying(agent: RpcAgent) -> int:
    """On worker 0: how many others have not left; on any other, 0.

    Worker 0 leaves last, so that none finds it gone that was told to ask again, or whose link ended
    before it had read the last answer from the pipe beside.
    """
    if agent.info.id:
        return 0
    return sum(info.id != 0 and info.id not in agent.lost for info in agent.workers)


def drain(count: Callable[[], int], timeout: float) -> None:
    """Wait until ``count()`` is zero, or time is up."""
    end = time.monotonic() + timeout
    while count() and time.monotonic() < end:
        time.sleep(0.001)
