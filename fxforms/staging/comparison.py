"""Variables compared with the values they had when a function was traced.

Each becomes one Python expression; all of them are compiled to one function, since they are
compared at every call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class Comparison:
    """Expressions that are true while nothing has changed.

    Attributes:
        unchanged: True while every variable has its value; may raise where one is gone.
    """

    def __init__(self, helpers: Mapping[str, Any]) -> None:
        """``helpers``: what the expressions may call."""
        self._names = dict(helpers)
        self._bound: dict[int, str] = {}
        self._checks: dict[str, str] = {}  # an expression, and what the user calls the variable
        self._label = "an argument"

    def settle(self) -> None:
        """Drop the variables that have another value now: the function itself changed them."""
        self._checks = {x: label for x, label in self._checks.items() if self._holds(x)}
        source = " and ".join(self._checks) or "True"
        self.unchanged: Callable[[], bool] = eval(f"lambda: {source}", self._names)

    def hold(self) -> bool:
        """True while no captured variable has changed, nor is gone."""
        try:
            return self.unchanged()
        except Exception:
            return False

    def checks(self) -> list[str]:
        """The names of the variables."""
        return list(dict.fromkeys(self._checks.values()))

    def changed(self) -> list[str]:
        """What the variables are called that have another value now."""
        return list(dict.fromkeys(y for x, y in self._checks.items() if not self._holds(x)))

    def _holds(self, check: str) -> bool:
        try:
            return bool(eval(check, self._names))
        except Exception:  # a variable is gone
            return False

    def _name(self, value: Any) -> str:
        """A name for ``value`` in the expressions."""
        if id(value) not in self._bound:
            name = f"v{len(self._bound)}"
            self._bound[id(value)] = name
            self._names[name] = value
        return self._bound[id(value)]

    def _check(self, text: str) -> None:
        self._checks.setdefault(text, self._label)
