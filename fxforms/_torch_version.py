"""Which releases of torch the adapter ``_substrate.py`` is written for."""

from __future__ import annotations

SUPPORTED_TORCH = ((2, 13),)


def check_torch_version(version: str) -> None:
    """Raise ImportError unless the adapter was written for torch ``version``."""
    major, minor = version.split(".")[:2]
    if (int(major), int(minor)) in SUPPORTED_TORCH:
        return
    known = ", ".join(f"{a}.{b}" for a, b in SUPPORTED_TORCH)
    raise ImportError(
        f"fxforms builds on private parts of torch that change between releases. It found torch "
        f"{version} and supports torch {known}. Install one: pip install 'torch>=2.13,<2.14'"
    )
