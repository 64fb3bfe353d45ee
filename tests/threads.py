"""Running one body in several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable


def run_threads(count: int, body: Callable[[int], None]) -> None:
    """Run ``body(index)`` in ``count`` threads; raise the first exception of any."""
    raised: list[BaseException] = []
    barrier = threading.Barrier(count)

    def run(index: int) -> None:
        try:
            barrier.wait()
            body(index)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]
