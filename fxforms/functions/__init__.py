"""The operator and the Functions that go through it."""

from fxforms.functions.call import custom_function_call
from fxforms.functions.function import Function
from fxforms.functions.once import once_differentiable

__all__ = ["Function", "custom_function_call", "once_differentiable"]
