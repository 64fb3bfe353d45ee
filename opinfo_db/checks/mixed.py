"""Compositions of a transform under test with one of ``torch.func``, either outside."""

from __future__ import annotations

from torch import Tensor

from opinfo_db.checks import in_dims
from opinfo_db.checks.compositions import build, compare, needed
from opinfo_db.checks.contract import Case, Check, CheckResult, InDims
from opinfo_db.checks.transforms import TORCH_FUNC, Transforms


def _first_two(tensors: tuple[Tensor, ...]) -> tuple[InDims, ...]:
    """Two choices of ``in_dims``: all first, all last."""
    return in_dims.choices(tensors)[:2]


def _not_mapped(tensors: tuple[Tensor, ...]) -> tuple[None]:
    """No ``vmap`` in the composition."""
    return (None,)


def _mixed(kinds: tuple[str, str]) -> Check:
    """The check of ``kinds`` with torch.func outside, then inside."""
    name = "".join(kinds)

    def run(case: Case, transforms: Transforms) -> CheckResult:
        outside = compare(
            build(case, kinds, (TORCH_FUNC, transforms)), f"{name}, torch.func outside"
        )
        inside = compare(build(case, kinds, (transforms, TORCH_FUNC)), f"{name}, torch.func inside")
        worst = max(outside.worst, inside.worst, key=lambda d: d.ratio if d else -1.0)
        return CheckResult(outside.assertions + inside.assertions, worst)

    variants = _first_two if "vmap" in kinds else _not_mapped
    description = f"{name} with one of the two from torch.func"
    return Check(f"mixed_{name}", description, run, needed(kinds), variants)


MIXED: tuple[Check, ...] = (
    _mixed(("vmap", "vjp")),
    _mixed(("vjp", "vmap")),
    _mixed(("jvp", "vjp")),
    _mixed(("vjp", "vjp")),
    _mixed(("vmap", "jvp")),
    _mixed(("vmap", "vmap")),
)
