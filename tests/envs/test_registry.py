from typing import get_type_hints

import pytest

from verl_gui.envs import registry


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    monkeypatch.setattr(registry, "_registered", {})


def test_registered_backend_gets_its_options():
    @registry.register_backend("phone")
    class Phone:
        def __init__(self, screen):
            self.screen = screen

    assert registry.make_env("phone", screen=(1, 2)).screen == (1, 2)
    assert "phone" in registry.backends()


def test_names_are_not_taken_twice():
    registry.register_backend("phone")(dict)
    registry.register_backend("phone")(dict)  # the same one again, as when a module is imported twice
    with pytest.raises(ValueError, match="taken"):
        registry.register_backend("phone")(list)
    with pytest.raises(ValueError, match="taken"):
        registry.register_backend("miniwob")(dict)


def test_unknown_backend_names_the_known_ones():
    with pytest.raises(ValueError, match="desktop, docker, miniwob, osworld, osworld-desktop-env, remote"):
        registry.make_env("vnc")


def test_built_in_backends_are_there():
    import importlib

    for module, name in registry._BUILT_IN.values():
        backend = getattr(importlib.import_module(module), name)
        if not isinstance(backend, type):  # a function that builds one
            backend = get_type_hints(backend)["return"]
        assert all(hasattr(backend, method) for method in ("reset", "step", "evaluate", "close"))
