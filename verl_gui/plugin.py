"""What verl loads in every process: arms everything verl_gui adds to verl, and imports next to nothing.

verl *imports* this module, for the entry-point group ``verl.plugins`` as for ``VERL_USE_EXTERNAL_MODULES``;
it calls nothing in it. So importing it registers. To add to verl, append to :data:`HOOKS`.

verl swallows any ``Exception`` of a plugin at debug level and trains on without it.
:class:`PluginLoadError` is therefore no ``Exception``: it passes through and ends the process, after the
cause was logged with its traceback.
"""

import importlib
import logging
from collections.abc import Callable
from types import ModuleType

logger = logging.getLogger(__name__)

# (module of verl, function of ours as "module:function"): once the former has been imported, the latter is
# imported and called with it. Nothing is imported before.
HOOKS: tuple[tuple[str, str], ...] = (
    ("verl.plugin.platform.platform_manager", "verl_gui.platforms.cpu:register_platform"),
    ("verl.experimental.agent_loop.agent_loop", "verl_gui.rollout.registration:register_agent_loop"),
    ("verl.trainer.ppo.core_algos", "verl_gui.advantage.registration:register_estimators"),
)

_registered = False


class PluginLoadError(BaseException):
    """verl_gui could not be loaded into verl; going on would train something else than was asked for."""


def register() -> None:
    """Arm the bridges and :data:`HOOKS`. A second call does nothing.

    Raises:
        PluginLoadError: Anything failed. Deliberately no ``Exception``, see the module.
    """
    global _registered
    if _registered:
        return
    try:
        from verl_gui import compat

        compat.install_all()
        for trigger, target in HOOKS:
            compat.after_import(trigger, _late(target))
    except Exception as error:
        logger.exception("verl_gui could not be loaded into verl")
        raise PluginLoadError(
            f"verl_gui could not be loaded into verl ({type(error).__name__}: {error}). To run verl without "
            "verl_gui, set VERL_USE_EXTERNAL_PLUGINS=none and take it out of VERL_USE_EXTERNAL_MODULES."
        ) from error
    _registered = True


def _late(target: str) -> Callable[[ModuleType], None]:
    module_name, _, function_name = target.partition(":")

    def call(module: ModuleType) -> None:
        getattr(importlib.import_module(module_name), function_name)(module)

    return call


register()
