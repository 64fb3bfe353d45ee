"""Which interpreter is on top of the level stack."""

from __future__ import annotations

from fxforms import _substrate as substrate
from fxforms.errors import RuleError
from fxforms.interpreters.grad import GradInterpreter
from fxforms.interpreters.jvp import JvpInterpreter
from fxforms.interpreters.stack import Interpreter
from fxforms.interpreters.vmap import VmapInterpreter

_INTERPRETERS: dict[int, type[Interpreter]] = {
    int(substrate.TransformType.Grad): GradInterpreter,
    int(substrate.TransformType.Jvp): JvpInterpreter,
    int(substrate.TransformType.Vmap): VmapInterpreter,
}


def current_interpreter() -> Interpreter:
    """The interpreter of the top level.

    Raises:
        RuleError: the level is of a transform that has no rule for a custom Function.
    """
    handle = substrate.peek_level()
    interpreter = _INTERPRETERS.get(int(handle.key()))
    if interpreter is None:
        raise RuleError(
            f"A custom Function was called inside torch.func.{handle.key().name.lower()} (level "
            f"{handle.level()}), which has no rule for one. Call the Function outside of it."
        )
    return interpreter(handle, substrate.current_level())
