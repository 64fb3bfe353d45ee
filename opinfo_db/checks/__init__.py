"""The checks, one file a property; see ``contract.py`` for what a check is."""

from opinfo_db.checks.compositions import COMPOSITIONS
from opinfo_db.checks.contract import Check
from opinfo_db.checks.dot_product import DOT_PRODUCT
from opinfo_db.checks.errors import ERRORS
from opinfo_db.checks.forward import FORWARD
from opinfo_db.checks.grad import GRAD
from opinfo_db.checks.gradgrad import GRADCHECK, GRADGRADCHECK
from opinfo_db.checks.jit_equals_eager import JIT
from opinfo_db.checks.levels import LEVELS
from opinfo_db.checks.linearity import JVP_LINEAR, VJP_LINEAR
from opinfo_db.checks.memory import MEMORY
from opinfo_db.checks.mixed import MIXED
from opinfo_db.checks.out_dims import OUT_DIMS
from opinfo_db.checks.randomness import RANDOMNESS

#: Every check, in the order of reports.
CHECKS: tuple[Check, ...] = (
    FORWARD,
    GRAD,
    *COMPOSITIONS,
    DOT_PRODUCT,
    VJP_LINEAR,
    JVP_LINEAR,
    OUT_DIMS,
    RANDOMNESS,
    GRADCHECK,
    GRADGRADCHECK,
    *MIXED,
    *JIT,
    MEMORY,
    LEVELS,
    ERRORS,
)

BY_NAME: dict[str, Check] = {check.name: check for check in CHECKS}

__all__ = ["BY_NAME", "CHECKS", "COMPOSITIONS", "Check"]
