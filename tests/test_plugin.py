"""Each test is a process of its own: the plugin acts on the first import of verl."""

import os
import subprocess
import sys
import textwrap

import pytest

from verl_gui import plugin


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess:
    env = {k: v for k, v in os.environ.items() if not k.startswith("VERL_")} | environment
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=110)


def test_importing_the_plugin_is_cheap():
    done = run_python(
        """
        import sys, verl_gui.plugin
        heavy = {"torch", "ray", "transformers", "vllm", "verl", "numpy"} & set(sys.modules)
        assert not heavy, heavy
        """
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "environment",
    [{}, {"VERL_USE_EXTERNAL_MODULES": "verl_gui.plugin", "VERL_USE_EXTERNAL_PLUGINS": "none"}],
    ids=["entry point", "external module"],
)
def test_verl_loads_the_plugin(environment):
    done = run_python(
        """
        import sys, verl
        from verl.plugin.platform import PlatformRegistry
        from verl_gui import plugin
        from verl_gui.compat import VERL_BRIDGES, _guard
        assert plugin._registered
        assert "cpu" in PlatformRegistry.registered_names()
        assert {bridge.name for bridge in VERL_BRIDGES} <= _guard._installed
        assert "vllm" not in sys.modules
        """,
        **environment,
    )
    assert done.returncode == 0, done.stderr


def test_a_plugin_that_fails_ends_the_process_and_shows_its_cause():
    """verl would swallow an Exception here and train without the plugin."""
    done = run_python(
        """
        import verl_gui.compat
        def broken():
            raise RuntimeError("the disk is on fire")
        verl_gui.compat.install_all = broken
        import verl
        print("verl goes on")
        """
    )
    assert done.returncode == 1
    assert "verl goes on" not in done.stdout
    assert "PluginLoadError: verl_gui could not be loaded into verl" in done.stderr
    assert "RuntimeError: the disk is on fire" in done.stderr and "in broken" in done.stderr


def test_verl_runs_without_the_plugin_when_told_so():
    done = run_python(
        "import verl, sys; assert 'verl_gui' not in sys.modules", VERL_USE_EXTERNAL_PLUGINS="none"
    )
    assert done.returncode == 0, done.stderr


def test_error_is_one_that_verl_does_not_swallow():
    assert not issubclass(plugin.PluginLoadError, Exception)


def test_hooks_name_functions_that_exist():
    import importlib

    import verl  # noqa: F401  # its plugins import our modules, which must not be half imported by then

    for trigger, target in plugin.HOOKS:
        module, _, function = target.partition(":")
        assert trigger.startswith("verl.") and callable(getattr(importlib.import_module(module), function))
