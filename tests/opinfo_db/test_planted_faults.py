"""Each planted fault is caught, and the Function it was spoiled from passes everything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from planted import Fault, Good, reference, samples
from planted_elsewhere import FAULTS

import fxforms
from opinfo_db import OpInfo
from opinfo_db.checks import BY_NAME, CHECKS
from opinfo_db.checks.contract import Check, CheckFailure, OracleError, cases, run_check
from opinfo_db.checks.levels import depth
from opinfo_db.checks.transforms import FXFORMS, TORCH_FUNC, Transforms

# torch's own, at the first torch.func.jvp of a process.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")


def failures(
    entry: OpInfo, transforms: Transforms = FXFORMS, checks: tuple[Check, ...] = CHECKS
) -> dict[str, list[str]]:
    """The messages of the cases that failed, by check; an oracle that cannot run raises."""
    found: dict[str, list[str]] = {}
    for dtype in entry.dtypes:
        for check in checks:
            for case in cases(check, entry, dtype):
                try:
                    run_check(check, case, transforms)
                except CheckFailure as failure:
                    found.setdefault(check.name, []).append(str(failure))
    return found


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Puts right what the faults of the ``levels`` check leave behind."""
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    if torch.autograd.forward_ad._current_level >= 0:
        torch.autograd.forward_ad.exit_dual_level()
    assert depth() == 0


@pytest.mark.parametrize("planted", FAULTS, ids=lambda planted: planted.name)
def test_a_fault_is_caught(planted: Fault) -> None:
    checks = tuple(BY_NAME[name] for name in sorted(planted.caught_by))
    assert set(failures(planted.entry(), checks=checks)) == planted.caught_by


@pytest.mark.parametrize("transforms", [FXFORMS, TORCH_FUNC], ids=lambda t: t.name)
@pytest.mark.parametrize("oracle", [None, reference], ids=["alone", "reference"])
def test_what_they_were_spoiled_from_passes(transforms: Transforms, oracle: Any) -> None:
    entry = OpInfo("Good", Good, samples, reference=oracle)
    assert failures(entry, transforms) == {}


def test_a_fault_is_caught_in_single_precision_alone() -> None:
    (wrong,) = (planted for planted in FAULTS if planted.name == "WrongSecondDerivative")
    entry = replace(wrong.entry(), dtypes=(torch.float32,))
    assert set(failures(entry)) >= {"vjpvjp", "jvpvjp", "vmapvjpvjp"}
    assert failures(replace(entry, op=Good)) == {}


def test_there_are_enough_of_them() -> None:
    assert len(FAULTS) >= 15
    assert len({planted.name for planted in FAULTS}) == len(FAULTS)


# --- faults of transforms: the function is right ---


def doubled_vjp(func: Callable[..., Any], *primals: Any, **options: Any) -> Any:
    out, pull, *aux = torch.func.vjp(func, *primals, **options)
    return (out, lambda g: tuple(2 * x for x in pull(g)), *aux)


def jvp_of_the_first_tangent(func: Any, primals: Any, tangents: Any, **options: Any) -> Any:
    rest = [torch.zeros_like(t) for t in tangents[1:]]
    return torch.func.jvp(func, primals, (tangents[0], *rest), **options)


def vmap_without_out_dims(func: Any, in_dims: Any = 0, out_dims: Any = 0, **options: Any) -> Any:
    return torch.func.vmap(func, in_dims, 0, **options)


def vmap_that_draws_once(func: Any, in_dims: Any = 0, out_dims: Any = 0, **options: Any) -> Any:
    return torch.func.vmap(func, in_dims, out_dims, randomness="same")


def grad_of_the_first(func: Any, argnums: Any = 0, has_aux: bool = False) -> Any:
    first = argnums if isinstance(argnums, tuple) else 0
    return torch.func.grad(func, first, has_aux)


def vjp_that_keeps_grad_mode_off(func: Any, *primals: Any, **options: Any) -> Any:
    result = torch.func.vjp(func, *primals, **options)
    torch.set_grad_enabled(False)
    return result


def vjp_that_swallows(func: Any, *primals: Any, **options: Any) -> Any:
    try:
        return torch.func.vjp(func, *primals, **options)
    except Exception:
        return (), lambda g: (), ()


_kept: list[Any] = []


def vjp_that_keeps(func: Any, *primals: Any, **options: Any) -> Any:
    result = torch.func.vjp(func, *primals, **options)
    _kept[:] = [primals]
    return result


def jvp_of_a_different_point(func: Any, primals: Any, tangents: Any, **options: Any) -> Any:
    out, *_ = torch.func.jvp(func, primals, tangents, **options)
    shifted = tuple(x + 1 for x in primals)
    return (out, *torch.func.jvp(func, shifted, tangents, **options)[1:])


def jit_that_keeps_an_argument(func: Any) -> Any:
    """The last argument of the first call is a constant from then on."""
    jitted, kept = fxforms.jit(func, backend="eager"), []

    def call(*args: Any) -> Any:
        kept.append(args[-1].detach())
        return jitted(*args[:-1], args[-1] * 0 + kept[0])

    return call


def jit_that_never_stages(func: Any) -> Any:
    return func


def jit_that_cuts_the_graph(func: Any) -> Any:
    jitted = fxforms.jit(func, backend="eager")
    return lambda *args: tuple([y.detach() for y in jitted(*args)])


@pytest.mark.parametrize(
    ("fault", "caught_by"),
    [
        ({"vjp": doubled_vjp}, {"vjp", "vjpvjp", "vmapvjp", "dot_product"}),
        ({"jvp": jvp_of_the_first_tangent}, {"jvp", "jvpvjp", "vmapjvp", "dot_product"}),
        ({"jvp": jvp_of_a_different_point}, {"jvp", "jvpjvp", "jvpvmap"}),
        ({"vmap": vmap_without_out_dims}, {"out_dims"}),
        ({"vmap": vmap_that_draws_once}, {"randomness"}),
        ({"grad": grad_of_the_first}, {"grad"}),
        ({"vjp": vjp_that_keeps_grad_mode_off}, {"levels"}),
        ({"vjp": vjp_that_swallows}, {"levels"}),
        ({"vjp": vjp_that_keeps}, {"memory"}),
        ({"jit": jit_that_keeps_an_argument}, {"jit", "jit_vjp", "jit_jvp", "jit_vmap"}),
        ({"jit": jit_that_never_stages}, {"jit", "jit_vjp", "jit_vmapvjp", "jit_autograd"}),
        ({"jit": jit_that_cuts_the_graph}, {"jit_vjp", "jit_vjpvmap", "jit_autograd"}),
    ],
    ids=lambda value: "" if isinstance(value, set) else next(iter(value.values())).__name__,
)
def test_a_faulty_transform_is_caught(fault: dict[str, Any], caught_by: set[str]) -> None:
    entry = OpInfo("product", lambda x, y: x.sin() * y, samples, dtypes=(torch.float64,))
    checks = tuple(BY_NAME[name] for name in sorted(caught_by))
    assert set(failures(entry, replace(TORCH_FUNC, **fault), checks)) == caught_by


# --- a check that cannot check ---


def test_a_reference_that_raises_is_the_fault_of_the_oracle() -> None:
    def broken(x: Any, y: Any) -> Any:
        raise RuntimeError("no reference today")

    entry = OpInfo("broken", Good, samples, reference=broken, dtypes=(torch.float64,))
    with pytest.raises(OracleError, match="no reference today"):
        failures(entry)


def test_no_differentiable_output_is_a_failure_of_a_derivative() -> None:
    entry = OpInfo("sign", lambda x, y: x > y, samples, dtypes=(torch.float64,))
    assert set(failures(entry)) >= {"vjp", "jvp", "grad", "gradcheck", "vjpvmap"}
