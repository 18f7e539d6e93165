"""In a process of its own: engines register themselves on import, once."""

import os
import subprocess
import sys
import textwrap

from verl_gui.compat import fsdp_engine


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess:
    env = {k: v for k, v in os.environ.items() if not k.startswith("VERL_")} | environment
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=110)


LOOK_UP = f"""
import {fsdp_engine.BRIDGE.module} as fsdp
from verl.workers.engine.base import EngineRegistry
for strategy in ("fsdp", "fsdp2"):
    assert EngineRegistry.get_engine_cls("language_model", strategy) is fsdp.FSDPEngineWithLMHead
    assert EngineRegistry.get_engine_cls("value_model", strategy) is fsdp.FSDPEngineWithValueHead
assert "cuda" in EngineRegistry._engines["language_model"]["fsdp2"]
"""


def test_engines_are_found_on_the_cpu():
    done = run_python(LOOK_UP, VERL_PLATFORM="cpu")
    assert done.returncode == 0, done.stderr


def test_nothing_is_registered_for_the_cpu_on_a_gpu_node():
    code = LOOK_UP + 'assert "cpu" not in EngineRegistry._engines["language_model"]["fsdp2"]\n'
    done = run_python(code, VERL_PLATFORM="nvidia")
    assert done.returncode == 0, done.stderr
