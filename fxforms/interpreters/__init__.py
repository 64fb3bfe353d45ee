"""Levels and their interpreters: how a call of the operator passes a level."""

from fxforms.interpreters.dispatch import current_interpreter
from fxforms.interpreters.levels import grad_level, jvp_level, vmap_level
from fxforms.interpreters.stack import Interpreter, Primitive
from fxforms.interpreters.vmap import VmapInfo

__all__ = [
    "Interpreter",
    "Primitive",
    "VmapInfo",
    "current_interpreter",
    "grad_level",
    "jvp_level",
    "vmap_level",
]
