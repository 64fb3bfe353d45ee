"""Ids of what has ended, in case something of it still arrives."""

from __future__ import annotations

from collections import OrderedDict

_MOST = 4096  # for what never arrives would be kept for good


class Remembered:
    """The latest of the ids that were added; its holder has the lock."""

    def __init__(self) -> None:
        self._ids: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, id: int) -> bool:
        return id in self._ids

    def add(self, id: int) -> None:
        """Remember ``id``, and forget the oldest if there are too many."""
        self._ids[id] = None
        if len(self._ids) > _MOST:
            self._ids.popitem(last=False)

    def take(self, id: int) -> bool:
        """Forget ``id``; True if it was there."""
        if id not in self._ids:
            return False
        del self._ids[id]
        return True
