"""``check``: every check on one Function, and what its rules amount to."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fxforms.errors import RuleError
from fxforms.functions.once import is_once_differentiable
from opinfo_db.checks import BY_NAME, CHECKS
from opinfo_db.checks.contract import (
    Case,
    Check,
    CheckFailure,
    Difference,
    OracleError,
    capable,
    cases,
    run_check,
)
from opinfo_db.checks.transforms import FXFORMS
from opinfo_db.cli.target import DTYPE
from opinfo_db.core import Capability, OpInfo, Rule, written_rules

#: The check that uses a rule and nothing else.
_CHECK_OF = {Rule.BACKWARD: "vjp", Rule.JVP: "jvp", Rule.VMAP: "vmap"}
_CAPABILITIES = {
    Rule.BACKWARD: {
        Capability.BACKWARD,
        Capability.DOUBLE_BACKWARD,
        Capability.FORWARD_OVER_REVERSE,
        Capability.REVERSE_OVER_FORWARD,
    },
    Rule.JVP: {
        Capability.JVP,
        Capability.DOUBLE_JVP,
        Capability.FORWARD_OVER_REVERSE,
        Capability.REVERSE_OVER_FORWARD,
    },
    Rule.VMAP: {Capability.VMAP},
}
_BEYOND_ONCE = {Capability.DOUBLE_BACKWARD, Capability.FORWARD_OVER_REVERSE}


@dataclass(frozen=True, slots=True, eq=False)
class Failure:
    """The first case that failed, why, and both values if values were compared.

    ``case`` is the name of the sample, with ``in_dims`` where the check maps.
    """

    case: str
    message: str
    difference: Difference | None


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """What came of one rule or check: ``pass``, ``derived``, ``fail``, ``missing`` or ``none``.

    ``derived`` is a pass by a rule that the author did not write, ``missing`` that there is no
    such rule, and ``none`` that no sample gave the check anything to do.
    """

    name: str
    result: str
    assertions: int = 0
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """The rows of the rules, none for a plain callable, and of the checks."""

    entry: str
    rules: tuple[Row, ...]
    checks: tuple[Row, ...]

    @property
    def failed(self) -> bool:
        """True if something is wrong, or if nothing was compared at all."""
        return any(row.failure for row in self.checks) or self.assertions == 0

    @property
    def assertions(self) -> int:
        """How many assertions were made."""
        return sum(row.assertions for row in self.checks)


def check_entry(entry: OpInfo) -> Report:
    """Run every check on ``entry``, in double precision.

    What the rules cannot do is found first, from the checks that use one rule alone; no later
    check asks for it.
    """
    written = _written(entry)
    found = {rule: _run(BY_NAME[_CHECK_OF[rule]], entry, written) for rule in Rule}
    absent = {rule for rule, row in found.items() if row.result == "missing"}
    lacking = frozenset().union(*(_CAPABILITIES[rule] for rule in absent))
    if is_once_differentiable(getattr(entry.op, "backward", None)):
        lacking |= _BEYOND_ONCE
    able = replace(entry, supports=entry.supports - lacking)
    done = {_CHECK_OF[rule]: row for rule, row in found.items()}
    rows = tuple(done.get(check.name) or _run(check, able, written) for check in CHECKS)
    rules = [replace(row, name=rule.value) for rule, row in found.items()]
    return Report(entry.name, tuple(rules) if isinstance(entry.op, type) else (), rows)


def _written(entry: OpInfo) -> frozenset[Rule]:
    """The rules that need no derivation: a plain callable needs none of its own."""
    if not isinstance(entry.op, type):
        return frozenset(Rule)
    generated = getattr(entry.op, "generate_vmap_rule", False)
    return written_rules(entry.op) - ({Rule.VMAP} if generated else set())


def _run(check: Check, entry: OpInfo, written: frozenset[Rule]) -> Row:
    """Run one check on every sample, up to the first that fails."""
    if not capable(check, entry, DTYPE):
        return Row(check.name, "missing" if check.needs - entry.supports else "none")
    derived = any(check.needs & _CAPABILITIES[rule] and rule not in written for rule in Rule)
    assertions = 0
    for case in cases(check, entry, DTYPE):
        try:
            assertions += run_check(check, case, FXFORMS).assertions
        except (CheckFailure, OracleError) as error:
            if derived and isinstance(error.__cause__, RuleError):
                return Row(check.name, "missing", assertions)
            return Row(check.name, "fail", assertions, _failure(case, error))
    if not assertions:
        return Row(check.name, "none")
    return Row(check.name, "derived" if derived else "pass", assertions)


def _failure(case: Case, error: CheckFailure | OracleError) -> Failure:
    """What ``error`` says about ``case``, without the test id that it begins with."""
    own = case.id[case.id.index(f"-{case.sample_name}") + 1 :]
    message = str(error).partition(": ")[2]
    return Failure(own, message, getattr(error, "difference", None))
