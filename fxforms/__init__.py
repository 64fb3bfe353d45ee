"""Composable function transforms for PyTorch in which everything a user defines composes."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fxforms import errors
from fxforms.control import cond
from fxforms.functions import (
    Function,
    UnmappableWarning,
    adopt,
    adopt_all,
    custom_function_call,
    custom_jvp,
    custom_vjp,
    custom_vmap,
    linear_function,
    once_differentiable,
)
from fxforms.interpreters import VmapInfo
from fxforms.transforms import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    hvp,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    value_and_grad,
    vjp,
    vmap,
)

if TYPE_CHECKING:
    from fxforms.staging.backward.capture import CapturedBackward, capture_backward
    from fxforms.staging.backward.compiled_backward import compiled_backward
    from fxforms.staging.callback import pure_callback
    from fxforms.staging.explain import eval_shape, explain, trace
    from fxforms.staging.export import load, save
    from fxforms.staging.jit import jit

__all__ = [
    "CapturedBackward",
    "Function",
    "UnmappableWarning",
    "VmapInfo",
    "adopt",
    "adopt_all",
    "capture_backward",
    "compiled_backward",
    "cond",
    "custom_function_call",
    "custom_jvp",
    "custom_vjp",
    "custom_vmap",
    "errors",
    "eval_shape",
    "explain",
    "functional_call",
    "grad",
    "grad_and_value",
    "hessian",
    "hvp",
    "jacfwd",
    "jacrev",
    "jit",
    "jvp",
    "linear_function",
    "linearize",
    "load",
    "once_differentiable",
    "pure_callback",
    "save",
    "stack_module_state",
    "trace",
    "value_and_grad",
    "vjp",
    "vmap",
]


def __getattr__(name: str) -> Any:
    """The names of ``fxforms.staging``, at first use: the tracer takes a second to import."""
    if name not in __all__:
        raise AttributeError(f"module 'fxforms' has no attribute {name!r}")
    value = getattr(importlib.import_module("fxforms.staging"), name)
    globals()[name] = value
    return value
