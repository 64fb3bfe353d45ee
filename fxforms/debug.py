"""Looking into a function while it is transformed or compiled."""

from fxforms.staging.printing import print  # noqa: A004

__all__ = ["print"]
