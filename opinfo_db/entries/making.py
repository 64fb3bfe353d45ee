"""What the families share: tensors for samples, common samples, and entries of Functions.

A rule that is not written is derived, so an entry is capable of everything unless it has no rule of
a derivative at all. A family takes away what no rule reaches, as in ``once_differentiable``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

import fxforms
from opinfo_db.core import (
    ALL_CAPABILITIES,
    Capability,
    OpInfo,
    Rule,
    SampleInput,
    Waiver,
    written_rules,
)

Samples: TypeAlias = Callable[[torch.device, torch.dtype, bool], Iterable[SampleInput]]

FLOAT = (torch.float64, torch.float32)
COMPLEX = (torch.complex128, torch.complex64)
#: What a backward that cannot be differentiated again takes away.
TWICE = frozenset(
    {
        Capability.DOUBLE_BACKWARD,
        Capability.DOUBLE_JVP,
        Capability.FORWARD_OVER_REVERSE,
        Capability.REVERSE_OVER_FORWARD,
    }
)
#: As :data:`TWICE` where a jvp is written: what begins with a jvp does without the backward.
REVERSE_TWICE = frozenset({Capability.DOUBLE_BACKWARD, Capability.FORWARD_OVER_REVERSE})


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes the tensors of samples, in the dtype of the test."""

    device: torch.device
    dtype: torch.dtype
    requires_grad: bool

    def __call__(
        self, *shape: int, low: float = 0.5, high: float = 2.0, grad: bool = True
    ) -> Tensor:
        """Uniform in [low, high); for a complex dtype, both parts."""
        values = torch.rand(shape, dtype=self.dtype, device=self.device)
        shift = complex(low, low) if self.dtype.is_complex else low
        return self._variable(values * (high - low) + shift, grad)

    def signed(self, *shape: int, low: float = 0.3, high: float = 1.5) -> Tensor:
        """Of either sign, with absolute values in [low, high): away from the kink at zero."""
        signs = torch.randint(0, 2, shape, device=self.device) * 2 - 1
        values = torch.rand(shape, dtype=self.dtype, device=self.device) * (high - low) + low
        return self._variable(values * signs, True)

    def distinct(self, *shape: int) -> Tensor:
        """A shuffle of equally spaced values around zero: no ties, none close to one another."""
        count = torch.Size(shape).numel()
        values = torch.randperm(count, device=self.device).to(self.dtype) * 0.25 - 0.1 * count
        return self._variable(values.reshape(shape), True)

    def transposed(self, *shape: int) -> Tensor:
        """As a call, but not contiguous: the last two dims are swapped in memory."""
        turned = self(*shape[:-2], shape[-1], shape[-2], grad=False).mT
        return self._variable(turned, True)

    def integers(self, high: int, *shape: int) -> Tensor:
        """Uniform in 0 ... high - 1, int64."""
        return torch.randint(high, shape, device=self.device)

    def mask(self, *shape: int) -> Tensor:
        """Booleans."""
        return torch.randint(2, shape, device=self.device).bool()

    def _variable(self, values: Tensor, grad: bool) -> Tensor:
        """``values`` as an input of a sample."""
        return values.detach().requires_grad_(grad and self.requires_grad)


def samples(*calls: Callable[[Maker], tuple[Any, ...] | SampleInput]) -> Samples:
    """The samples that ``calls`` make, in their order; a tuple is a call's arguments."""

    def make(
        device: torch.device, dtype: torch.dtype, requires_grad: bool
    ) -> Iterator[SampleInput]:
        maker = Maker(device, dtype, requires_grad)
        for call in calls:
            made = call(maker)
            yield made if isinstance(made, SampleInput) else SampleInput(made)

    return make


def one_tensor(make: Callable[[Maker], Callable[..., Tensor]], *rest: Any) -> Samples:
    """A scalar, a vector, an empty tensor and a matrix, each followed by the arguments ``rest``."""
    shapes = ((), (3,), (0, 2), (2, 3))
    return samples(*(lambda m, s=s: (make(m)(*s), *rest) for s in shapes))


#: One positive tensor: scalar, vector, empty, matrix, and a matrix that is not contiguous.
POSITIVE = samples(
    lambda m: (m(),),
    lambda m: (m(3),),
    lambda m: (m(0, 2),),
    lambda m: (m(2, 3),),
    lambda m: SampleInput((m.transposed(2, 3),), name="transposed"),
)
#: Two positive tensors of one shape: scalars, vectors, empty, and one of them not contiguous.
PAIR = samples(
    lambda m: (m(), m()),
    lambda m: (m(3), m(3)),
    lambda m: (m(0), m(0)),
    lambda m: SampleInput((m(2, 3), m.transposed(2, 3)), name="transposed"),
)


class SavesInputs(fxforms.Function):
    """A Function that saves all of its inputs, which are tensors, for both directions."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)


def capabilities(op: type[torch.autograd.Function]) -> frozenset[Capability]:
    """What works on a Function: every derivative if any rule of one is written, and ``vmap``."""
    derivable = written_rules(op) & {Rule.BACKWARD, Rule.JVP}
    return ALL_CAPABILITIES if derivable else frozenset({Capability.VMAP})


def entry(
    op: type[torch.autograd.Function],
    sample_inputs: Samples,
    reference: Callable[..., Any] | None = None,
    *,
    through: Callable[..., Any] | None = None,
    without: frozenset[Capability] = frozenset(),
    **options: Any,
) -> OpInfo:
    """The entry of the Function ``op``; calls go to ``through`` where ``apply`` alone is no test.

    ``through`` is for a Function that changes its arguments in place, or returns its intermediates.
    """
    return OpInfo(
        op.__name__,
        through or op,
        sample_inputs,
        reference,
        supports=capabilities(op) - without,
        rules=written_rules(op),
        **options,
    )


def at_front(info: fxforms.VmapInfo, in_dims: tuple[Any, ...], *tensors: Tensor) -> list[Tensor]:
    """``tensors`` with the batch first and of full size, for a vmap rule."""
    return [
        t.expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0)
        for t, d in zip(tensors, in_dims, strict=True)
    ]


def scalar_tangent(*checks: str) -> tuple[Waiver, ...]:
    """Expected failures of ``checks`` on the first sample, a float32 scalar, by torch's fault."""
    reason = "torch: forward mode of a 0-dim float32 tensor times a float gives a float64 tangent"
    where = (frozenset({torch.float32}), frozenset({"sample0"}))
    return tuple(Waiver(check, reason, *where) for check in checks)
