"""Loads a file of a released package as its own module: as released, with its bridge or its patch."""

import importlib.util
import itertools
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from verl_gui.compat import Bridge

REPOSITORY = Path(__file__).parents[2]
SITE_PACKAGES = Path(sysconfig.get_path("purelib"))

_names = (f"loaded_for_a_test_{i}" for i in itertools.count())


def load_file(path: Path) -> ModuleType:
    name = next(_names)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def released_file(bridge: Bridge) -> Path:
    return SITE_PACKAGES / (bridge.module.replace(".", "/") + ".py")


def patched_file(bridge: Bridge, folder: Path) -> Path:
    source = released_file(bridge)
    relative = source.relative_to(SITE_PACKAGES)
    copy = folder / relative
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(source.read_bytes())
    command = ["git", "apply", f"--include={relative}", str(REPOSITORY / bridge.twin)]
    subprocess.run(command, cwd=folder, check=True, timeout=30)
    return copy


@pytest.fixture
def released() -> Callable[[Bridge], ModuleType]:
    """The module that a bridge changes, unchanged: shows that a test of the change can fail."""
    return lambda bridge: load_file(released_file(bridge))


@pytest.fixture(params=["bridge", "patch"])
def repaired(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Bridge], ModuleType]:
    """The module that a bridge changes, changed by the bridge and, in a second run, by its twin patch."""

    def load(bridge: Bridge) -> ModuleType:
        if request.param == "patch":
            return load_file(patched_file(bridge, tmp_path))
        module = load_file(released_file(bridge))
        bridge.apply(module)
        return module

    return load


@pytest.fixture(autouse=True)
def _forget_loaded_modules() -> Iterator[None]:
    yield
    for name in [name for name in sys.modules if name.startswith("loaded_for_a_test_")]:
        del sys.modules[name]
