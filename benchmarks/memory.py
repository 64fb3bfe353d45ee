"""What stays in memory after many calls, with the garbage collector off.

A cycle that keeps a tensor until the collector finds it is a gain here, as it is for a user whose
memory fills up between two collections.
"""

import gc
from dataclasses import dataclass

import psutil
import torch

from benchmarks.timing import Side, collector_paused

WARM_UP_CALLS = 200
PROCESS = psutil.Process()


@dataclass(frozen=True)
class Gain:
    """What `calls` calls left behind."""

    calls: int
    tensors: int
    objects: int
    resident_bytes: int


def gain(side: Side, calls: int) -> Gain:
    """Call a side `calls` times after a warm-up and compare what is alive before and after."""
    with collector_paused():
        for _ in range(WARM_UP_CALLS):
            side()
        alive()
        gc.collect()
        before = alive()
        for _ in range(calls):
            side()
        after = alive()
    return Gain(calls, *(new - old for new, old in zip(after, before, strict=True)))


def alive() -> tuple[int, int, int]:
    """Tensors, objects the collector tracks, and resident bytes; frozen objects are not counted."""
    objects = gc.get_objects()
    tensors = sum(issubclass(type(thing), torch.Tensor) for thing in objects)
    return tensors, len(objects), PROCESS.memory_info().rss
