"""Modules as functions of their parameters: torch's own helpers, under fxforms' name."""

from torch.func import functional_call, stack_module_state

__all__ = ["functional_call", "stack_module_state"]
