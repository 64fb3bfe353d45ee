"""The sides of the staged workloads: fxforms.jit, jax.jit, torch.compile, torch.func.

JAX is not a dependency of fxforms. Where it is missing the rows say so, and the others are timed.
"""

import importlib
import importlib.util
import os
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import optree
import torch

import fxforms
from benchmarks.eager.sides import FXFORMS, TORCH_FUNC
from benchmarks.timing import Side

JAX = "jax.jit"
TORCH_COMPILE = "torch.compile"

# JAX makes its pool of threads when it is first used. NPROC sets the pool's size; the flag alone
# leaves the matrix products with all cores.
ONE_THREAD = {
    "NPROC": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "JAX_PLATFORMS": "cpu",
}

Build = Callable[[Any, Any], Callable[..., Any]]


def load_jax() -> ModuleType | None:
    """JAX on one thread, on the processor; None where it is not installed."""
    if importlib.util.find_spec("jax") is None:
        return None
    os.environ.update(ONE_THREAD)
    return importlib.import_module("jax")


jax = load_jax()


def sides(build: Build, arguments: Sequence[Any]) -> dict[str, Side]:
    """The same work on all sides; `build(api, xp)` is the function of one library.

    `api` has the transforms, `xp` the arithmetic: torch or jax.numpy.
    """
    staged = fxforms.jit(build(fxforms, torch), compile="wait")
    plain = build(torch.func, torch)
    return {
        FXFORMS: partial(staged, *arguments),
        JAX: jax_side(build, arguments),
        TORCH_COMPILE: partial(torch.compile(plain, fullgraph=True), *arguments),
        TORCH_FUNC: partial(plain, *arguments),
    }


def jax_side(build: Build, arguments: Sequence[Any]) -> Side:
    """The function under jax.jit, until its answer is there."""
    if jax is None:
        return no_jax
    jitted, converted = jax.jit(build(jax, jax.numpy)), to_jax(arguments)
    if optree.treespec_is_leaf(optree.tree_structure(jitted.eval_shape(*converted))):
        return lambda: jitted(*converted).block_until_ready()
    block = jax.block_until_ready
    return lambda: block(jitted(*converted))


def no_jax() -> None:
    """What stands for JAX where there is none: the row says why it has no time."""
    raise ModuleNotFoundError("jax is not installed")


def to_jax(tree: Any) -> Any:
    """A tree of tensors as a tree of JAX arrays."""
    assert jax
    return optree.tree_map(lambda tensor: jax.numpy.asarray(np.asarray(tensor)), tree)
