"""Every entry of the database through every check that it is capable of."""

from opinfo_db import generate_tests
from opinfo_db.entries import ENTRIES

generate_tests(globals(), ENTRIES)
