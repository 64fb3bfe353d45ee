"""How time grows along a series of workloads: a line, and how far the points are off it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.workload import Result


@dataclass(frozen=True)
class Growth:
    """The line through a series of one side: seconds a step, and the worst relative deviation."""

    family: str
    label: str
    seconds_per_step: float
    worst_deviation: float


def growths(results: Sequence[Result]) -> list[Growth]:
    """The growth of each family that has at least three sizes, for each of its sides."""
    series: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for result in results:
        if result.timing is None or result.workload.size is None:
            continue
        for label in result.workload.sides:
            point = (result.workload.size, result.timing.median(label))
            series.setdefault((result.workload.family, label), []).append(point)
    return [fit(*key, points) for key, points in series.items() if len(points) >= 3]


def fit(family: str, label: str, points: Sequence[tuple[int, float]]) -> Growth:
    """Least squares on relative errors, so that small sizes count as much as large ones."""
    sizes, seconds = np.array(points, dtype=float).T
    slope, offset = np.polyfit(sizes, seconds, 1, w=1 / seconds)
    deviation = np.abs((slope * sizes + offset) / seconds - 1).max()
    return Growth(family, label, float(slope), float(deviation))
