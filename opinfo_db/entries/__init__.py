"""Custom Functions by family, one file each: what users write, in every form the core supports.

Importing this makes the entries and runs no operation. See ``docs/opinfo_entries.md``.
"""

from opinfo_db.core import OpInfo
from opinfo_db.entries import (
    arguments,
    combined,
    complex_numbers,
    decorators,
    discrete,
    elementwise,
    gradients,
    implicit,
    indexing,
    inplace,
    libraries,
    loops,
    matrix,
    missing,
    numpy_bodies,
    pytrees,
    random_draws,
    reductions,
    residuals,
    saved,
    several,
    straight_through,
    structures,
    views,
    vmap_rules,
)

#: The families in the order of the documentation.
FAMILIES = (
    elementwise,
    reductions,
    several,
    discrete,
    indexing,
    views,
    inplace,
    saved,
    combined,
    residuals,
    arguments,
    pytrees,
    structures,
    missing,
    decorators,
    vmap_rules,
    numpy_bodies,
    loops,
    complex_numbers,
    random_draws,
    gradients,
    straight_through,
    matrix,
    implicit,
    libraries,
)

#: Every entry, in the order of the families.
ENTRIES: tuple[OpInfo, ...] = tuple(entry for family in FAMILIES for entry in family.ENTRIES)

__all__ = ["ENTRIES", "FAMILIES"]
