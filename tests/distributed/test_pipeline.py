"""The example: three processes started by one command, equal to one process."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_pipeline_trains_as_one_process_does() -> None:
    command = [sys.executable, "-W", "ignore", str(ROOT / "examples" / "pipeline.py")]
    done = subprocess.run(
        [*command, "--epochs", "5"], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    numbers = re.findall(r"(\S+)\n", done.stdout)
    accuracy, difference, hessian = float(numbers[0].rstrip("%")), *map(float, numbers[1:])
    assert accuracy > 70
    assert difference < 1e-12
    assert hessian < 1e-12
    assert "three processes" in done.stderr
    assert "100%" in done.stderr
