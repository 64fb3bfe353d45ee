"""What a coverage run found, and the JSON that it is kept in: one line an operator."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from opinfo_db.cli.measure import COMPOSITIONS, SIDES, Outcome


@dataclass(frozen=True, slots=True)
class Record:
    """One operator: how long it took, and the outcome of each composition on each side."""

    operator: str
    seconds: float
    outcomes: dict[str, dict[str, Outcome]]

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Record:
        """The inverse of :meth:`to_json`."""
        outcomes = {
            composition: {side: Outcome(**outcome) for side, outcome in sides.items()}
            for composition, sides in data["outcomes"].items()
        }
        return cls(data["operator"], data["seconds"], outcomes)


@dataclass(frozen=True, slots=True)
class Pair:
    """One operator under one composition, with the outcome of each side."""

    operator: str
    composition: str
    outcomes: dict[str, Outcome]

    def status(self, side: str) -> str:
        """The status on ``side``."""
        return self.outcomes[side].status


def pairs(records: Iterable[Record]) -> Iterator[Pair]:
    """All pairs, by operator and then by composition."""
    for record in sorted(records, key=lambda r: r.operator):
        for composition in COMPOSITIONS:
            yield Pair(record.operator, composition, record.outcomes[composition])


def count(found: Iterable[Pair], side: str, status: str, composition: str | None = None) -> int:
    """How many pairs have ``status`` on ``side``; of one composition, or of all."""
    return sum(
        pair.status(side) == status and composition in (None, pair.composition) for pair in found
    )


def assertions(records: Iterable[Record]) -> int:
    """How many assertions were made, on both sides."""
    return sum(
        outcome.assertions
        for record in records
        for sides in record.outcomes.values()
        for outcome in sides.values()
    )


class ShardFile:
    """The records of one shard, appended as they come, so that a run can be resumed."""

    def __init__(self, folder: Path, index: int, total: int) -> None:
        """The file of shard ``index`` (from 1) of ``total`` in ``folder``, which is made."""
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"shard-{index}-of-{total}.jsonl"
        if self._path.exists():
            # A run that was killed can leave half a line, which the next one would continue.
            whole = [line for line in self._path.read_text().splitlines(True) if line[-1] == "\n"]
            self._path.write_text("".join(whole))

    def append(self, record: Record) -> None:
        """Write ``record`` and close the file, so that it is there if the run is killed."""
        with self._path.open("a") as file:
            file.write(json.dumps(record.to_json()) + "\n")


def read_records(folder: Path) -> dict[str, Record]:
    """The whole lines of all shards in ``folder``, by operator."""
    found = {}
    for path in sorted(folder.glob("shard-*.jsonl")):
        for line in path.read_text().splitlines(True):
            if line.endswith("\n"):
                record = Record.from_json(json.loads(line))
                found[record.operator] = record
    return found


def write_merged(path: Path, records: Iterable[Record]) -> None:
    """All records as one JSON file, with the counts by composition and side."""
    records = sorted(records, key=lambda r: r.operator)
    found = list(pairs(records))
    counts = {
        side: {
            composition: {s: count(found, side, s, composition) for s in STATUSES}
            for composition in COMPOSITIONS
        }
        for side in SIDES
    }
    data = {"counts": counts, "operators": [record.to_json() for record in records]}
    path.write_text(json.dumps(data, indent=1) + "\n")


STATUSES = ("right", "failed", "skipped")
