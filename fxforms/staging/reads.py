"""Which variables a function reads, by its bytecode."""

from __future__ import annotations

import dis
import functools
import os
import sys
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from fxforms import _substrate as substrate

# Where installed packages, the standard library and fxforms are. A wrapper bears the module name of
# what it wraps, so a function is told by its file.
INSTALLED = (
    os.path.dirname(os.path.dirname(torch.__file__)) + os.sep,
    os.path.dirname(os.__file__) + os.sep,
    os.path.dirname(substrate.__file__) + os.sep,
    "<frozen",
)


class Read(NamedTuple):
    """A variable, and the attributes that are taken from it one after the other.

    Attributes:
        kind: ``"cell"``, ``"global"``, or ``"argument"``; ``"stored"`` for a cell, or a global
            without one, that is written to.
        name: the variable's name.
        attributes: ``("config", "scale")`` for ``name.config.scale``.
        cell: the closure cell.
    """

    kind: str
    name: str
    attributes: tuple[str, ...]
    cell: Any = None


def is_installed(function: types.FunctionType) -> bool:
    """True for a function of an installed package, which is taken to be constant."""
    return function.__code__.co_filename.startswith(INSTALLED)


def is_library(cls: type) -> bool:
    """True for a class of the packages that are taken to be constant, but for Python's own."""
    file = getattr(sys.modules.get(cls.__module__ or ""), "__file__", None) or ""
    root = (cls.__module__ or "").split(".")[0]
    return file.startswith(INSTALLED) and root not in sys.stdlib_module_names


def is_builtin(value: object) -> bool:
    """True for a function written in C, such as those of torch."""
    return isinstance(value, types.BuiltinFunctionType)


def has_fields(value: Any) -> bool:
    """True for an object that a program keeps its settings in."""
    if isinstance(value, (type, torch.Tensor, torch.nn.Module, types.ModuleType)):
        return False
    return hasattr(value, "__dict__") and not callable(value) and not is_library(type(value))


def reads_of(function: types.FunctionType) -> list[Read]:
    """What ``function`` and the functions written inside of it read from outside."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))
    found = []
    for kind, name, attributes in scan(function.__code__):
        if kind not in ("cell", "stored"):
            found.append(Read(kind, name, attributes))
        elif name in cells or kind == "stored":
            found.append(Read(kind, name, attributes, cells.get(name)))
    return found


@functools.lru_cache(maxsize=4096)
def scan(code: types.CodeType) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """The reads in ``code``: kind, name and attributes."""
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    own = list(_scan(code, arguments))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inside = [x for x in scan(constant) if x[0] != "argument"]
            own += [
                ("argument", *x[1:]) if x[0] == "cell" and x[1] in arguments else x for x in inside
            ]
    return tuple(dict.fromkeys(own))


def _scan(
    code: types.CodeType, arguments: tuple[str, ...]
) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    instructions = list(dis.get_instructions(code))
    stored = {i.argval for i in instructions if i.opname in ("STORE_ATTR", "STORE_GLOBAL")}
    for index, instruction in enumerate(instructions):
        kind = _kind(instruction, arguments, code)
        if kind and (kind == "stored" or instruction.argval not in stored):
            yield kind, instruction.argval, _attributes(instructions[index + 1 :], stored)


def _kind(instruction: dis.Instruction, arguments: tuple[str, ...], code: types.CodeType) -> str:
    """Which kind of variable ``instruction`` loads, if it loads one."""
    if instruction.opname == "LOAD_GLOBAL":
        return "global"
    if instruction.opname in ("STORE_GLOBAL", "STORE_DEREF"):
        is_cell = instruction.argval in code.co_freevars
        return "stored" if is_cell or instruction.opname == "STORE_GLOBAL" else ""
    if instruction.opname in ("LOAD_FAST", "LOAD_DEREF") and instruction.argval in arguments:
        return "argument"
    if instruction.opname in ("LOAD_DEREF", "LOAD_CLASSDEREF"):
        return "cell" if instruction.argval in code.co_freevars else ""
    return ""


def _attributes(following: list[dis.Instruction], stored: set[Any]) -> tuple[str, ...]:
    """The attributes taken right after a load, up to one that the code itself sets."""
    names = []
    for instruction in following:
        if instruction.opname not in ("LOAD_ATTR", "LOAD_METHOD") or instruction.argval in stored:
            break
        names.append(instruction.argval)
    return tuple(names)
