"""Backends by name: what ``gui.env.backend`` may be."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, TypeVar

from verl_gui.envs.base import GuiEnv

Factory = Callable[..., GuiEnv]
F = TypeVar("F", bound=Factory)

# Imported at their first use: each needs programs and packages that the others do not.
_BUILT_IN = {
    "desktop": ("verl_gui.envs.desktop", "DesktopEnv"),
    "miniwob": ("verl_gui.envs.miniwob", "MiniwobEnv"),
    "remote": ("verl_gui.envs.remote.env", "RemoteEnv"),
    "osworld": ("verl_gui.envs.osworld.env", "OsworldEnv"),
    "osworld-desktop-env": ("verl_gui.envs.osworld.process_env", "osworld_desktop_env"),
    "docker": ("verl_gui.envs.docker.env", "docker_env"),
}
_registered: dict[str, Factory] = {}


def register_backend(name: str) -> Callable[[F], F]:
    """Decorator that makes a class or function available as backend ``name``.

    Raises:
        ValueError: the name is taken by something else.

    Example:
        >>> @register_backend("my-phone")
        ... class PhoneEnv: ...
    """

    def register(factory: F) -> F:
        if name in _BUILT_IN or _registered.get(name, factory) is not factory:
            raise ValueError(f"the backend name {name!r} is taken")
        _registered[name] = factory
        return factory

    return register


def backends() -> list[str]:
    """The names that :func:`make_env` knows."""
    return sorted({*_BUILT_IN, *_registered})


def make_env(backend: str, **options: Any) -> GuiEnv:
    """Build an environment.

    Args:
        backend: one of :func:`backends`.
        options: the backend's own keyword arguments.

    Raises:
        ValueError: unknown backend, or options it does not take.
        EnvFailure: the environment does not start.
    """
    if backend in _BUILT_IN:
        module, name = _BUILT_IN[backend]
        factory: Factory = getattr(importlib.import_module(module), name)
    elif backend in _registered:
        factory = _registered[backend]
    else:
        raise ValueError(f"unknown backend {backend!r}; known are {', '.join(backends())}")
    return factory(**options)
