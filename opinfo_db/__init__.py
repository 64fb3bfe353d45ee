"""A database of operations that generates the tests of their transforms and compositions.

The names are loaded when they are first used, so that the pytest plugin inside this package costs
a run that does not use it nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opinfo_db.core import (
        ALL_CAPABILITIES,
        Capability,
        ErrorInput,
        OpInfo,
        Rule,
        SampleInput,
        Tolerance,
        Waiver,
    )
    from opinfo_db.generate import generate_tests, ops

__all__ = [
    "ALL_CAPABILITIES",
    "Capability",
    "ErrorInput",
    "OpInfo",
    "Rule",
    "SampleInput",
    "Tolerance",
    "Waiver",
    "generate_tests",
    "ops",
]

_IN_GENERATE = ("generate_tests", "ops")


def __getattr__(name: str) -> Any:
    """Load a public name."""
    if name not in __all__:
        raise AttributeError(f"module 'opinfo_db' has no attribute {name!r}")
    return getattr(
        import_module("opinfo_db.generate" if name in _IN_GENERATE else "opinfo_db.core"), name
    )
