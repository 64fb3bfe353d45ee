"""Staging: a function traced to a graph, the graph compiled."""

from fxforms.staging.callback import pure_callback
from fxforms.staging.jit import jit

__all__ = ["jit", "pure_callback"]
