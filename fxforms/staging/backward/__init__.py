"""Captured backward passes: an existing autograd graph as a program of its own."""

from fxforms.staging.backward.capture import CapturedBackward, capture_backward
from fxforms.staging.backward.compiled_backward import compiled_backward

__all__ = ["CapturedBackward", "capture_backward", "compiled_backward"]
