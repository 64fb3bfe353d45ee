"""Control flow that depends on values."""

from fxforms.control.cond import cond

__all__ = ["cond"]
