"""The one adapter over torch's private functorch layer.

Everything above sees the names of this file: levels, wrappers, batch dims, dual tensors, the
single-level autograd Function and the backward engine. No other file touches ``torch._C`` or
``torch._functorch``.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
import torch.utils.checkpoint

from fxforms._torch_version import check_torch_version

check_torch_version(torch.__version__)

from torch import _VF  # noqa: E402
from torch._C import (  # noqa: E402
    _are_functorch_transforms_active,
    _autograd,
    _enter_dual_level,
    _exit_dual_level,
    _FunctionBase,
    _functorch,
    _is_fwd_grad_enabled,
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
    _set_fwd_grad_enabled,
    _set_grad_enabled,
)
from torch._functorch import eager_transforms, predispatch  # noqa: E402
from torch.autograd import forward_ad, grad_mode  # noqa: E402
from torch.autograd.function import (  # noqa: E402
    BackwardCFunction,
    FunctionMeta,
    _SingleLevelFunction,
    once_differentiable,
)

torch_checkpoint: Any = torch.utils.checkpoint

# Levels.
transforms_active = _are_functorch_transforms_active
current_level = _functorch.current_level
level_depth = _functorch.get_dynamic_layer_stack_depth
peek_level: Any = _functorch.peek_interpreter_stack
level_handles: Any = _functorch.get_interpreter_stack
pop_level = _functorch.pop_dynamic_layer_stack
push_level = _functorch.push_dynamic_layer_stack
undo_levels_to_depth = _functorch.pop_dynamic_layer_stack_and_undo_to_depth
TransformType: Any = _functorch.TransformType
VMAP = int(TransformType.Vmap)
RandomnessType: Any = _functorch.RandomnessType
GradHandle = _functorch.CGradInterpreterPtr
JvpHandle = _functorch.CJvpInterpreterPtr
VmapHandle: Any = _functorch.CVmapInterpreterPtr
enter_grad = _functorch._grad_increment_nesting
exit_grad = _functorch._grad_decrement_nesting
exit_vmap = _functorch._vmap_decrement_nesting

# Wrappers.
wrap_for_grad = _functorch._wrap_for_grad
unwrap_for_grad = _functorch._unwrap_for_grad
unwrap_if_dead = _functorch.unwrap_if_dead
add_batch_dim = _functorch._add_batch_dim
unwrap_batched = _functorch._unwrap_batched
remove_batch_dim = _functorch._remove_batch_dim  # see take_batch_dim
is_batched = _functorch.is_batchedtensor
is_wrapped = _functorch.is_functorch_wrapped_tensor
unwrapped = _functorch.get_unwrapped
level_of = _functorch.maybe_get_level

# Modes.
set_grad_enabled = _set_grad_enabled
set_forward_grad_enabled = _set_fwd_grad_enabled
forward_grad_enabled = _is_fwd_grad_enabled
requires_grad_allowed = _functorch.get_inplace_requires_grad_allowed
set_requires_grad_allowed = _functorch.set_inplace_requires_grad_allowed
_hooks: Any = _autograd
saved_hooks_message = _hooks._saved_tensors_hooks_get_disabled_error_message
disable_saved_hooks = _hooks._saved_tensors_hooks_disable
enable_saved_hooks = _hooks._saved_tensors_hooks_enable
push_saved_hooks = _hooks._push_saved_tensors_default_hooks
pop_saved_hooks = _hooks._pop_saved_tensors_default_hooks
dispatch_modes = _len_torch_dispatch_stack  # how many record or fake operations
function_modes = _len_torch_function_stack  # how many see calls, as torch.device(...) does
keeps_graph = _hooks._get_current_graph_task_keep_graph
single_level_allowed = _functorch.get_single_level_autograd_function_allowed
set_single_level_allowed = _functorch.set_single_level_autograd_function_allowed

# The autograd Function: its C base, metaclass, context and single-level form.
SingleLevelFunction = _SingleLevelFunction
torch_once_differentiable = once_differentiable


def make_function(
    name: str, base: Any, methods: dict[str, Callable[..., Any]], **attributes: Any
) -> Any:
    """A new autograd Function class with these static methods."""
    static: dict[str, Any] = {key: staticmethod(method) for key, method in methods.items()}
    return type(base)(name, (base,), static | attributes)


def versions(operands: tuple[Any, ...]) -> list[int]:
    """The version of each of ``operands`` that has one: a change in place raises it."""
    found = []
    for x in operands:
        if isinstance(x, torch.Tensor) and not (x := physical(x)).is_inference():
            found.append(x._version)
    return found


def autograd_apply(function: Any) -> Any:
    """The C ``apply`` of ``function``, past ``torch.autograd.Function.apply``."""
    return super(torch.autograd.Function, function).apply


read_saved_tensors: Any = _FunctionBase.saved_tensors.__get__  # type: ignore[attr-defined]

__all__ = ["BackwardCFunction", "FunctionMeta"]


def level_transforms() -> list[int]:
    """The transform of each level, outermost first."""
    return [int(handle.key()) for handle in level_handles() or ()]


def top_transform() -> int:
    """The transform of the top level."""
    return int(peek_level().key())


def on_vmap_level() -> bool:
    """True if the top level is a vmap."""
    return transforms_active() and top_transform() == VMAP


def saved_hooks() -> Any:
    """``(pack, unpack)`` of ``torch.autograd.graph.saved_tensors_hooks`` and the like, or None."""
    return _hooks._top_saved_tensors_default_hooks(False)


def dual_level_open() -> bool:
    """True inside a jvp level or a ``torch.autograd.forward_ad.dual_level``."""
    return forward_ad._current_level >= 0


def is_only_jvp_level() -> bool:
    """True if the dual level serves a single jvp level of fxforms, in the whole process."""
    return _owns_dual_level and eager_transforms.JVP_NESTING == 1


def unbatched(tensor: torch.Tensor) -> torch.Tensor:
    """The physical tensor under all vmap levels of ``tensor``."""
    while _functorch.is_batchedtensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor


def base_value(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor under the grad and jvp wrappers of ``tensor``: a batch, or a plain one."""
    while _functorch.is_gradtrackingtensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor


def physical(tensor: torch.Tensor) -> torch.Tensor:
    """The plain tensor under all wrappers of ``tensor``."""
    while _functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor


preserve_version = grad_mode._unsafe_preserve_version_counter


def take_batch_dim(tensor: torch.Tensor, level: int, size: int, dim: int) -> torch.Tensor:
    """``tensor`` off vmap ``level``, with its batch at ``dim``; repeated if it has none.

    torch's own primitive reads outside the shape of a tensor without a batch if ``dim`` is not 0.
    """
    if dim != 0 and level_of(tensor) != level:
        tensor = tensor.unsqueeze(dim)
        shape = list(tensor.shape)
        shape[dim] = size
        return tensor.expand(shape)
    return remove_batch_dim(tensor, level, size, dim)


set_batched_level = _functorch._maybe_unsafe_set_level

# For a tensor of an ended vmap: torch takes it else for one of the next vmap, of the same number.
ESCAPED_LEVEL = 1 << 20


def make_leaf(tensor: torch.Tensor, level: int) -> torch.Tensor:
    """``tensor`` wrapped at grad ``level`` as a leaf that requires grad."""
    return wrap_for_grad(tensor, level).requires_grad_()


def make_dual(primal: torch.Tensor, tangent: torch.Tensor) -> torch.Tensor:
    """A dual tensor at the top jvp level.

    torch lays the tangent out like the primal and cannot write to one whose elements share memory
    (an expanded tensor), so such a primal is copied.
    """
    if not primal.is_contiguous() and 0 in primal.stride():
        primal = primal.contiguous()
    return _VF._make_dual(primal, tangent, level=0)


def tangent_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tangent of a dual tensor at the top jvp level, None if it has none."""
    return cast("torch.Tensor | None", _VF._unpack_dual(tensor, level=0)[1])


# NOTE [one dual level for all jvp levels]
# torch has a single forward-mode dual level, of the whole process, and refuses to enter it twice;
# nested jvp levels share it and keep their tangents apart by their wrappers. torch.func counts its
# users in a module global. The same count is kept here, under a lock, which several threads need.
_dual_lock = threading.Lock()
_owns_dual_level = False


def enter_jvp() -> int:
    """Push a jvp level, opening the dual level for the first user in the process."""
    global _owns_dual_level
    with _dual_lock:
        if eager_transforms.JVP_NESTING == 0 and forward_ad._current_level < 0:
            forward_ad._current_level = _enter_dual_level()
            _owns_dual_level = True
        level = _functorch._jvp_increment_nesting()
        eager_transforms.JVP_NESTING += 1
    return level


def exit_jvp() -> None:
    """Pop a jvp level, closing the dual level after the last user in the process."""
    global _owns_dual_level
    _functorch._jvp_decrement_nesting()
    with _dual_lock:
        eager_transforms.JVP_NESTING -= 1
        if eager_transforms.JVP_NESTING == 0 and _owns_dual_level:
            _owns_dual_level = False
            _exit_dual_level(level=forward_ad._current_level)
            forward_ad._current_level = -1


def _enter_first_vmap(batch_size: int, randomness: str) -> int:
    """Push the first vmap level, after torch's decompositions for what has no batch rule."""
    global enter_vmap
    predispatch.lazy_load_decompositions()
    enter_vmap = _functorch._vmap_increment_nesting
    return enter_vmap(batch_size, randomness)


enter_vmap: Callable[[int, str], int] = _enter_first_vmap


@contextlib.contextmanager
def _outside_inference_mode() -> Iterator[None]:
    """Leave inference mode, keeping both grad modes as they are."""
    modes = torch.is_grad_enabled(), _is_fwd_grad_enabled()
    with torch.inference_mode(False):
        _set_grad_enabled(modes[0])
        _set_fwd_grad_enabled(modes[1])
        yield


_engine = torch.autograd.Variable._execution_engine.run_backward


def run_backward(
    outputs: Sequence[torch.Tensor],
    cotangents: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    retain_graph: bool,
    create_graph: bool,
) -> tuple[torch.Tensor | None, ...]:
    """The autograd engine's vjp; None for an input that no output depends on."""
    if torch.is_inference_mode_enabled():
        with _outside_inference_mode():
            return run_backward(outputs, cotangents, inputs, retain_graph, create_graph)
    return cast(
        "tuple[torch.Tensor | None, ...]",
        _engine(
            tuple(outputs),
            tuple(cotangents),
            retain_graph,
            create_graph,
            tuple(inputs),
            allow_unreachable=True,
            accumulate_grad=False,
        ),
    )
