"""Functions with a planted fault each, beside the one they are spoiled from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import fxforms
from opinfo_db import OpInfo, SampleInput


class Good(fxforms.Function):
    """``x**3 * y`` with every rule."""

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Tensor:
        return x**3 * y

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return 3 * x**2 * y * g, x**3 * g

    @staticmethod
    def jvp(ctx: Any, x_t: Tensor, y_t: Tensor) -> Tensor:
        x, y = ctx.saved_tensors
        return 3 * x**2 * y * x_t + x**3 * y_t

    @classmethod
    def vmap(cls, info: Any, in_dims: Any, x: Tensor, y: Tensor) -> Any:
        return cls.apply(*_at_front(info, in_dims, (x, y))), 0


def _at_front(info: Any, in_dims: Any, tensors: tuple[Tensor, ...]) -> list[Tensor]:
    """The batch first and of full size in each tensor."""
    return [
        t.expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0)
        for t, d in zip(tensors, in_dims, strict=True)
    ]


def samples(device: Any, dtype: torch.dtype, requires_grad: bool) -> Iterator[SampleInput]:
    def tensor(*shape: int) -> Tensor:
        values = torch.rand(shape, dtype=dtype, device=device) + 0.5
        return values.requires_grad_(requires_grad)

    yield SampleInput((tensor(2, 3), tensor(2, 3)))


def reference(x: Tensor, y: Tensor) -> Tensor:
    return x**3 * y


@dataclass(frozen=True)
class Fault:
    """An entry with a fault, and the checks that must see it."""

    name: str
    op: Any
    caught_by: set[str]
    options: dict[str, Any] = field(default_factory=dict)

    def entry(self) -> OpInfo:
        options = {"sample_inputs": samples, "dtypes": (torch.float64,), **self.options}
        return OpInfo(self.name, self.op, **options)


FAULTS: list[Fault] = []


def fault(*caught_by: str, **options: Any) -> Callable[[Any], Any]:
    """Registers a class or function as a fault."""

    def register(op: Any) -> Any:
        FAULTS.append(Fault(op.__name__, op, set(caught_by), options))
        return op

    return register


WITH_REFERENCE: dict[str, Any] = {"reference": reference}


@fault("vjp", "grad", "gradcheck", "dot_product", "vmapvjp", "vjpvmap")
class WrongSign(Good):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        gx, gy = Good.backward(ctx, g)
        return -gx, gy


@fault("vjp", "grad", "gradcheck", "dot_product")
class MissingFactor(Good):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        gx, gy = Good.backward(ctx, g)
        return gx / 3, gy


@fault("vjpvjp", "gradgradcheck", "jvpvjp", "vmapvjpvjp", "vmapjvpvjp")
class WrongSecondDerivative(Good):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return 3 * x.detach() ** 2 * y * g, x**3 * g


@fault("vjpjvp", "jvpjvp")
class WrongSecondDerivativeOfJvp(Good):
    @staticmethod
    def jvp(ctx: Any, x_t: Tensor, y_t: Tensor) -> Tensor:
        x, y = ctx.saved_tensors
        return 3 * x.detach() ** 2 * y * x_t + x**3 * y_t


@fault("vmap", "out_dims", "vmapvmap", "vmapvjp")
class VmapMixesSamples(Good):
    @classmethod
    def vmap(cls, info: Any, in_dims: Any, x: Tensor, y: Tensor) -> Any:
        x, y = _at_front(info, in_dims, (x, y))
        return cls.apply(x, y.roll(1, 0)), 0


@fault("vmap", "vmapvmap")
class VmapOfMeanOverBatch(Good):
    @classmethod
    def vmap(cls, info: Any, in_dims: Any, x: Tensor, y: Tensor) -> Any:
        x, y = _at_front(info, in_dims, (x, y))
        return cls.apply(x, y.mean(0, keepdim=True).expand_as(y)), 0


@fault("vmap", "vmapjvp")
class WrongOutDims(Good):
    @classmethod
    def vmap(cls, info: Any, in_dims: Any, x: Tensor, y: Tensor) -> Any:
        return super().vmap(info, in_dims, x, y)[0], -1


@fault("vmap")
class VmapAssumesDimZero(Good):
    @classmethod
    def vmap(cls, info: Any, in_dims: Any, x: Tensor, y: Tensor) -> Any:
        dims = tuple(None if d is None else 0 for d in in_dims)
        return super().vmap(info, dims, x, y)


@fault("jvp", "dot_product", "vmapjvp")
class JvpIgnoresATangent(Good):
    @staticmethod
    def jvp(ctx: Any, x_t: Tensor, y_t: Tensor) -> Tensor:
        return Good.jvp(ctx, x_t, torch.zeros_like(y_t))


@fault("jvp", "dot_product", "jvpvmap")
class JvpWrongSign(Good):
    @staticmethod
    def jvp(ctx: Any, x_t: Tensor, y_t: Tensor) -> Tensor:
        return -Good.jvp(ctx, x_t, y_t)


@fault("jvp", "jvp_linear")
class JvpNotLinear(Good):
    @staticmethod
    def jvp(ctx: Any, x_t: Tensor, y_t: Tensor) -> Tensor:
        return Good.jvp(ctx, x_t, y_t) + x_t * y_t


@fault("vjp", "grad", "gradcheck")
class GradientsSwapped(Good):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return Good.backward(ctx, g)[::-1]


@fault("vjp", "vjp_linear")
class BackwardNotLinear(Good):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return Good.backward(ctx, g * g.abs())


@fault("vjp", "grad", "gradcheck")
class NoneForAGradient(Good):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return Good.backward(ctx, g)[0], None


@fault("vjp", "grad")
class LowPrecisionBackward(Good):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return tuple(t.float().to(g.dtype) for t in Good.backward(ctx, g * (1 + 1e-5)))


@fault("memory")
class KeepsItsInput(Good):
    kept: Tensor | None = None

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Tensor:
        KeepsItsInput.kept = x
        return Good.forward(x, y)


@fault("memory")
class KeepsItsResult(Good):
    kept: Tensor | None = None

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Tensor:
        KeepsItsResult.kept = x * y
        return Good.forward(x, y)


@fault("memory")
class NeedsTheCollector(Good):
    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Tensor:
        cycle: list[Any] = [x]
        cycle.append(cycle)
        return Good.forward(x, y)


@fault("forward", "vmap")
class WrongOnNonContiguous(Good):
    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Tensor:
        raw = x.as_strided(x.shape, torch.empty(x.shape).stride())
        return raw**3 * y


@fault("forward", **WITH_REFERENCE)
class WrongValue(Good):
    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Tensor:
        return Good.forward(x, y) + 1e-6
