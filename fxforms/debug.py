"""Looking into a function while it is transformed or compiled."""

from fxforms.staging.printing import print

__all__ = ["print"]
