"""The first call, each time in a process of its own with empty caches.

Two waits: until there is an answer, which fxforms gives on the traced graph while it compiles, and
until compiled code gives it. Imports and data are not in the time; it is that of the clock, as
compilers run in processes of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import optree
import torch

import fxforms
from benchmarks.eager.sides import FXFORMS, tiny
from benchmarks.staged import derivatives, models
from benchmarks.staged import tiny as tiny_work
from benchmarks.staged.peers import JAX, ONE_THREAD, TORCH_COMPILE, Build, jax, no_jax, to_jax
from benchmarks.staged.per_sample import per_sample
from benchmarks.timing import Side, Timing
from benchmarks.workload import Result, Workload, assert_same

ROUNDS = 2
COMPILED = "fxforms, wait"
ANSWER_BOUNDS = {JAX: 1.5}
COMPILED_BOUNDS = {TORCH_COMPILE: 0.5}
ROOT = Path(__file__).parent.parent.parent


def perceptron() -> Sequence[Any]:
    """The arguments of the per-sample gradients."""
    return [models.dense(784, 128, 10), models.data(64, 784), models.labels(64, 10)]


CASES: dict[str, tuple[Build, Callable[[], Sequence[Any]]]] = {
    "grad, n=5": (tiny_work.grad, lambda: [tiny(5)]),
    "hessian, 2-layer MLP": (
        derivatives.hessian,
        lambda: [models.dense(32, 64, 1), models.data(32)],
    ),
    "per-sample gradients, MLP": (per_sample(models.mlp), perceptron),
}


def side(label: str, build: Build, arguments: Sequence[Any]) -> Side:
    """One call of a side, nothing of it prepared."""
    if label == JAX:
        if jax is None:
            return no_jax
        f, block, converted = (
            jax.jit(build(jax, jax.numpy)),
            jax.block_until_ready,
            to_jax(arguments),
        )
        return lambda: block(f(*converted))
    if label == TORCH_COMPILE:
        torch.compiler.reset()  # imports the compiler
        return partial(torch.compile(build(torch.func, torch), fullgraph=True), *arguments)
    wait = "wait" if label == COMPILED else "background"
    return partial(fxforms.jit(build(fxforms, torch), compile=wait), *arguments)


def first_call(name: str, label: str, out: Path) -> None:
    """Make the call in this process and end it; the seconds and the output go to a file."""
    torch.set_num_threads(1)
    build, arguments = CASES[name]
    call = side(label, build, arguments())
    start = time.perf_counter()
    output = call()
    seconds = time.perf_counter() - start
    numbers = [np.asarray(leaf).tolist() for leaf in optree.tree_leaves(output)]
    out.write_text(json.dumps([seconds, numbers]))
    os._exit(0)  # what is still being compiled is of no use to anyone


def measured(name: str, label: str) -> tuple[float, list[torch.Tensor]]:
    """The seconds and the output of a first call, in a new process with empty caches."""
    with tempfile.TemporaryDirectory() as folder:
        # Inductor keeps its caches, the precompiled headers too, in the folder for temporary files.
        fresh = {"TMPDIR": folder, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        out = Path(folder) / "result.json"
        words = [sys.executable, "-m", __name__, name, label, str(out)]
        environment = {**os.environ, **ONE_THREAD, **fresh}
        # Reads the pipes to their end: a compiler that outlives the process would disturb the next.
        done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
        if not out.exists():
            raise RuntimeError(done.stderr.strip().splitlines()[-1])
        seconds, numbers = json.loads(out.read_text())
        return seconds, [torch.tensor(number) for number in numbers]


class FirstCalls(Workload):
    """A workload whose sides give the seconds they took and their output."""

    def run(self, rounds: int) -> Result:
        """Time the sides in turn, and compare their outputs every time."""
        seconds: dict[str, list[float]] = {label: [] for label in self.sides}
        for _ in range(min(rounds, ROUNDS)):
            outputs = []
            for label, call in self.sides.items():
                took, output = call()
                seconds[label].append(took)
                outputs.append(output)
                assert_same(output, outputs[0], f"{label} and {FXFORMS}", self.tolerance)
        once = dict.fromkeys(self.sides, 1)
        return Result(self, Timing(once, {k: np.array(took) for k, took in seconds.items()}))


def workload(name: str, wait: str, labels: Sequence[str], bounds: Mapping[str, float]) -> Workload:
    """A first call of some sides."""
    sides = {label: partial(measured, name, label) for label in labels}
    return FirstCalls("first call, caches off", f"{wait}: {name}", sides, bounds, tolerance=1e-4)


def workloads() -> list[Workload]:
    """Both waits for each case."""
    return [
        made
        for name in CASES
        for made in (
            workload(name, "answer", [FXFORMS, JAX], ANSWER_BOUNDS),
            workload(name, "compiled", [COMPILED, TORCH_COMPILE], COMPILED_BOUNDS),
        )
    ]


if __name__ == "__main__":
    first_call(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
