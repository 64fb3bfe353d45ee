"""Each row of the README's table "Beside torch.func" is true of the torch that is installed.

A row's probe runs on both libraries. On fxforms it passes; on torch.func it fails in the way that
the table says: "wrong value" (its assertion fails), "error" (something else is raised), "absent"
(the name is not there).
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from beside import PROBES, TORCH_FUNC, Probe, functions, transforms
from markdown_blocks import ROOT

import fxforms

MODULES = (functions, transforms)  # importing them fills PROBES


def table() -> dict[str, str]:
    """What the README says of torch.func, by row."""
    section = (ROOT / "README.md").read_text().split("## Beside torch.func")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \| .+? \|$", section, re.MULTILINE)
    return dict(rows[1:])  # the first is the heading


def outcome(probe: Probe, library: Any) -> str:
    """How ``probe`` ends on ``library``, in the words of the table."""
    try:
        probe(library)
    except AttributeError:
        return "absent"
    except AssertionError as error:
        own = error.__traceback__.tb_next.tb_next is None
        return "wrong value" if own else "error"
    except Exception:
        return "error"
    return "right"


def test_each_row_has_a_probe() -> None:
    assert set(table()) == set(PROBES)


@pytest.mark.parametrize("what", PROBES)
def test_fxforms_is_right(what: str) -> None:
    PROBES[what](fxforms)


# Dynamo makes an instance of a Function class where it traces torch.func's grad.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("what", [what for what in PROBES if "threads" not in what])
def test_torch_func_does_as_the_table_says(what: str) -> None:
    assert outcome(PROBES[what], TORCH_FUNC) == table()[what].split(":")[0]
