"""Levels and their interpreters: how a call of the operator passes a level."""

from fxforms.interpreters.dispatch import current_interpreter
from fxforms.interpreters.levels import grad_level, jvp_level, vmap_level
from fxforms.interpreters.negation import register_neg_view
from fxforms.interpreters.stack import Interpreter, Primitive, below_all_levels
from fxforms.interpreters.vmap import VmapInfo

__all__ = [
    "Interpreter",
    "Primitive",
    "VmapInfo",
    "below_all_levels",
    "current_interpreter",
    "grad_level",
    "jvp_level",
    "vmap_level",
]

register_neg_view()
