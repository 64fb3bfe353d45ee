"""Custom Functions by family, one file each: what users write, in every form the core supports.

Importing this makes the entries and runs no operation. See ``docs/opinfo_entries.md``.
"""

from opinfo_db.core import OpInfo
from opinfo_db.entries import (
    arguments,
    complex_numbers,
    discrete,
    elementwise,
    gradients,
    implicit,
    indexing,
    inplace,
    libraries,
    matrix,
    missing,
    numpy_bodies,
    random_draws,
    reductions,
    saved,
    several,
    straight_through,
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
    arguments,
    missing,
    vmap_rules,
    numpy_bodies,
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
