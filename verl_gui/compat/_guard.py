"""Change a third-party module when, and only when, it is imported in the version the change was made for.

A :class:`Bridge` names the module it changes, the exact package versions it was written against and its
twin patch file. :func:`install` arms it; nothing is imported until somebody imports the module. On another
version the import fails with a :class:`CompatError` that says what to do: an unguarded change to unknown
code is worse than a stop.
"""

import importlib.metadata
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType

from packaging.version import Version

from verl_gui.compat._imports import after_import

logger = logging.getLogger(__name__)

VERL = "0.9.1"
VLLM = "0.24.0"
TRANSFORMERS = "5.9.0"

_installed: set[str] = set()


class CompatError(RuntimeError):
    """A bridge can't be used: its package is missing or has another version than it was written for."""


@dataclass(frozen=True)
class Bridge:
    """One change to third-party behaviour.

    Attributes:
        name: Short unique name, used in messages and logs. module: Module whose import triggers the change.
        requires: Distribution name -> exact public version ("0.24.0" also accepts the local version
        "0.24.0+cpu"). twin: Patch file with the same fix for the package's sources, relative to the
        repository. apply: Called once per import with the freshly executed module. wanted: Whether this
        process needs the change; asked before the versions are checked, so that a bridge that
            only CPU nodes need can't stop a GPU node.
    """

    name: str
    module: str
    requires: Mapping[str, str]
    twin: str
    apply: Callable[[ModuleType], None]
    wanted: Callable[[], bool] = lambda: True


def install(bridge: Bridge) -> None:
    """Arm ``bridge``: it is applied on every import of its module (at once when that is already imported).

    Installing a bridge twice is the same as installing it once.

    Raises:
        CompatError: The module is already imported and a required package has another version.
    """
    if bridge.name in _installed:
        return
    after_import(bridge.module, lambda module: _apply(bridge, module))
    _installed.add(bridge.name)


def _apply(bridge: Bridge, module: ModuleType) -> None:
    if not bridge.wanted():
        return
    for distribution, expected in bridge.requires.items():
        check_version(distribution, expected, needed_by=f"bridge {bridge.name!r} (twin: {bridge.twin})")
    bridge.apply(module)
    logger.debug("bridge %s applied to %s", bridge.name, bridge.module)


def check_version(distribution: str, expected: str, *, needed_by: str) -> None:
    """Raise :class:`CompatError` unless ``distribution`` has exactly the public version ``expected``."""
    try:
        found = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError as error:
        raise CompatError(
            f"verl_gui's {needed_by} changes {distribution} {expected}, but {distribution} is not installed. "
            f"Install {distribution}=={expected}."
        ) from error
    if Version(found).public != expected:
        raise CompatError(
            f"verl_gui's {needed_by} was written for {distribution} {expected}, but {found} is installed. "
            f"Install {distribution}=={expected}, or check whether {found} still needs the change and extend "
            "the bridge in verl_gui/compat."
        )


def verl_runs_on_cpu() -> bool:
    """Whether verl picked the CPU platform in this process (settles verl's platform choice)."""
    from verl.plugin.platform import get_platform

    return bool(get_platform().device_name == "cpu")
