"""What the README says in "Beside torch.func": one probe a row, run on both libraries."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

Probe = Callable[[Any], None]

TORCH_FUNC = SimpleNamespace(Function=torch.autograd.Function, **vars(torch.func))
X = torch.tensor([0.5, -1.25], dtype=torch.float64)
PROBES: dict[str, Probe] = {}


def row(what: str) -> Callable[[Probe], Probe]:
    """Make a function the probe of the row that begins with ``what``."""

    def register(probe: Probe) -> Probe:
        PROBES[what] = probe
        return probe

    return register
