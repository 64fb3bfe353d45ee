"""The operator and the Functions that go through it."""

from fxforms.functions import checkpoints
from fxforms.functions.adopt import adopt, adopt_all
from fxforms.functions.call import custom_function_call
from fxforms.functions.custom_vmap import custom_vmap
from fxforms.functions.decorators import custom_jvp, custom_vjp
from fxforms.functions.function import Function
from fxforms.functions.linear import linear_function
from fxforms.functions.loop import UnmappableWarning
from fxforms.functions.once import once_differentiable

checkpoints.install()

__all__ = [
    "Function",
    "UnmappableWarning",
    "adopt",
    "adopt_all",
    "custom_function_call",
    "custom_jvp",
    "custom_vjp",
    "custom_vmap",
    "linear_function",
    "once_differentiable",
]
