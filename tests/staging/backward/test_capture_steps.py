"""The parts that need no graph: steps run by hand, layouts of views, the order of steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fxforms.errors import UnsupportedError
from fxforms.staging.backward.plain import run_plain
from fxforms.staging.backward.recorder import refuse_hook_in_cpp
from fxforms.staging.backward.schedule import scheduled
from fxforms.staging.backward.steps import Kind, Program, Step
from fxforms.staging.backward.views import Geometry, as_strided_backward, cuts_of, put, take


def program_of(kinds: list[Kind]) -> Program:
    """A chain of steps that each double one value."""
    program = Program()
    slot = program.new_slot()
    program.tensors = [slot]
    for call, kind in enumerate(kinds):
        result = program.new_slot()
        program.steps.append(Step(kind, "double", lambda x: [2 * x], [slot], [result], call))
        slot = result
    program.outputs = [slot, None]
    return program


def test_a_function_in_cpp_is_called_as_it_is() -> None:
    program = program_of([Kind.FORMULA, Kind.CPP_FUNCTION])
    values = program.load([torch.ones(2)], (), [], (), ())
    found = run_plain(program, values)
    assert torch.equal(found[0], torch.full((2,), 4.0))
    assert found[1] is None


def test_values_are_let_go_of_after_their_last_use() -> None:
    program = program_of([Kind.FORMULA] * 3)
    values = program.load([torch.ones(2)], (), [], (), ())
    run_plain(program, values)
    assert [x is None for x in values] == [True, True, True, False]


def test_steps_come_by_rank_after_what_they_need() -> None:
    program = program_of([Kind.FORMULA, Kind.FORMULA])
    apart = Step(Kind.FORMULA, "apart", None, [program.tensors[0]], [program.new_slot()], 2)
    program.steps.append(apart)
    first, second = program.steps[:2]
    assert scheduled(program, {0: 1, 1: 0, 2: 2}) == [first, second, apart]
    assert scheduled(program, {0: 1, 1: 2, 2: 0}) == [apart, first, second]


def test_hooks_that_the_engine_cannot_tell_of() -> None:
    refuse_hook_in_cpp(NotImplementedError("another"))
    with pytest.raises(UnsupportedError, match="hook written in C"):
        refuse_hook_in_cpp(NotImplementedError("compiled_args nyi, see [Note]"))


VIEWS: list[Any] = [
    lambda x: x[1],
    lambda x: x[:, 1:],
    lambda x: x[::2, :, 1:3],
    lambda x: x.permute(2, 0, 1)[1:],
    lambda x: x.transpose(0, 1)[0, ::2],
    lambda x: x.reshape(-1),
    lambda x: x.reshape(-1)[3:20:4],
    lambda x: x.diagonal(0, 0, 1),
    lambda x: x[:, None, 1],
    lambda x: x[2, 3, 1],
    lambda x: x.view(3, 2, 2, 5),
    lambda x: x[:0],
    lambda x: x,
]
BASES: list[Any] = [
    lambda: torch.randn(3, 4, 5),
    lambda: torch.randn(5, 3, 4).permute(1, 2, 0),
    lambda: torch.randn(3, 8, 5)[:, ::2],
    lambda: torch.randn(61)[1:].view(3, 4, 5),
]


@given(st.sampled_from(BASES), st.sampled_from(VIEWS))
def test_views_are_taken_and_put(make: Any, view: Any) -> None:
    base = make()
    try:
        wanted = view(base)
    except RuntimeError:
        return  # no such view of that layout
    if wanted.untyped_storage().data_ptr() != base.untyped_storage().data_ptr():
        return  # reshape had to copy
    layout = Geometry(
        base.shape,
        base.stride(),
        base.storage_offset(),
        wanted.shape,
        wanted.stride(),
        wanted.storage_offset(),
    )
    grad = torch.randn(base.shape)
    numbered = torch.empty_strided(base.shape, base.stride()).copy_(grad)
    expected = view(numbered)
    assert torch.equal(take(grad, layout), expected)
    part = torch.randn(expected.shape)
    replaced = put(grad, part, layout)
    expected.copy_(part)
    assert torch.equal(replaced, numbered)
    assert replaced.shape == base.shape


def test_plain_slices_need_no_gather() -> None:
    base = torch.randn(3, 4, 5)
    for view in VIEWS[:5]:
        part = view(base)
        layout = Geometry(base.shape, base.stride(), 0, *sizes(part))
        assert cuts_of(layout) is not None
    assert cuts_of(Geometry(base.shape, base.stride(), 0, *sizes(base.diagonal()))) is None


def sizes(tensor: torch.Tensor) -> tuple[Any, Any, int]:
    return tensor.shape, tensor.stride(), tensor.storage_offset()


def test_a_view_that_overlaps() -> None:
    x = torch.randn(4, dtype=torch.double, requires_grad=True)
    y = x.as_strided((2, 3), (1, 1))
    g = torch.randn(2, 3, dtype=torch.double)
    found = as_strided_backward([g], [True], ((4,), (1,), 0), (2, 3), 0, (1, 1))
    assert found is not None
    torch.testing.assert_close(found[0], torch.autograd.grad(y, x, g)[0])


def test_a_view_of_more_than_its_base() -> None:
    assert as_strided_backward([torch.ones(4)], [True], ((2,), (2,), 0), (4,), 0, (1,)) is None
