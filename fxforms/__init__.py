"""Composable function transforms for PyTorch in which everything a user defines composes."""

from fxforms import errors
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

__all__ = [
    "Function",
    "UnmappableWarning",
    "VmapInfo",
    "adopt",
    "adopt_all",
    "custom_function_call",
    "custom_jvp",
    "custom_vjp",
    "custom_vmap",
    "errors",
    "functional_call",
    "grad",
    "grad_and_value",
    "hessian",
    "hvp",
    "jacfwd",
    "jacrev",
    "jvp",
    "linear_function",
    "linearize",
    "once_differentiable",
    "stack_module_state",
    "value_and_grad",
    "vjp",
    "vmap",
]
