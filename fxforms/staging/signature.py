"""The signature of a call: what a traced graph depends on besides the numbers in its tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from fxforms import _substrate as substrate
from fxforms._tree import PyTreeSpec, flatten, leaf_paths
from fxforms.errors import ArgumentError, describe, name_of
from fxforms.functions.inline import any_dual

_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


class Call(NamedTuple):
    """The arguments of one call, taken apart.

    Attributes:
        tensors: the tensor leaves.
        spec: the structure of ``(args, kwargs)``, static arguments replaced by None.
        where: for each leaf, whether it is a tensor.
        fixed: the other leaves, then the static arguments.
        keys: what tells one of ``fixed`` from another: 1 from True, 0.0 from -0.0.
    """

    tensors: list[torch.Tensor]
    spec: PyTreeSpec
    where: tuple[bool, ...]
    fixed: tuple[Any, ...]
    keys: tuple[Any, ...]


def take_apart(
    args: tuple[Any, ...], kwargs: dict[str, Any], argnums: frozenset[int], argnames: frozenset[str]
) -> Call:
    """The tensors of a call, and the rest."""
    static: list[Any] = []
    if argnums or argnames:
        wanted = chosen(argnums, len(args))
        static = [x for i, x in enumerate(args) if i in wanted]
        static += [kwargs[name] for name in sorted(kwargs) if name in argnames]
        args = tuple([None if i in wanted else x for i, x in enumerate(args)])
        kwargs = {name: None if name in argnames else x for name, x in kwargs.items()}
    leaves, spec = flatten((args, kwargs))
    where = tuple([isinstance(x, torch.Tensor) for x in leaves])
    tensors = [x for x, is_tensor in zip(leaves, where) if is_tensor]
    fixed = (*[x for x, is_tensor in zip(leaves, where) if not is_tensor], *static)
    return Call(tensors, spec, where, fixed, tuple(map(distinct, fixed)))


def chosen(argnums: frozenset[int], count: int) -> set[int]:
    """The positions of ``argnums`` among ``count`` arguments; those not given are left out."""
    return {i + count if i < 0 else i for i in argnums} & set(range(count))


def tensors_of(args: tuple[Any, ...], argnums: frozenset[int]) -> list[int]:
    """Which tensors of a call stand in the positions ``argnums``."""
    found: list[int] = []
    count = 0
    for index, argument in enumerate(args):
        here = sum(isinstance(x, torch.Tensor) for x in flatten(argument)[0])
        if index in chosen(argnums, len(args)):
            found += range(count, count + here)
        count += here
    return found


def put_together(
    call: Call, tensors: Sequence[Any], argnums: frozenset[int], argnames: frozenset[str]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of ``call`` with ``tensors`` in place of its own."""
    moving, fixed = iter(tensors), iter(call.fixed)
    leaves = [next(moving) if is_tensor else next(fixed) for is_tensor in call.where]
    both: Any = call.spec.unflatten(leaves)
    args, kwargs = both
    if argnums or argnames:
        wanted = chosen(argnums, len(args))
        args = tuple([next(fixed) if i in wanted else x for i, x in enumerate(args)])
        kwargs = kwargs | {name: next(fixed) for name in sorted(kwargs) if name in argnames}
    return args, kwargs


def key_of(func: Callable[..., Any], call: Call, dynamic: bool) -> tuple[Any, ...]:
    """A hashable key: equal for two calls that one graph serves.

    Raises:
        ArgumentError: an argument that is no tensor cannot be hashed.
    """
    tensors = tuple([meta(x, dynamic) for x in call.tensors])
    key = (call.spec, call.where, call.keys, tensors, state())
    try:
        hash(key)
    except TypeError:
        raise unhashable(func, call) from None
    return key


def distinct(value: Any) -> tuple[Any, ...]:
    """A key that tells what Python takes for equal: 1, 1.0 and True, 0.0 and -0.0."""
    if isinstance(value, tuple):
        return (type(value), *map(distinct, value))
    if isinstance(value, (float, complex)):
        return (type(value), repr(value))
    return (type(value), value)


def static_objects(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """The objects among the arguments, which are static, by the parameter's name."""
    code = getattr(func, "__code__", None)
    names = code.co_varnames[: code.co_argcount] if code else ()
    given = dict(zip(names, args)) | kwargs
    return {
        name: x
        for name, x in given.items()
        if hasattr(x, "__dict__") and not isinstance(x, torch.Tensor)
    }


def unhashable(func: Callable[..., Any], call: Call) -> ArgumentError:
    """The error for the first argument without a hash."""
    positions = [i for i, is_tensor in enumerate(call.where) if not is_tensor]
    paths = leaf_paths(call.spec.unflatten(list(range(len(call.where)))), "arguments")
    for index, value in enumerate(call.fixed):
        try:
            hash(value)
        except TypeError:
            where = paths[positions[index]] if index < len(positions) else "a static argument"
            return ArgumentError(
                f"jit of {name_of(func)}: {where} is {describe(value)}, which is neither a tensor "
                f"nor hashable, so a graph cannot be kept for it. Pass a tensor (torch.as_tensor), "
                f"or a value with a hash, such as a tuple."
            )
    return ArgumentError(f"jit of {name_of(func)}: the structure of the arguments has no hash.")


def meta(tensor: torch.Tensor, dynamic: bool) -> tuple[Any, ...]:
    """What a graph depends on of one tensor; of its sizes only how many, if they are symbols."""
    return (
        type(tensor),
        tensor.dtype,
        tensor.dim() if dynamic else tensor.shape,
        None if dynamic else tensor.stride(),
        tensor.device,
        tensor.requires_grad,
    )


def form_of(captured: torch.Tensor) -> tuple[Any, ...]:
    """What a graph depends on of a captured tensor besides its numbers."""
    return meta(captured, False)


def state() -> tuple[Any, ...]:
    """What a graph depends on of the process."""
    kinds = ("cpu", "cuda")
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        tuple([torch.is_autocast_enabled(k) and torch.get_autocast_dtype(k) for k in kinds]),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.are_deterministic_algorithms_enabled(),
    )


def is_plain(tensor: torch.Tensor) -> bool:
    """False for what no graph is traced for: a subclass, another layout, nested, a conjugate."""
    if type(tensor) not in _PLAIN or tensor.layout is not torch.strided:
        return False
    return not (tensor.is_conj() or tensor.is_neg() or tensor.is_nested or tensor.is_quantized)


def is_followed(tensors: Sequence[torch.Tensor]) -> bool:
    """True if a derivative of a call on ``tensors`` is staged as well."""
    return substrate.transforms_active() or any(x.requires_grad for x in tensors)


def carries_tangent(tensors: Sequence[torch.Tensor]) -> bool:
    """True if plain forward mode (``torch.autograd.forward_ad``) follows one of ``tensors``."""
    return not substrate.transforms_active() and any_dual(tensors)
