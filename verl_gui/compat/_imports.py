"""Run a function right after a module has been imported, without importing it."""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

Hook = Callable[[ModuleType], None]

_hooks: dict[str, list[Hook]] = {}


def after_import(module_name: str, hook: Hook) -> None:
    """Call ``hook(module)`` each time ``module_name`` is executed; at once when it is already imported.

    Hooks of one module run in the order they were added. An exception of a hook fails the import, and fails
    it again on the next try: a module is never handed out half-changed.

    Raises:
        ImportError: The module is being imported right now; whether its names are set yet can't be known.
    """
    module = sys.modules.get(module_name)
    if module is not None:
        if getattr(module.__spec__, "_initializing", False):
            raise ImportError(
                f"{module_name} is being imported right now: add the hook before its import starts"
            )
        hook(module)
    _hooks.setdefault(module_name, []).append(hook)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def replace_imported(module: ModuleType, name: str, replacement: Any) -> None:
    """Set ``module.name``, also where modules of the same package have already imported it by its name.

    verl has imported some of its own modules by the time it loads its plugins.
    """
    original = getattr(module, name)
    package = module.__name__.partition(".")[0]
    for other in [module, *(m for key, m in sys.modules.items() if key.partition(".")[0] == package)]:
        if vars(other).get(name) is original:
            setattr(other, name, replacement)


class _HookedModuleFinder(importlib.abc.MetaPathFinder):
    """Finds hooked modules through the other finders and makes their loader call the hooks."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _hooks:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                break
        else:
            return None
        loader = spec.loader
        if loader is None:  # a namespace package executes nothing
            return spec
        execute = loader.exec_module

        def execute_then_call_hooks(module: ModuleType) -> None:
            execute(module)
            for hook in _hooks[fullname]:
                hook(module)

        # The loader belongs to this spec alone, so the change reaches no other module. It stays the same
        # object because inspect, importlib.resources and friends ask for its type.
        loader.exec_module = execute_then_call_hooks  # type: ignore[method-assign]
        return spec


_finder = _HookedModuleFinder()
