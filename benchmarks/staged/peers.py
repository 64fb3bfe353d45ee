"""The sides of the staged workloads: fxforms.jit, jax.jit, torch.compile, torch.func.

JAX is not a dependency of fxforms. Where it is missing, its sides are left out and the run says so.
"""

import importlib
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
ONE_THREAD = {"NPROC": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}

Build = Callable[[Any, Any], Callable[..., Any]]


def load_jax() -> ModuleType | None:
    """JAX on one thread, on the processor; None where it is not installed."""
    if importlib.util.find_spec("jax") is None:
        return None
    os.environ.update(ONE_THREAD, JAX_PLATFORMS="cpu")
    return importlib.import_module("jax")


jax = load_jax()
JAX_MISSING = "" if jax else "jax is not installed: the sides of jax.jit are left out"


def sides(
    build: Build, arguments: Sequence[Any], jax_build: Build | None = None
) -> dict[str, Side]:
    """The same work on all sides; `build(api, xp)` is the function of one library.

    `api` has the transforms, `xp` the arithmetic: torch or jax.numpy. `jax_build` is given where
    JAX writes the work in another way.
    """
    plain = build(torch.func, torch)
    staged = fxforms.jit(build(fxforms, torch), compile="wait")
    result: dict[str, Side] = {FXFORMS: partial(staged, *arguments)}
    if jax:
        result[JAX] = jax_side((jax_build or build)(jax, jax.numpy), arguments)
    result[TORCH_COMPILE] = partial(torch.compile(plain, fullgraph=True), *arguments)
    result[TORCH_FUNC] = partial(plain, *arguments)
    return result


def jax_side(f: Callable[..., Any], arguments: Sequence[Any]) -> Side:
    """f under jax.jit, until the answer is there."""
    assert jax
    jitted, converted = jax.jit(f), [to_jax(argument) for argument in arguments]
    block = jax.block_until_ready
    if optree.treespec_is_leaf(optree.tree_structure(jitted.eval_shape(*converted))):
        return lambda: jitted(*converted).block_until_ready()
    return lambda: block(jitted(*converted))


def to_jax(tree: Any) -> Any:
    """A tree of tensors as a tree of JAX arrays."""
    assert jax
    return optree.tree_map(lambda tensor: jax.numpy.asarray(np.asarray(tensor)), tree)
