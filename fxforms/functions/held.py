"""Tensors that plain autograd follows, and a decorated function uses without being given them.

Its rules give derivatives by its arguments alone. By what its body finds in a closure, a global
variable or an object the derivative would be a silent zero. So a call in which such tensors are
in reach gets one operand more, a token that depends on them; who follows it, at any order, gets an
error if the body has used one. A derivative by the arguments alone does not ask.

``jax.custom_jvp`` refuses a derivative by a closed-over value in the same way.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import CodeType
from types import FunctionType as PythonFunction
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from fxforms import _substrate as substrate
from fxforms._tree import leaves
from fxforms.errors import UnsupportedError
from fxforms.functions.context import among
from fxforms.functions.inline import has_tangent
from fxforms.functions.inner_engine import CUTS
from fxforms.functions.presented import presented
from fxforms.functions.refused import token
from fxforms.functions.unseen import held, hidden_tensors, holds_nothing

_SET: Any = torch.Tensor.__setitem__


@lru_cache(1000)
def global_names(code: CodeType) -> tuple[str, ...]:
    """The global names that ``code`` and the functions in it read."""
    names = {i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"}
    inner = [global_names(const) for const in code.co_consts if isinstance(const, CodeType)]
    return tuple(names.union(*inner))


def is_of_torch(value: Any) -> bool:
    """True for a function of torch or fxforms, which closes over nothing of the user's."""
    return str(getattr(value, "__module__", None)).partition(".")[0] in ("torch", "fxforms")


class Bodies:
    """The functions that compute the output of a decorated one.

    What they reach is looked at anew at each call. One whose variables hold numbers, modules and
    the like is passed at the cost of that look.
    """

    def __init__(self, *functions: Any) -> None:
        own = [f for f in functions if isinstance(f, PythonFunction)]
        self._functions = [(f, global_names(f.__code__)) for f in own]
        self._others = [
            f for f in functions if not (isinstance(f, PythonFunction) or is_of_torch(f))
        ]

    def held(self, arguments: Sequence[Any]) -> list[torch.Tensor]:
        """The tensors in reach, also in objects among ``arguments``, that autograd follows."""
        dual = substrate.dual_level_open()
        if not (dual or torch.is_grad_enabled()):
            return []
        values = [*self._others]
        kind: Any
        for function, names in self._functions:
            variables = function.__globals__
            for name in names:
                value = variables.get(name)
                kind = type(value)
                if not holds_nothing(kind):
                    values.append(value)
            if function.__closure__ or function.__defaults__ or function.__kwdefaults__:
                for value in held(function):
                    kind = type(value)
                    if not holds_nothing(kind):
                        values.append(value)
        for argument in arguments:
            kind = type(argument)
            if not (isinstance(argument, torch.Tensor) or holds_nothing(kind)):
                values += [x for x in leaves(argument) if not isinstance(x, torch.Tensor)]
        return followed(values, arguments, dual) if values else values


def followed(values: list[Any], arguments: Sequence[Any], dual: bool) -> list[torch.Tensor]:
    """The tensors in ``values`` that plain autograd follows, but for those in ``arguments``."""
    found = [
        x
        for x in hidden_tensors(values, globals_of)
        if not substrate.is_wrapped(x) and (x.requires_grad or (dual and has_tangent(x)))
    ]
    if not found:
        return found
    given = tuple([substrate.physical(x) for x in tensors_in([*arguments])])
    return [x for x in found if not among(x, given)]


def globals_of(function: Any) -> list[Any]:
    """What ``function`` reaches by its global variables."""
    values: list[Any] = []
    if isinstance(function, PythonFunction) and not is_of_torch(function):
        variables = function.__globals__
        values = [variables.get(name) for name in global_names(function.__code__)]
    return values


class Watch(TorchFunctionMode):
    """Notes in ``used`` which of ``tensors`` torch's functions are given as values."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self.tensors = {id(x): x for x in tensors}
        self.used: torch.Tensor | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self.used is None and func not in CUTS:
            given = tensors_in(values_of(func, args, kwargs, result))
            used = [self.tensors.get(id(substrate.physical(x))) for x in given]
            self.used = next((x for x in used if x is not None), None)
        return result


def values_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
    """The arguments whose numbers ``result`` depends on, where autograd may follow that."""
    name = getattr(func, "__name__", "")
    if name.endswith("_like") or name.startswith("new_"):
        return ()
    if name.endswith("_as"):  # of the second argument it takes the shape alone
        return args[:1]
    return (args, kwargs) if func is _SET or tensors_in(result) else ()


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """The tensors in ``tree``."""
    return [x for x in leaves(tree) if isinstance(x, torch.Tensor)]


def refused(name: str, tensor: torch.Tensor) -> UnsupportedError:
    """The error for a derivative by a ``tensor`` that the function was not given."""
    return UnsupportedError(
        f"{name} uses a tensor of shape {tuple(tensor.shape)} that it closes over, and its rules "
        f"give no derivative by it. Pass the tensor to it as an argument; where it is meant as a "
        f"constant, write tensor.detach() in the function."
    )


def with_token(name: str, tensors: list[torch.Tensor], call: Callable[[torch.Tensor], Any]) -> Any:
    """``call(token)``, of a function of that name whose body can reach ``tensors``."""
    watch = Watch(tensors)

    def check() -> None:
        if watch.used is not None:
            raise refused(name, watch.used)

    operand = token(check, [presented(x) for x in tensors])
    with watch:
        output = call(operand)
    if watch.used is not None and has_tangent(watch.used):
        raise refused(name, watch.used)
    return output
