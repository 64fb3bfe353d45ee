"""The coverage run: how a pair is judged, what a crash does, how a run resumes, what it reports."""

from __future__ import annotations

import io
import json
import os
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from expecttest import assert_expected_inline
from rich.console import Console

from opinfo_db.cli.coverage import UnknownOperator, run_coverage
from opinfo_db.cli.kinds import KINDS, OTHER, kind_of
from opinfo_db.cli.measure import COMPOSITIONS, SIDES, Outcome, measure, measured_ops
from opinfo_db.cli.page import coverage_page
from opinfo_db.cli.results import Record, ShardFile, count, pairs, read_records, write_merged
from opinfo_db.cli.shard import Shard
from opinfo_db.cli.tables import composition_table
from opinfo_db.cli.worker import Worker

PAGE = Path(__file__).parents[2] / "docs" / "coverage.md"
OPS = measured_ops()
TWO = {"vmap", "vmapvmap"}
WHOLE = Shard(1, 1)


def console() -> Console:
    return Console(file=io.StringIO(), width=100)


def printed(to: Console) -> str:
    assert isinstance(to.file, io.StringIO)
    return "\n".join(line.rstrip() for line in to.file.getvalue().splitlines()) + "\n"


def record(operator: str, ours: Outcome, theirs: Outcome) -> Record:
    """A record in which two compositions have these outcomes and all others are right."""
    right = {side: Outcome("right", "", 2) for side in SIDES}
    both = dict(zip(SIDES, (ours, theirs), strict=True))
    outcomes = {name: both if name in TWO else right for name in COMPOSITIONS}
    return Record(operator, 1.5, outcomes)


RIGHT = Outcome("right", "", 3)
RECORDS = [
    record("sin", RIGHT, RIGHT),
    record("cos", RIGHT, Outcome("failed", "wrong value in vmap[0]: ...")),
    record("where", Outcome("failed", "raised RuntimeError: calling .item() on a|b"), RIGHT),
    record("eig", *[Outcome("skipped", "torch declares no jvp")] * 2),
]


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("composition", COMPOSITIONS)
def test_a_right_pair(composition: str, side: str) -> None:
    outcome = measure(OPS["sin"], composition, side)
    assert (outcome.status, outcome.reason) == ("right", "")
    assert outcome.assertions >= 2


@pytest.mark.parametrize("side", SIDES)
def test_a_failed_pair(side: str) -> None:
    outcome = measure(OPS["masked_select"], "vmap", side)
    assert outcome.status == "failed"
    assert outcome.reason.startswith("raised RuntimeError: vmap: ")


def test_a_wrong_value_is_told_in_short() -> None:
    entry = replace(OPS["sin"], reference=lambda x, **_: torch.cos(x))
    outcome = measure(entry, "vmap", "fxforms")
    assert outcome.status == "failed"
    assert re.fullmatch(
        r"wrong value in vmap\[0\]: the largest difference is 1\.\d+, allowed 0\.00\d+",
        outcome.reason,
    )


def test_a_skipped_pair() -> None:
    expected = Outcome("skipped", "torch declares no double backward")
    assert measure(OPS["cdist"], "vjpvjp", "fxforms") == expected


def test_shards_are_all_there_is() -> None:
    names = list(OPS)
    parts = [Shard(index, 7).of(names) for index in range(1, 8)]
    assert sorted(name for part in parts for name in part) == sorted(names)


@pytest.mark.parametrize("text", ["0/8", "9/8", "3", "x/2", "-1/2"])
def test_a_bad_shard(text: str) -> None:
    with pytest.raises(ValueError, match=r"shard|invalid literal"):
        Shard.parse(text)


def test_a_crash_ends_one_pair() -> None:
    right = measure(OPS["sin"], "vmap", "fxforms")
    with Worker(timeout=120.0) as worker:
        assert worker.measure("sin", "vmap", "fxforms") == right
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        crashed = worker.measure("sin", "vmap", "fxforms")
        assert crashed == Outcome("failed", "the process died, exit code -9")
        assert worker.measure("sin", "vmap", "fxforms") == right


def test_a_hang_ends_one_pair() -> None:
    with Worker(timeout=0.0) as impatient:
        hung = impatient.measure("sin", "vmap", "fxforms")
    assert hung == Outcome("failed", "no answer within 0 s")


def test_a_record_survives_json(tmp_path: Path) -> None:
    file = ShardFile(tmp_path, 1, 2)
    for one in RECORDS:
        file.append(one)
    assert list(read_records(tmp_path).values()) == RECORDS


def test_half_a_line_is_dropped(tmp_path: Path) -> None:
    file = ShardFile(tmp_path, 1, 1)
    file.append(RECORDS[0])
    (path,) = tmp_path.iterdir()
    with path.open("a") as torn:
        torn.write('{"operator": "co')
    assert list(read_records(tmp_path)) == ["sin"]
    ShardFile(tmp_path, 1, 1).append(RECORDS[1])
    assert list(read_records(tmp_path)) == ["sin", "cos"]


def test_the_merged_file_counts(tmp_path: Path) -> None:
    write_merged(tmp_path / "all.json", RECORDS)
    counts = json.loads((tmp_path / "all.json").read_text())["counts"]
    assert counts["fxforms"]["vmap"] == {"right": 2, "failed": 1, "skipped": 1}
    assert counts["torch.func"]["grad"] == {"right": 4, "failed": 0, "skipped": 0}


def test_counting() -> None:
    found = list(pairs(RECORDS))
    assert len(found) == len(RECORDS) * len(COMPOSITIONS)
    assert count(found, "fxforms", "failed") == 2
    assert count(found, "torch.func", "right", "vmapvmap") == 2


def test_a_run_resumes_and_reports(tmp_path: Path) -> None:
    """The first run measures one shard; the second the rest, and then writes the report."""
    only, page = ["sin", "masked_select"], tmp_path / "coverage.md"
    first, second = console(), console()
    run_coverage(tmp_path, Shard(1, 2), only, page, first)
    assert "1 of 2 operators are not measured yet" in printed(first)
    assert not page.exists()
    (path,) = tmp_path.glob("shard-*.jsonl")
    before = path.read_text()
    run_coverage(tmp_path, WHOLE, only, page, second)
    assert path.read_text() == before
    assert {r.operator for r in read_records(tmp_path).values()} == set(only)
    assert "2 operators, " in printed(second)
    assert "`masked_select` | vmap, " in page.read_text()
    merged = json.loads((tmp_path / "coverage.json").read_text())
    assert merged["counts"]["fxforms"]["grad"]["right"] == 2


def test_an_unknown_operator(tmp_path: Path) -> None:
    with pytest.raises(UnknownOperator, match=r"no operator \['sine'\] among the \d+"):
        run_coverage(tmp_path, WHOLE, ["sine"], None, console())


@pytest.mark.parametrize(
    ("reason", "title"),
    [
        ("wrong value in vmap[0]: the largest difference is 1, allowed 0.1", "Wrong value"),
        ("vjp[1]: shape is (2,), expected (3,)", "Wrong value"),
        ("no answer within 60 s", "Crash or hang"),
        (
            "raised RuntimeError: vmap: It looks like you're calling .item() on a Tensor.",
            "Values read by the operator",
        ),
        ("raised RuntimeError: Batching rule not implemented for aten::x", "No batching rule"),
        ("raised RuntimeError: Sparse CSR tensors do not have strides", "Sparse tensors"),
        ("raised KeyError: 3", OTHER.title),
    ],
)
def test_kinds(reason: str, title: str) -> None:
    assert kind_of(reason).title == title


def test_kinds_have_titles_of_their_own() -> None:
    titles = [kind.title for kind in (*KINDS, OTHER)]
    assert len(set(titles)) == len(titles)


def test_the_table() -> None:
    to = console()
    to.print(composition_table(RECORDS))
    assert_expected_inline(
        printed(to),
        """\
+-------------+---------+---------+---------+------------+------------+------------+
|             | fxforms | fxforms | fxforms | torch.func | torch.func | torch.func |
| composition |   right |  failed | skipped |      right |     failed |    skipped |
+-------------+---------+---------+---------+------------+------------+------------+
| grad        |       4 |       0 |       0 |          4 |          0 |          0 |
| vjp         |       4 |       0 |       0 |          4 |          0 |          0 |
| jvp         |       4 |       0 |       0 |          4 |          0 |          0 |
| vmap        |       2 |       1 |       1 |          2 |          1 |          1 |
| vjpvjp      |       4 |       0 |       0 |          4 |          0 |          0 |
| jvpvjp      |       4 |       0 |       0 |          4 |          0 |          0 |
| vmapvjp     |       4 |       0 |       0 |          4 |          0 |          0 |
| vmapjvp     |       4 |       0 |       0 |          4 |          0 |          0 |
| vmapvmap    |       2 |       1 |       1 |          2 |          1 |          1 |
| vmapvjpvjp  |       4 |       0 |       0 |          4 |          0 |          0 |
| vmapjvpvjp  |       4 |       0 |       0 |          4 |          0 |          0 |
+-------------+---------+---------+---------+------------+------------+------------+
| all         |      40 |       2 |       2 |         40 |          2 |          2 |
+-------------+---------+---------+---------+------------+------------+------------+
""",
    )


def test_the_page() -> None:
    body = coverage_page(RECORDS).partition("## Right on one side only")[2]
    assert_expected_inline(
        body,
        """\


40 pairs are right with `fxforms`, 40 with `torch.func`.

Right with `torch.func` and not with `fxforms`: 2.

| operator | compositions | first line |
|---|---|---|
| `where` | vmap, vmapvmap | `raised RuntimeError: calling .item() on a/b` |

Right with `fxforms` and not with `torch.func`: 2.

| operator | compositions | first line |
|---|---|---|
| `cos` | vmap, vmapvmap | `wrong value in vmap[0]: ...` |

## Failed with `fxforms`, by kind

### Values read by the operator: 2

A batch has many values and no storage of its own, and the operator reads one of them.

| operator | compositions | first line |
|---|---|---|
| `where` | vmap, vmapvmap | `raised RuntimeError: calling .item() on a/b` |

## Skipped with `fxforms`: 2

| operator | compositions | first line |
|---|---|---|
| `eig` | vmap, vmapvmap | `torch declares no jvp` |
""",
    )


def test_the_committed_page_reaches_the_target() -> None:
    """At least as many pairs are right as with torch.func, over all operators."""
    found = re.search(r"^(\d+) pairs are right with `fxforms`, (\d+) with", PAGE.read_text(), re.M)
    assert found
    ours, theirs = map(int, found.groups())
    assert ours >= theirs > 4000
    assert f"{len(OPS)} operators" in PAGE.read_text()
