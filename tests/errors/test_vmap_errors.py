"""Every fault a user can make: the message, and that the next call works.

The snapshots are written by ``EXPECTTEST_ACCEPT=1 pytest tests/errors``; read what it wrote.
"""

from __future__ import annotations

import torch
from error_cases import BATCH, Messages, X, branching, energies, pair

import fxforms


class TestMapping(Messages):
    def test_sizes_differ(self) -> None:
        self.check(
            lambda: fxforms.vmap(pair, in_dims=(0, {"w": 1, "b": None}))(
                BATCH, {"w": BATCH, "b": X}
            ),
            """\
ArgumentError: vmap(pair, in_dims=(0, {'w': 1, 'b': None})): the mapped dims
must have one size: args[0] has size 2 along dim 0; args[1]['w'] has size 3
along dim 1. Give an argument that is shared by all samples in_dim None.""",
        )

    def test_in_dim_out_of_range(self) -> None:
        self.check(
            lambda: fxforms.vmap(energies, in_dims=2)(BATCH),
            """\
ArgumentError: vmap(energies, in_dims=2): args[0] is a torch.float32 tensor of
shape (2, 3), so its in_dim must lie in [-2, 2), got 2.""",
        )

    def test_in_dim_of_a_scalar(self) -> None:
        self.check(
            lambda: fxforms.vmap(energies)(torch.tensor(1.0)),
            """\
ArgumentError: vmap(energies, in_dims=0): args[0] is a torch.float32 tensor of
shape (), so its in_dim must lie in [0, 0), got 0. A tensor without dims has no
batch; give it in_dim None.""",
        )

    def test_in_dims_of_another_structure(self) -> None:
        self.check(
            lambda: fxforms.vmap(pair, in_dims=(0, 0, 0))(BATCH, BATCH),
            """\
StructureError: vmap(pair): in_dims=(0, 0, 0) does not match the structure it
describes, (*, *). Give one entry for all of it, or a tree that agrees with its
top.""",
        )

    def test_in_dims_none(self) -> None:
        self.check(
            lambda: fxforms.vmap(energies, in_dims=None)(BATCH),
            """\
ArgumentError: vmap(energies, in_dims=None): in_dims must be an int or a tuple
with one entry for each positional argument, got NoneType.""",
        )

    def test_in_dims_all_none(self) -> None:
        self.check(
            lambda: fxforms.vmap(pair, in_dims=(None, None))(BATCH, BATCH),
            """\
ArgumentError: vmap(pair, in_dims=(None, None)): no argument is mapped. Give at
least one tensor an in_dim that is an int.""",
        )

    def test_in_dims_a_float(self) -> None:
        self.check(
            lambda: fxforms.vmap(energies, in_dims=(1.5,))(BATCH),
            """\
ArgumentError: vmap(energies, in_dims=(1.5,)): args[0] has in_dim 1.5; it must
be an int or None.""",
        )

    def test_nothing_to_map_over(self) -> None:
        self.check(
            lambda: fxforms.vmap(energies)(x=BATCH),
            """\
ArgumentError: vmap(energies): there is nothing to map over: no positional
arguments. Keyword arguments are passed on whole.""",
        )

    def test_number_to_map_over(self) -> None:
        self.check(
            lambda: fxforms.vmap(pair)(BATCH, 3),
            """\
ArgumentError: vmap(pair, in_dims=0): args[1] is 3 and cannot be mapped over.
Give it in_dim None, or make it a tensor.""",
        )

    def test_output_a_text(self) -> None:
        self.check(
            lambda: fxforms.vmap(lambda x: {"t": "text"})(BATCH),
            """\
OutputError: vmap(<lambda>): output 0 is 'text', but a mapped function returns
tensors. Give that output out_dim None to pass it through.""",
        )

    def test_output_none(self) -> None:
        self.check(
            lambda: fxforms.vmap(lambda x: None)(BATCH),
            """\
OutputError: vmap(<lambda>): the output is None, but a mapped function returns
tensors. Give that output out_dim None to pass it through.""",
        )

    def test_out_dims_of_another_structure(self) -> None:
        self.check(
            lambda: fxforms.vmap(energies, out_dims=(0, 1))(BATCH),
            """\
StructureError: vmap(energies): out_dims=(0, 1) does not match the structure it
describes, a single leaf. Give one entry for all of it, or a tree that agrees
with its top.""",
        )

    def test_out_dim_out_of_range(self) -> None:
        self.check(
            lambda: fxforms.vmap(energies, out_dims=2)(BATCH),
            """\
ArgumentError: vmap(energies): the output has 2 dims with its batch, so out_dim
must lie in [-2, 2), got 2.""",
        )

    def test_out_dim_none_for_samples_that_differ(self) -> None:
        self.check(
            lambda: fxforms.vmap(pair, out_dims=(0, None))(BATCH, BATCH),
            """\
OutputError: vmap(pair): output 1 differs between samples and cannot have
out_dim None. Say with an int where its batch dim goes.""",
        )

    def test_out_dims_a_text(self) -> None:
        self.check(
            lambda: fxforms.vmap(energies, out_dims="a"),
            """\
ArgumentError: vmap(energies, out_dims='a'): out_dims must be an int, None, or a
pytree of those like the output.""",
        )

    def test_randomness_unknown(self) -> None:
        self.check(
            lambda: fxforms.vmap(energies, randomness="some"),
            """\
ArgumentError: vmap(energies, randomness='some'): randomness must be one of
'error', 'same', 'different'.""",
        )

    def test_randomness_error(self) -> None:
        self.check_class(lambda: fxforms.vmap(lambda x: x + torch.randn(3))(BATCH), RuntimeError)

    def test_chunk_size_zero(self) -> None:
        self.check(
            lambda: fxforms.vmap(energies, chunk_size=0),
            """ArgumentError: vmap(energies, chunk_size=0): chunk_size must be positive.""",
        )

    def test_branch_on_a_sample(self) -> None:
        self.check_class(lambda: fxforms.vmap(branching)(BATCH), RuntimeError)

    def test_item_of_a_sample(self) -> None:
        self.check_class(lambda: fxforms.vmap(lambda x: x.sum().item())(BATCH), RuntimeError)
