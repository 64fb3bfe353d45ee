"""The transforms that users call."""

from fxforms.transforms.grad import grad, grad_and_value, value_and_grad
from fxforms.transforms.jacobian import hessian, jacfwd, jacrev
from fxforms.transforms.jvp import jvp
from fxforms.transforms.linear import hvp, linearize
from fxforms.transforms.modules import functional_call, stack_module_state
from fxforms.transforms.vjp import vjp
from fxforms.transforms.vmap import vmap

__all__ = [
    "functional_call",
    "grad",
    "grad_and_value",
    "hessian",
    "hvp",
    "jacfwd",
    "jacrev",
    "jvp",
    "linearize",
    "stack_module_state",
    "value_and_grad",
    "vjp",
    "vmap",
]
