"""The coverage page: tables by composition, differences between the sides, failures by kind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from opinfo_db.checks.transforms import FXFORMS, TORCH_FUNC
from opinfo_db.cli.kinds import KINDS, OTHER, kind_of
from opinfo_db.cli.measure import IN_DIMS, SAMPLES
from opinfo_db.cli.results import Pair, Record, count, pairs
from opinfo_db.cli.tables import composition_head, composition_rows, summary_line

_OURS, _THEIRS = FXFORMS.name, TORCH_FUNC.name


def coverage_page(records: Iterable[Record]) -> str:
    """The page as Markdown."""
    records = list(records)
    found = list(pairs(records))
    parts = [
        _introduction(records),
        "## By composition",
        markdown_table(composition_head(), composition_rows(records)),
        *_differences(found),
        *_failures(found),
        *_skips(found),
    ]
    return "\n\n".join(parts) + "\n"


def _introduction(records: Sequence[Record]) -> str:
    """What was measured and how it was judged."""
    return f"""# Coverage of torch's operators

Made by `python -m opinfo_db coverage --page docs/coverage.md`; do not edit. torch
{torch.__version__}, float32, CPU: every operator of torch's database that supports autograd, its
first {SAMPLES} samples each. {summary_line(records)}.

A pair of operator and composition is *right* if every case of it equals the oracle within
tolerance: plain autograd for reverse mode, the transposed pullback or a finite difference for
forward mode, a loop over the batch for `vmap`. With `vmap`, up to {IN_DIMS} choices of `in_dims`
are cases: all tensors at 0, all at -1, only the first. A case whose oracle cannot run is left out.
A pair is *skipped* if no case is left, or if torch declares that the derivative does not exist.
All else is *failed*, whatever the cause, and be it the oracle that is wrong. `torch.func` is
measured in the same way, on the same samples."""


def _differences(found: Sequence[Pair]) -> list[str]:
    """The pairs that are right on one side only."""
    ours, theirs = (count(found, side, "right") for side in (_OURS, _THEIRS))
    parts = [
        "## Right on one side only",
        f"{ours} pairs are right with `{_OURS}`, {theirs} with `{_THEIRS}`.",
    ]
    for right, wrong in ((_THEIRS, _OURS), (_OURS, _THEIRS)):
        only = [p for p in found if p.status(right) == "right" and p.status(wrong) != "right"]
        parts.append(f"Right with `{right}` and not with `{wrong}`: {len(only)}.")
        parts += _listing(only, wrong)
    return parts


def _failures(found: Sequence[Pair]) -> list[str]:
    """Every pair that errs with fxforms, by kind."""
    failed = [pair for pair in found if pair.status(_OURS) == "failed"]
    parts = [f"## Failed with `{_OURS}`, by kind"]
    for kind in (*KINDS, OTHER):
        own = [pair for pair in failed if kind_of(pair.outcomes[_OURS].reason) is kind]
        if own:
            parts += [f"### {kind.title}: {len(own)}", kind.meaning, *_listing(own, _OURS)]
    return parts


def _skips(found: Sequence[Pair]) -> list[str]:
    """Every pair that was skipped with fxforms."""
    skipped = [pair for pair in found if pair.status(_OURS) == "skipped"]
    return [f"## Skipped with `{_OURS}`: {len(skipped)}", *_listing(skipped, _OURS)]


def _listing(found: Sequence[Pair], side: str) -> list[str]:
    """A table of pairs and reasons; pairs of one operator with one reason share a row."""
    if not found:
        return []
    rows: dict[tuple[str, str], list[str]] = {}
    for pair in found:
        reason = pair.outcomes[side].reason
        rows.setdefault((pair.operator, reason), []).append(pair.composition)
    lines = [[f"`{name}`", ", ".join(own), _cell(reason)] for (name, reason), own in rows.items()]
    return [markdown_table(["operator", "compositions", "first line"], lines)]


def _cell(text: str) -> str:
    """``text`` as code inside a table: no pipe ends the cell, no backtick ends the code."""
    return f"`{text.replace('|', '/').replace('`', chr(39))}`"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table.

    Example:
        >>> print(markdown_table(["a", "b"], [["1", "2"]]))
        | a | b |
        |---|---|
        | 1 | 2 |
    """
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])
