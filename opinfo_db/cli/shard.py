"""A part of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shard:
    """Part ``index`` of ``total``, counted from 1: every ``total``-th name."""

    index: int
    total: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """The shard written as ``2/8``.

        Raises:
            ValueError: it is not of that form, or the index is not among the total.

        Example:
            >>> Shard.parse("2/8")
            Shard(index=2, total=8)
        """
        index, _, total = text.partition("/")
        shard = cls(int(index), int(total))
        if not 1 <= shard.index <= shard.total:
            raise ValueError(f"shard {text}: the first number must be from 1 to {total}.")
        return shard

    def of(self, names: Sequence[str]) -> Sequence[str]:
        """The names in this shard.

        Example:
            >>> Shard(2, 3).of(["a", "b", "c", "d", "e"])
            ['b', 'e']
        """
        return names[self.index - 1 :: self.total]
