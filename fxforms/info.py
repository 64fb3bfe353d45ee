"""What ``python -m fxforms info`` prints: versions, devices, and what is active."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import torch

from fxforms._substrate import level_depth
from fxforms._torch_version import SUPPORTED_TORCH

PACKAGES = ("fxforms", "torch", "optree", "numpy")


def report() -> str:
    """One line a fact: ``name`` and value, in two columns.

    Example:
        >>> from fxforms.info import report
        >>> print(report().splitlines()[0].split()[0])
        python
    """
    facts = {"python": platform.python_version(), **_versions(), **_torch_state()}
    width = max(map(len, facts))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in facts.items())


def _versions() -> dict[str, str]:
    """The installed version of each package that a transform runs on."""
    return {name: _version(name) for name in PACKAGES}


def _version(package: str) -> str:
    """The version of ``package``; a checkout on the path alone has none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed (on the path only)"


def _torch_state() -> dict[str, str]:
    """Devices and modes as this thread sees them."""
    return {
        "torch supported": ", ".join(f"{major}.{minor}" for major, minor in SUPPORTED_TORCH),
        "devices": ", ".join(_devices()),
        "threads": str(torch.get_num_threads()),
        "default dtype": str(torch.get_default_dtype()),
        "active levels": str(level_depth()),
        "grad mode": _on(torch.is_grad_enabled()),
        "inference mode": _on(torch.is_inference_mode_enabled()),
        "autocast (cpu)": _on(torch.is_autocast_enabled("cpu")),
    }


def _devices() -> list[str]:
    """The CPU and each accelerator."""
    count = torch.accelerator.device_count() if torch.accelerator.is_available() else 0
    kind = torch.accelerator.current_accelerator()
    return ["cpu", *(f"{kind}:{index}" for index in range(count))]


def _on(state: bool) -> str:
    """How a mode is printed."""
    return "on" if state else "off"
