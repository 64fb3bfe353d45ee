"""``save`` and ``load``: a compiled function in a file, run in another process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import fxforms
from fxforms import errors, grad

RUN = """
import sys, torch, fxforms
f = fxforms.load(sys.argv[1])
result = f({"x": torch.tensor([0.5, 1.0, 2.0])}, 3.0)
print(result["slope"].tolist())
"""


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_another_process_runs_the_file(tmp_path: Path) -> None:
    weight = torch.tensor([1.0, 2.0, 3.0])

    def f(d: dict[str, torch.Tensor], factor: float) -> dict[str, Any]:
        return {"slope": grad(lambda x: factor * (weight * x**2).sum())(d["x"])}

    path = tmp_path / "f.pt2"
    fxforms.save(f, path, {"x": torch.ones(3)}, 3.0)
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[3.0, 12.0, 36.0]"


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(errors.ArgumentError, match="there is no file"):
        fxforms.load(tmp_path / "none.pt2")


def test_what_a_file_cannot_hold_is_told(tmp_path: Path) -> None:
    path = tmp_path / "f.pt2"
    with pytest.raises(errors.TraceError, match="changes tensors in place"):
        fxforms.save(lambda x: x.add_(1), path, torch.ones(2))
    with pytest.raises(errors.TraceError, match="calls Python"):
        fxforms.save(lambda x: fxforms.pure_callback(torch.sin, x, x), path, torch.ones(2))
    assert not path.exists()
