"""What the workers of this process hold."""

from __future__ import annotations

import threading
from collections import Counter

from fxforms.distributed import current
from fxforms.distributed.pool import PREFIX


def debug_info() -> dict[str, int]:
    """How much the workers of this process hold; all is zero after `shutdown`.

    Returns:
        A count for each kind of thing: ``requests`` that are not answered yet, ``serving``
        requests of others, ``threads``, ``owned_rrefs``, ``used_rrefs``, ``pending_forks``, and
        what distributed autograd keeps.

    Example:
        >>> from fxforms import distributed
        >>> distributed.debug_info()["threads"]
        0
    """
    total: Counter[str] = Counter(requests=0, serving=0, owned_rrefs=0, used_rrefs=0)
    total["threads"] = sum(thread.name.startswith(PREFIX) for thread in threading.enumerate())
    for agent in current.known_agents():
        total.update({"requests": agent.asking(), "serving": agent.serving()})
        for counts in agent.counts:
            total.update(counts())
    return dict(total)
