"""Staging: a function traced to a graph, the graph compiled."""

from fxforms.staging.backward import CapturedBackward, capture_backward, compiled_backward
from fxforms.staging.callback import pure_callback
from fxforms.staging.explain import eval_shape, explain, trace
from fxforms.staging.export import load, save
from fxforms.staging.jit import jit

__all__ = [
    "CapturedBackward",
    "capture_backward",
    "compiled_backward",
    "eval_shape",
    "explain",
    "jit",
    "load",
    "pure_callback",
    "save",
    "trace",
]
