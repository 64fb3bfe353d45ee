"""A jitted method, bound to its object."""

from __future__ import annotations

import functools
from typing import Any


class Method(functools.partial[Any]):
    """A jitted function with its first argument, which is static.

    The cache and its history are the function's, so they are those of all objects.
    """

    func: Any

    @property
    def history(self) -> Any:
        """The last traces."""
        return self.func.history

    def cache_info(self) -> Any:
        """How calls were answered."""
        return self.func.cache_info()

    def clear_cache(self) -> None:
        """Forget every traced signature."""
        self.func.clear_cache()

    def entry(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The traced signature that serves these arguments."""
        return self.func.entry((*self.args, *args), kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """The traced program at these arguments."""
        return self.func.trace(*self.args, *args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """The same program in the operators that the compiler is given."""
        return self.func.lower(*self.args, *args, **kwargs)
